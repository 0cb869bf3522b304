"""Broken metadata, and environment variables that change what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from diagnostics.catalog.own_codes import finding
from diagnostics.doctor.checks.registered import check
from diagnostics.doctor.installing import ANEW, install, uninstall
from diagnostics.output.findings import Evidence, NotJudged, Severity
from diagnostics.output.remedies import Remedy, Run, Unset

if TYPE_CHECKING:
    from diagnostics.collect.environment import Environment, Package
    from diagnostics.output.findings import Finding

_MOST_TOLD = 6


def _unread(environment: Environment) -> list[NotJudged]:
    """Metadata and lists of files that are there and could not be read."""
    of_the_path = set(environment.search.unread)
    return [
        NotJudged("an installed package", f"its metadata could not be read: {why}", "make it readable", place)
        for place, why in environment.unread
        if (place, why) not in of_the_path
    ]


@check("package metadata", not_judged=_unread)
def broken_metadata(environment: Environment) -> list[Finding]:
    """One finding for all broken metadata folders, one for each package that is there twice or not whole."""
    found = []
    if environment.broken:
        aside = all("/~" in place for place in environment.broken)
        found.append(
            finding(
                "ENV901",
                # What an installer set aside under a tilde is in nobody's way.
                Severity.WARNING if aside else Severity.ERROR,
                known_by="static",
                detail="These metadata folders have no name or version that packaging allows.",
                evidence=tuple(
                    Evidence("no name or version that packaging allows", place)
                    for place in environment.broken
                ),
                remedy=Remedy.of(
                    "Remove these folders."
                    if aside
                    else "Remove these folders and install their packages again.",
                    Run(("rm", "-r", *environment.broken)),
                ),
            )
        )
    found += [damaged(environment, package) for package in environment.packages.values() if package.damaged]
    for name, places in environment.duplicates:
        found.append(
            finding(
                "ENV901",
                Severity.WARNING,
                known_by="static",
                detail=f"{name} is installed more than once; Python finds the first.",
                evidence=tuple(Evidence(f"{name}", place) for place in places),
                remedy=Remedy.of(
                    f"Uninstall {name} until it is gone, then install it once.",
                    uninstall(environment, name),
                ),
            )
        )
    return found


def damaged(environment: Environment, package: Package) -> Finding:
    """ENV923 for a package that is not whole."""
    again = install(environment, f"{package.name}=={package.version}", options=ANEW)
    rest = len(package.damaged) - _MOST_TOLD
    more = f" Of other files of it, {rest} or more are gone or not as long as they were." if rest > 0 else ""
    return finding(
        "ENV923",
        Severity.ERROR,
        known_by="static",
        detail=f"{package.name} {package.version} is not whole.{more}",
        evidence=tuple(Evidence(text, f"{package.place}/RECORD") for text in package.damaged[:_MOST_TOLD]),
        remedy=Remedy.of(
            "See that the disk has room, then install it again; if it comes back, clear the installer's cache.",
            Run(("df", "-h", environment.prefix)),
            again,
        ),
    )


@check("environment variables")
def variables(environment: Environment) -> list[Finding]:
    """Findings about environment variables of this process."""
    found = []
    address = environment.variables.get("RAY_ADDRESS", "")
    if address.startswith(("http://", "https://")):
        found.append(
            finding(
                "ENV902",
                Severity.ERROR,
                known_by="static",
                detail="A process that calls ray.init() with this address fails.",
                evidence=(Evidence(f"RAY_ADDRESS={address}", "environment"),),
                remedy=Remedy.of(
                    "Unset it, or give the address of the cluster itself (ip:6379).", Unset(("RAY_ADDRESS",))
                ),
            )
        )
    vllm = environment.vllm
    if environment.variables.get("VLLM_USE_V1") == "0" and vllm and _at_least(vllm.version, "0.11"):
        found.append(
            finding(
                "ENV903",
                Severity.WARNING,
                known_by="static",
                detail=f"vLLM {vllm.version} has only the V1 engine.",
                evidence=(
                    Evidence("VLLM_USE_V1=0", "environment"),
                    Evidence(f"{vllm.name} {vllm.version}", vllm.place),
                ),
                remedy=Remedy.of(
                    "Unset it; for the V0 engine install a release before 0.11.", Unset(("VLLM_USE_V1",))
                ),
            )
        )
    return found


def _at_least(version: str, bound: str) -> bool:
    try:
        return Version(version) >= Version(bound)
    except InvalidVersion:
        return False
