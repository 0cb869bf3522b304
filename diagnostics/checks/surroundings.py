"""Broken metadata, and environment variables that change what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from diagnostics.checks.codes import CODES
from diagnostics.findings import Evidence, Finding, Remedy, Severity

if TYPE_CHECKING:
    from diagnostics.facts.environment import Environment


def broken_metadata(environment: Environment) -> list[Finding]:
    """One finding for all broken metadata folders, one for each package that is there twice."""
    found = []
    if environment.broken:
        found.append(
            _finding(
                "ENV901",
                Severity.ERROR,
                "These metadata folders have no name or version.",
                tuple(Evidence("no name or version", place) for place in environment.broken),
                Remedy("Remove these folders and install their packages again."),
            )
        )
    for name, places in environment.duplicates:
        found.append(
            _finding(
                "ENV901",
                Severity.WARNING,
                f"{name} is installed more than once; Python finds the first.",
                tuple(Evidence(f"{name}", place) for place in places),
                Remedy(
                    f"Uninstall {name} until it is gone, then install it once.",
                    (environment.uninstall(name),),
                ),
            )
        )
    return found


def variables(environment: Environment) -> list[Finding]:
    """Findings about environment variables of this process."""
    found = []
    address = environment.variables.get("RAY_ADDRESS", "")
    if address.startswith(("http://", "https://")):
        found.append(
            _finding(
                "ENV902",
                Severity.ERROR,
                "A process that calls ray.init() with this address fails.",
                (Evidence(f"RAY_ADDRESS={address}", "environment"),),
                Remedy(
                    "Unset it, or give the address of the cluster itself (ip:6379).", ("unset RAY_ADDRESS",)
                ),
            )
        )
    vllm = environment.vllm
    if environment.variables.get("VLLM_USE_V1") == "0" and vllm and _at_least(vllm.version, "0.11"):
        found.append(
            _finding(
                "ENV903",
                Severity.WARNING,
                f"vLLM {vllm.version} has only the V1 engine.",
                (
                    Evidence("VLLM_USE_V1=0", "environment"),
                    Evidence(f"{vllm.name} {vllm.version}", vllm.place),
                ),
                Remedy("Unset it; for the V0 engine install a release before 0.11.", ("unset VLLM_USE_V1",)),
            )
        )
    return found


def _at_least(version: str, bound: str) -> bool:
    try:
        return Version(version) >= Version(bound)
    except InvalidVersion:
        return False


def _finding(
    code: str, severity: Severity, detail: str, evidence: tuple[Evidence, ...], remedy: Remedy
) -> Finding:
    return Finding(
        code=code,
        title=CODES[code][0],
        severity=severity,
        certainty="established",
        known_by="static",
        detail=detail,
        evidence=evidence,
        remedy=remedy,
    )
