"""Report why imports fail or find another module: hidden and missing modules, and folders that do not exist.

The facts are those of the search path, which `diagnostics.collect` computed. What could not be read or followed is
reported as not checked.
"""

from collections.abc import Iterator

from diagnostics.collect.module_lookup import Shadow
from diagnostics.doctor.checks.registry import CheckInput, NotApplicableError, check, finding
from diagnostics.doctor.installers import REINSTALL, install
from diagnostics.doctor.requirements import distribution_of, requirement_of
from diagnostics.findings import Evidence, Finding, NotChecked, Severity
from diagnostics.fixes import Fix, Unset, join_some

_WORKING = "the working folder"
_MAX_LISTED = 6


@check("search path")
def unread_search_path(case: CheckInput) -> Iterator[NotChecked]:
    """Report parts of the search path that could not be read."""
    for place, reason in case.environment.search.unread:
        problem = f"a part of it could not be read: {reason}"
        yield NotChecked("the search path", problem, "make it readable", place)


@check("search path")
def shadows(case: CheckInput) -> Iterator[Finding]:
    """Report modules that hide an installed package or a standard library module (ENV925)."""
    groups: dict[tuple[str, Severity], list[Shadow]] = {}
    for shadow in case.environment.shadows:
        # A copy of a whole package may be intended, and a run may avoid the working folder.
        may_be_harmless = shadow.source == _WORKING or shadow.whole
        severity = Severity.WARNING if may_be_harmless else Severity.ERROR
        groups.setdefault((shadow.source, severity), []).append(shadow)
    for (source, severity), members in groups.items():
        # For a script, its own folder is on the search path; for `python -m`, the folder in which it is started.
        where = "a script in it, or python -m started in it," if source == _WORKING else "a run"
        names = join_some([item.module for item in members], _MAX_LISTED)
        evidence = [
            Evidence(f"{item.module} is found here before {item.hidden}, because of {source}", item.place)
            for item in members[:_MAX_LISTED]
        ]
        advice = f"Rename or remove {members[0].place} and others, or take the folder off the search path."
        if source.startswith("the user"):
            advice = "Set PYTHONNOUSERSITE=1, or uninstall the user's own copy."
        fix = Fix.of(advice, *([Unset((source,))] if source == "PYTHONPATH" else []))
        detail = f"Because of {source}, {where} imports these instead of the installed modules: {names}."
        certainty = "supported" if severity is Severity.WARNING else "established"
        yield finding("ENV925", severity, evidence, fix, detail, certainty=certainty)


@check("search path")
def missing_folders(case: CheckInput) -> Iterator[Finding]:
    """Report editable installs and lines of `.pth` files whose path does not exist (ENV926)."""
    environment, search = case.environment, case.environment.search
    stale = [
        Evidence("this line names a path that does not exist", entry.source)
        for entry in search.entries
        if entry.kind == "pth" and entry.state == "not there"
    ]
    stale += [
        Evidence(f"{entry.module} leads to {entry.path}, which does not exist", entry.source)
        for entry in search.editable
        if entry.state
    ]
    stale = stale[:_MAX_LISTED]
    lost = [package for package in environment.packages.values() if package.lost]
    for package in lost:
        evidence = [Evidence("its module is nowhere on the search path", package.place), *stale]
        advice = f"Reinstall {package.name} from its folder's new location, or install its release."
        # The installer considers this release installed, so it needs the options.
        again = install(environment, f"{package.name}=={package.version}", options=REINSTALL)
        detail = f"{package} was installed from a folder that no longer exists."
        yield finding("ENV926", Severity.ERROR, evidence, Fix.of(advice, again), detail)
    if stale and not lost:
        advice = "Reinstall the package from its new location, or delete the line that names the folder."
        detail = "Modules of that folder cannot be imported. If nothing imports them, no run is affected."
        yield finding("ENV926", Severity.WARNING, stale, Fix.of(advice), detail)


@check("entry points")
def entry_points(case: CheckInput) -> Iterator[Finding | NotChecked]:
    """Report modules that a trainer's entry module imports and that are nowhere on the search path (ENV012).

    An entry module whose imports could not be followed is reported as not checked.
    """
    entries = case.environment.entry_points
    if not entries:
        raise NotApplicableError("no trainer with a known entry module is installed")
    missing: dict[str, Evidence] = {}
    for entry in entries:
        if entry.problem:
            what, problem = f"imports of {entry.module}", f"not followed, {entry.problem}"
            # Without the package it is unknown whether the module should exist.
            yield NotChecked(what, problem, "--tier probe imports it", decides=not entry.absent)
        for module, place in entry.missing:
            text = f"{entry.module} imports {module}, which is nowhere on the search path"
            missing.setdefault(module, Evidence(text, place))
    if missing:
        required = dict.fromkeys(requirement_of(case.environment, distribution_of(item)) for item in missing)
        advice = "Install the missing packages, in releases that the trainer accepts."
        fix = Fix.of(advice, install(case.environment, *required))
        evidence = list(missing.values())[:_MAX_LISTED]
        detail = f"Missing: {', '.join(missing)}. Each is imported unconditionally."
        yield finding("ENV012", Severity.ERROR, evidence, fix, detail, certainty="established")
