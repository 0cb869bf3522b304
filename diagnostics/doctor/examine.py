"""`doctor`: an environment judged from its metadata and its machine, without importing anything of it."""

from __future__ import annotations

import traceback
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from diagnostics import catalogue
from diagnostics.doctor.checks import binaries, drivers, host, ray_clusters
from diagnostics.doctor.checks import variables as settings
from diagnostics.doctor.checks.compatibility import compatibility
from diagnostics.doctor.checks.declared import declared
from diagnostics.doctor.checks.default_files import default_files
from diagnostics.doctor.checks.known_issues import known_issues, not_judged
from diagnostics.doctor.checks.processors import processors
from diagnostics.doctor.checks.surroundings import broken_metadata, variables
from diagnostics.frameworks import ENGINES, PACKAGES, TRAINERS
from diagnostics.report.findings import CheckResult, Finding, Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from diagnostics.catalogue.model import Issue
    from diagnostics.facts.compat import Compat
    from diagnostics.facts.environment import Environment
    from diagnostics.facts.machine import Machine

STATIC = "static: read from files; nothing was imported, so what is installed may still fail to start (--tier probe)"


def examine(
    environment: Environment, issues: dict[str, Issue], compat: Compat, machine: Machine | None = None
) -> Report:
    """Runs every check of the static tier; one that crashes is a result, not the end of the rest.

    Args:
        environment: The packages and variables.
        issues: The catalogue.
        compat: The table of pairs that were run.
        machine: What is under the environment; without it the checks of the machine are skipped, and say so.
    """
    missing = _missing_pair(environment)
    nothing = _nothing_to_judge(environment)
    checks = [
        run_check("package metadata", lambda: broken_metadata(environment)),
        _known_issues(environment, issues, nothing),
        run_check(
            "compatibility table", lambda: compatibility(environment, compat), skip=missing or compat.problem
        ),
        run_check("declared requirements", lambda: declared(environment), skip=nothing),
        run_check(
            "compiled modules",
            lambda: binaries.extensions(environment),
            skip="" if environment.extensions else "no compiled module of vLLM or flash-attn is here",
        ),
        run_check("mixed builds", lambda: binaries.mixtures(environment) + binaries.pythons(environment)),
        run_check("environment variables", lambda: _variables(environment, issues)),
        *_of_machine(environment, issues, machine),
    ]
    packages = {name: version for name in PACKAGES if (version := environment.version(name))}
    subject = {
        "prefix": environment.prefix,
        "python": environment.python,
        "packages": packages,
        "free_disk_gb": environment.free_disk_gb,
        "shared_memory_gb": environment.shared_memory_gb,
        "machine": _summary(machine) if machine else "not looked at",
    }
    seen = f"machine: {_summary(machine)}" if machine else "the machine was not looked at"
    notes = (
        STATIC,
        seen,
        f"compatibility table of {compat.generated}" if compat.generated else compat.problem,
    )
    return Report(tool="doctor", subject=subject, checks=tuple(checks), notes=notes)


def _known_issues(environment: Environment, issues: dict[str, Issue], nothing: str) -> CheckResult:
    """The check of known issues; of a release that can't be read it says that it was not judged."""
    result = run_check("known issues", lambda: known_issues(environment, issues), skip=nothing)
    unread = "" if nothing else not_judged(environment, issues)
    if not unread or result.outcome == "crashed":
        return result
    return replace(result, outcome="skipped" if result.outcome == "ok" else result.outcome, reason=unread)


def _variables(environment: Environment, issues: dict[str, Issue]) -> list[Finding]:
    return [
        *variables(environment),
        *settings.proxies(environment),
        *settings.communication(environment),
        *settings.allocator(environment, issues),
        *settings.unknown_to_vllm(environment),
        *settings.launcher(environment),
        *settings.debugging(environment),
        *settings.elsewhere(environment),
        *ray_clusters.ray_settings(environment),
    ]


