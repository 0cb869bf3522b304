"""Run the registered checks of the static tier on collected facts, and build the report. No package is imported.

`examine` runs all checks, `run_check` one. A check that raises an exception gets the outcome `crashed`; one that does
not apply is `skipped`.
"""

from collections.abc import Iterable

from diagnostics.catalog.model import Issue
from diagnostics.collect.machine import Machine
from diagnostics.collect.python_environment import Environment
from diagnostics.compat_table import Compat
from diagnostics.cpu_limit import CpuLimitError, cpu_limit
from diagnostics.doctor.checks.known_issues import silent_weight_faults
from diagnostics.doctor.checks.registry import REGISTERED, CheckInput, NoMachineError, NotApplicableError
from diagnostics.findings import CheckResult, Finding, NotChecked, Report
from diagnostics.frameworks import PACKAGES

_CHECK_S = 20.0
STATIC = "static: read from files; nothing was imported, so an installed package may still fail to start (--tier probe)"
"""The report's note on the method of the static tier."""


def examine(
    environment: Environment, issues: dict[str, Issue], compat: Compat, machine: Machine | None = None
) -> Report:
    """Run all checks on an environment; without a machine, the checks that need one are reported as not checked."""
    case = CheckInput(environment, issues, compat, machine)
    results = tuple(
        run_check(name, (item for function in functions for item in function(case)))
        for name, functions in REGISTERED.items()
    )
    machine_text = describe_machine(machine) if machine else "not examined"
    subject = {
        "prefix": environment.prefix,
        "python": environment.python,
        "packages": {name: version for name in PACKAGES if (version := environment.version(name))},
        "free_disk_gb": environment.free_disk_gb,
        "shared_memory_gb": environment.shared_memory_gb,
        "machine": machine_text,
    }
    notes = _sync_notes(environment, issues)
    table = f"compatibility table of {compat.generated}" if compat.generated else compat.problem
    return Report("doctor", subject, results, (*notes, f"machine: {machine_text}", table), STATIC)


def _sync_notes(environment: Environment, issues: dict[str, Issue]) -> list[str]:
    """Return a note on silent faults of the weight sync that the installed releases have with some settings, if any."""
    try:
        with cpu_limit("the note on weight syncs", _CHECK_S):
            codes = silent_weight_faults(issues.values(), environment)
    except (Exception, CpuLimitError) as error:  # noqa: BLE001 - as for a check
        return [f"wrong weights after a sync: not checked, {error}"]
    listed = ", ".join(codes)
    return (
        [f"wrong weights after a sync, with some settings: {listed}; `lint` checks the settings"]
        if codes
        else []
    )


def describe_machine(machine: Machine) -> str:
    """Describe a machine's processors, memory, GPUs and container in one line."""
    parts = [f"{machine.processors.usable:g} of {machine.processors.count} processors"]
    memory = machine.memory.limit_gb or machine.memory.total_gb
    if memory is not None:
        parts.append(f"{memory:g} GB of memory")
    gpus = machine.gpus
    if gpus.state == "ok":
        models = sorted({gpu.name for gpu in gpus.devices})
        parts.append(f"{len(gpus.devices)} GPUs ({', '.join(models)}), driver {gpus.driver}")
    elif gpus.state == "none":
        parts.append("no NVIDIA driver")
    else:
        parts.append(f"GPUs unknown ({gpus.problem or gpus.state})")
    return ", ".join([*parts, *([f"in {machine.container}"] if machine.container else [])])


def run_check(name: str, results: Iterable[Finding | NotChecked]) -> CheckResult:
    """Read the results of a check from its generator; an exception, or 20 s of CPU time, becomes the check's result."""
    try:
        with cpu_limit("this check", _CHECK_S):
            results = list(results)
    except NotApplicableError as error:
        return CheckResult(name, "skipped", str(error))
    except NoMachineError:
        results = [NotChecked("the machine", "it was not examined")]
    except (Exception, CpuLimitError) as error:  # noqa: BLE001 - a check that crashes is a result
        return CheckResult.of_error(name, error)
    findings = (item for item in results if isinstance(item, Finding))
    return CheckResult.of(name, findings, (item for item in results if isinstance(item, NotChecked)))
