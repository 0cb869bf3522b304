"""Build the plan's steps for variables, the machine, trainer options, and repairs, which may reinstall a package.

`finding_step` returns the step for a finding that is no known issue. `setting_steps` returns those of known issues;
the packages that they require are in `mitigation_constraints`, and the step of `package_steps.py` installs them.
"""

from textwrap import shorten

from diagnostics import fixes
from diagnostics.catalog import model
from diagnostics.catalog.mitigation_ranking import edits_for, recommended_fix
from diagnostics.catalog.model import Mitigation
from diagnostics.collect.python_environment import Environment
from diagnostics.doctor.checks.registry import CheckInput
from diagnostics.doctor.fix_plan.plan import Step
from diagnostics.doctor.installers import Installer
from diagnostics.doctor.requirements import Constraint, install_constraints
from diagnostics.findings import Finding, Severity
from diagnostics.fixes import Action, Advice, Explain, Install, SetOption, Unset
from diagnostics.frameworks import configuring_trainers
from diagnostics.output.redact import mask

Change = Install | SetOption
_MAX_EVIDENCE = 200


def setting_steps(findings: list[Finding], case: CheckInput, installer: Installer) -> list[Step]:
    """Return the steps that apply mitigations of known issues, except those that `mitigation_constraints` covers.

    A change that avoids several issues is one step.
    """
    merged: dict[tuple[Change, ...], list[tuple[Finding, Mitigation]]] = {}
    for finding, mitigation in _chosen_mitigations(findings, case):
        if not (is_certain(finding) and _required_installs(finding.code, mitigation, case.environment)):
            merged.setdefault(tuple(_edits(mitigation, case.environment)), []).append((finding, mitigation))
    return [_mitigation_step(edits, users, installer) for edits, users in merged.items()]


def mitigation_constraints(findings: list[Finding], case: CheckInput) -> list[Constraint]:
    """Return the requirements of the best mitigations that install packages.

    Only findings that certainly affect the user count: an issue that may never occur is no reason to change a release.
    """
    chosen = _chosen_mitigations([item for item in findings if is_certain(item)], case)
    installs = [_required_installs(finding.code, item, case.environment) for finding, item in chosen]
    return list(dict.fromkeys(constraint for constraints in installs for constraint in constraints))


def is_certain(finding: Finding) -> bool:
    """Return whether a finding is established or an error; a known issue of a release may never occur."""
    return finding.certainty == "established" or finding.severity >= Severity.ERROR


def reason_lines(finding: Finding) -> list[str]:
    """Return the reasons for a step: the finding's detail, or else its title, and its first two pieces of evidence."""
    evidence = [f"{item.text} [{item.place}]" for item in finding.evidence[:2]]
    return [
        f"{finding.code}: {fixes.one_line(finding.detail) or finding.title}",
        *(shorten(mask(text), _MAX_EVIDENCE, placeholder=" …") for text in evidence),
    ]


def _commands(finding: Finding) -> tuple[Action, ...]:
    """Return the commands of a finding's fix."""
    return tuple(item for item in finding.actions if not isinstance(item, Advice | SetOption | Explain))


def finding_step(finding: Finding) -> Step:
    """Return the step for a finding that is no known issue, with the commands and texts of its fix."""
    commands = _commands(finding)
    kind = "system" if finding.code[:3] in {"ENV", "MEM", "NET"} else "configuration"
    if any(isinstance(action, fixes.Uninstall) for action in commands):
        kind = "repair"
    elif commands and all(isinstance(action, Unset) for action in commands):
        kind = "variables"
    return Step(
        kind,
        finding.title,
        finding.severity,
        (finding.code,),
        tuple(reason_lines(finding)),
        finding.known_by,
        commands=commands,
        text=tuple(action for action in finding.actions if isinstance(action, Advice | SetOption)),
    )


def _chosen_mitigations(findings: list[Finding], case: CheckInput) -> list[tuple[Finding, Mitigation]]:
    """Return the findings whose best mitigation has an edit for this environment, with this mitigation."""
    results, environment = [], case.environment
    frameworks = configuring_trainers(environment.packages) or ("vllm",)
    for finding in findings:
        # Options of vLLM itself are no advice to users of a trainer for an issue that may never occur.
        usable = frameworks if finding.severity is Severity.INFO else (*frameworks, "vllm")
        issue = case.issues[finding.code]
        ranked = recommended_fix(issue, frameworks=frameworks, releases=environment.releases).offers[:1]
        chosen = [item for item in issue.mitigations if item.name in {first.mitigation for first in ranked}]
        chosen = [item for item in chosen if not {name for name, _ in item.edits}.isdisjoint(usable)]
        results += [(finding, mitigation) for mitigation in chosen if _edits(mitigation, environment)]
    return results


def _required_installs(code: str, mitigation: Mitigation, environment: Environment) -> list[Constraint]:
    installs = [edit for edit in _edits(mitigation, environment) if isinstance(edit, Install)]
    return [item for edit in installs for item in install_constraints(code, edit, mitigation.evidence)]


def _edits(mitigation: Mitigation, environment: Environment) -> list[Change]:
    """Return the edits for the installed trainers, else for vLLM itself; advice is no edit."""
    for required in (configuring_trainers(environment.packages), {"vllm"}):
        names = [name for name, _ in mitigation.edits if name in required]
        edits = edits_for(mitigation, names, environment.releases)
        if results := [edit for edit, _ in edits if not isinstance(edit, Advice)]:
            return results
    return []


def _mitigation_step(
    edits: tuple[Change, ...], users: list[tuple[Finding, Mitigation]], installer: Installer
) -> Step:
    """Return the step with edits that avoid the issues of `users`, and with their findings' commands."""
    first = users[0][1]
    codes = [finding.code for finding, _ in users]
    may_occur = all(finding.severity is Severity.INFO for finding, _ in users)
    failures = " or ".join(f'"{finding.title}"' for finding, _ in users)
    title = first.description[:1].upper() + first.description[1:]
    if may_occur:
        title = f"Only for {failures}: {first.description}"
    texts = [f"{finding.code} can occur in these releases: {finding.title}." for finding, _ in users]
    texts += [
        f"It does not help {finding.code} against: {', '.join(mitigation.fails)}."
        for finding, mitigation in users
        if mitigation.fails
    ]
    text = tuple(installer.translate(edit) if isinstance(edit, Install) else edit for edit in edits)
    return Step(
        "system" if all(code.startswith("ENV") for code in codes) else "configuration",
        title,
        max(finding.severity for finding, _ in users),
        tuple(codes),
        tuple(texts),
        min((item.evidence for _, item in users), key=model.EVIDENCE.index),
        cost=first.cost or "unknown",
        text=text,
        commands=tuple(dict.fromkeys(action for finding, _ in users for action in _commands(finding))),
        established=any(finding.certainty == "established" for finding, _ in users),
    )