def _of_machine(
    environment: Environment, issues: dict[str, Issue], machine: Machine | None
) -> list[CheckResult]:
    """The checks that need facts of the machine."""
    checks: dict[str, Callable[[Machine], list[Finding]]] = {
        "shared memory": lambda seen: host.shared_memory(seen, issues),
        "limits": lambda seen: host.limits(seen, issues),
        "disks": lambda seen: [
            *host.disks(seen, issues), *settings.hub(environment, seen, issues)
        ],
        "memory": lambda seen: host.memory(environment, seen),
        "processors": lambda seen: processors(environment, seen),
        "system libraries": lambda seen: binaries.libraries(environment, seen),
        "GPU driver": lambda seen: drivers.drivers(environment, seen, issues),
        "GPUs": lambda seen: drivers.devices(environment, seen, issues),
        "network devices": lambda seen: settings.devices_named(environment, seen),
        "Ray": lambda seen: ray_clusters.ray_clusters(environment, seen, issues),
        "default files": default_files,
    }  # fmt: skip
    if machine is None:
        return [CheckResult(name, "skipped", "the machine was not looked at") for name in checks]
    skips = _nothing_there(environment, machine)
    return [
        run_check(name, partial(check, machine), skip=skips.get(name, "")) for name, check in checks.items()
    ]


def _nothing_there(environment: Environment, machine: Machine) -> dict[str, str]:
    """Checks for which there is nothing to look at, and why."""
    skips = {}
    silent = machine.gpus.state == "none" and not machine.gpus.module and not machine.gpus.nodes
    if silent:
        skips["GPU driver"] = skips["GPUs"] = (
            "no NVIDIA driver found; that is no fault on a machine without GPUs"
        )
    elif machine.gpus.state != "ok":
        skips["GPUs"] = f"the driver told nothing of them: {machine.gpus.problem or machine.gpus.state}"
    if environment.version("ray") is None:
        skips["Ray"] = "Ray is not installed"
    if not machine.configs:
        skips["default files"] = "there is none"
    if not machine.limits:
        skips["limits"] = "this system tells none"
    return skips


def _summary(machine: Machine) -> str:
    """One line about the machine."""
    told = [f"{machine.processors.usable:g} of {machine.processors.count} processors"]
    memory = machine.memory.limit_gb or machine.memory.total_gb
    if memory is not None:
        told.append(f"{memory:g} GB of memory")
    gpus = machine.gpus
    if gpus.state == "ok":
        kinds = sorted({gpu.name for gpu in gpus.devices})
        told.append(f"{len(gpus.devices)} GPUs ({', '.join(kinds)}), driver {gpus.driver}")
    else:
        told.append(
            "no NVIDIA driver" if gpus.state == "none" else f"GPUs not known ({gpus.problem or gpus.state})"
        )
    inside = f", in {machine.container}" if machine.container else ""
    return f"{', '.join(told)}{inside}"


def load_catalogue() -> dict[str, Issue]:
    """The shipped entries."""
    return catalogue.load()


def run_check(name: str, check: Callable[[], list[Finding]], skip: str = "") -> CheckResult:
    """The outcome of a check: its findings, or why there are none."""
    if skip:
        return CheckResult(name, "skipped", skip)
    try:
        findings = check()
    except Exception as error:  # noqa: BLE001 - a check that crashes is a result
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        return CheckResult(name, "crashed", f"{type(error).__name__}: {error} ({place}); please report it")
    return CheckResult(name, "findings" if findings else "ok", "", tuple(findings))


def _nothing_to_judge(environment: Environment) -> str:
    known = {*ENGINES, *TRAINERS}
    if known & set(environment.packages):
        return ""
    return f"none of {', '.join(sorted(known))} is installed in {environment.prefix}"


def _missing_pair(environment: Environment) -> str:
    missing = [
        name
        for name, there in (("vLLM", environment.vllm), ("TRL", environment.packages.get("trl")))
        if not there
    ]
    return f"{' and '.join(missing)} not installed" if missing else ""
