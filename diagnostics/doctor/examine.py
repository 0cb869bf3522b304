"""`doctor`: an environment judged from its metadata and its machine, without importing anything of it."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from diagnostics import catalog
from diagnostics.doctor.checks import BY_NAME
from diagnostics.doctor.checks.registered import DoctorCheck, Examined, asked, needs
from diagnostics.frameworks import PACKAGES
from diagnostics.output.findings import CheckResult, NotJudged, Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.catalog.model import Issue
    from diagnostics.collect.compat import Compat
    from diagnostics.collect.environment import Environment
    from diagnostics.collect.machine import Machine

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
    examined = Examined(environment, issues, compat, machine)
    results = tuple(result(name, checks, examined) for name, checks in BY_NAME.items())
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
        seen,
        f"compatibility table of {compat.generated}" if compat.generated else compat.problem,
    )
    return Report(tool="doctor", subject=subject, checks=results, notes=notes, how=STATIC)


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
    return catalog.load()


def result(name: str, checks: Sequence[DoctorCheck], examined: Examined) -> CheckResult:
    """The outcome of a check: its findings, why there are none, what of it was not judged."""
    if examined.machine is None and any("machine" in needs(check.look) for check in checks):
        return CheckResult.of(name, (), [NotJudged("the machine", "nobody looked at it")])
    try:
        skip = next((why for check in checks if check.skip and (why := asked(check.skip, examined))), "")
        if skip:
            return CheckResult(name, "skipped", skip)
        found = tuple(finding for check in checks for finding in asked(check.look, examined))
        unread = [each for check in checks if check.not_judged for each in asked(check.not_judged, examined)]
    except Exception as error:  # noqa: BLE001 - a check that crashes is a result
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        return CheckResult(name, "crashed", f"{type(error).__name__}: {error} ({place}); please report it")
    return CheckResult.of(name, found, unread)
