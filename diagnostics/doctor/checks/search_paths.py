"""Where Python looks for modules: what is found before what was installed, and what is not found any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.catalog.own_codes import finding, known
from diagnostics.doctor.checks.registered import check
from diagnostics.doctor.installing import ANEW, distribution_of, install, requirement
from diagnostics.output.findings import Evidence, NotJudged, Severity
from diagnostics.output.remedies import Advice, Remedy, Unset

if TYPE_CHECKING:
    from diagnostics.catalog.model import Issue
    from diagnostics.collect.environment import Environment
    from diagnostics.collect.modules import Shadow
    from diagnostics.output.findings import Finding

_WORKING = "the working folder"
_MOST_TOLD = 6


def _unread(environment: Environment) -> list[NotJudged]:
    """What adds to the path and could not be read."""
    return [
        NotJudged("the search path", f"a part of it could not be read: {why}", "make it readable", place)
        for place, why in environment.search.unread
    ]


@check("search path", not_judged=_unread)
def shadows(environment: Environment) -> list[Finding]:
    """ENV925 where something else is found under the name of an installed package, or of Python's own module."""
    by_source: dict[tuple[str, Severity], list[Shadow]] = {}
    for shadow in environment.shadows:
        by_source.setdefault((shadow.source, _severity(shadow)), []).append(shadow)
    return [_shadowed(source, severity, found) for (source, severity), found in by_source.items()]


def _severity(shadow: Shadow) -> Severity:
    """Another copy may be meant; a file that happens to have the name is not. Who runs from elsewhere has neither."""
    if shadow.source == _WORKING:
        return Severity.WARNING
    return Severity.WARNING if shadow.whole else Severity.ERROR


def _shadowed(source: str, severity: Severity, found: list[Shadow]) -> Finding:
    # A script has its own folder in the path, `python -m` the one where it is started.
    where = "a script in it, or python -m started in it," if source == _WORKING else "a run"
    rest = len(found) - _MOST_TOLD
    return finding(
        "ENV925",
        severity,
        known_by="static",
        certainty="supported" if severity is Severity.WARNING else "established",
        detail=f"Because of {source} {where} finds these before what is installed: "
        f"{', '.join(each.module for each in found[:_MOST_TOLD])}{f' and {rest} more' if rest > 0 else ''}.",
        evidence=tuple(
            Evidence(f"{each.module} is found here before {each.hidden}, by {source}", each.place)
            for each in found[:_MOST_TOLD]
        ),
        remedy=Remedy(
            (
                Advice(_advice(source, found[0], more=len(found) > 1)),
                *([Unset((source,))] if source == "PYTHONPATH" else []),
            )
        ),
    )


def _advice(source: str, first: Shadow, *, more: bool) -> str:
    if source == _WORKING:
        others = " and the others" if more else ""
        return (
            f"Keep the script and the start of the run out of this folder, or rename {first.place}{others}."
        )
    if source == "PYTHONPATH":
        return "Take the folder out of PYTHONPATH unless what lies there is meant."
    if source.startswith("the user"):
        return "Set PYTHONNOUSERSITE=1, or uninstall the user's own copy."
    return f"Remove what names the folder: {source}."


@check("search path")
def lost(environment: Environment) -> list[Finding]:
    """ENV926 where a package that a run needs is installed and its module is nowhere; or a `.pth` names nothing."""
    found = [
        finding(
            "ENV926",
            Severity.ERROR,
            known_by="static",
            detail=f"{package.name} {package.version} was installed from a folder that is no longer where it was.",
            evidence=(
                Evidence("its module is on no place of the search path", package.place),
                *_stale(environment),
            ),
            remedy=Remedy.of(
                "Install it again from where its folder is now, or its release.",
                # To an installer that release is there already.
                install(environment, f"{package.name}=={package.version}", options=ANEW),
            ),
        )
        for package in environment.packages.values()
        if package.lost
    ]
    stale = _stale(environment)
    if stale and not found:
        found.append(
            finding(
                "ENV926",
                Severity.WARNING,
                known_by="static",
                detail="Modules that lay only there are not found; where nothing asks for them, nothing is lost.",
                evidence=stale,
                remedy=Remedy.of(
                    "Install it again from where its folder is now, or take out the line or the file that names it."
                ),
            )
        )
    return found


def _stale(environment: Environment) -> tuple[Evidence, ...]:
    gone = [
        Evidence(f"{entry.path} is not there", entry.source)
        for entry in environment.search.entries
        if entry.kind == "pth" and entry.state == "not there"
    ]
    gone += [
        Evidence(f"{entry.module} leads to {entry.path}, which is not there", entry.source)
        for entry in environment.search.editable
        if entry.state
    ]
    return tuple(gone[:_MOST_TOLD])


def _no_entry(environment: Environment) -> str:
    return "" if environment.entry_points else "no trainer is installed whose beginning it knows"


def _not_followed(environment: Environment) -> list[NotJudged]:
    return [
        NotJudged(
            f"what {entry.module} imports",
            f"it could not be followed: {entry.problem}",
            "--tier probe imports it",
            # A package without a list of files says of no file that it should be there.
            decides=not entry.absent,
        )
        for entry in environment.entry_points
        if entry.problem
    ]


@check("entry points", skip=_no_entry, not_judged=_not_followed)
def entry_points(environment: Environment, issues: dict[str, Issue]) -> list[Finding]:
    """ENV012 where a module that a run imports whatever its settings is on no place of the search path."""
    lacking: dict[str, Evidence] = {}
    for entry in environment.entry_points:
        for module, place in entry.missing:
            text = f"{entry.module} imports {module}, which is nowhere on the search path"
            lacking.setdefault(module, Evidence(text, place))
    if not lacking:
        return []
    wanted = [requirement(environment, distribution_of(module)) for module in lacking]
    return [
        known(
            issues["ENV012"],
            Severity.ERROR,
            certainty="established",
            detail=f"Not there: {', '.join(lacking)}. Each is imported with its module, under no condition.",
            evidence=tuple(lacking.values())[:_MOST_TOLD],
            remedy=Remedy.of(
                "Install what lacks, in a release that the trainer asks for.",
                install(environment, *dict.fromkeys(wanted)),
            ),
        )
    ]
