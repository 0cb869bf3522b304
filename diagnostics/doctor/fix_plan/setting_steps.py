"""Steps in the configuration: mitigations of known issues, as options of the installed frameworks."""

from __future__ import annotations

from diagnostics.catalog import model
from diagnostics.catalog.mitigation_ranking import edits_for, recommended_fix
from diagnostics.catalog.model import Issue, Mitigation
from diagnostics.collect.packages import Environment
from diagnostics.doctor.fix_plan.constraints import Constraint, install_constraints
from diagnostics.doctor.fix_plan.model import Step
from diagnostics.doctor.installers import Installer
from diagnostics.findings import Finding, Severity
from diagnostics.fixes import Action, Advice, Explain, Install, SetOption
from diagnostics.frameworks import configured_in

Change = Install | SetOption


def mitigation_constraints(
    own: list[Finding], known: dict[str, Issue], environment: Environment
) -> list[Constraint]:
    """Return what the chosen mitigations install, if installing is all they do.

    Only of findings that surely affect the user: other releases are no answer to what may never happen.
    """
    results = [
        constraint
        for finding, mitigation in _chosen_mitigations(own, known, environment)
        if is_certain(finding)
        for constraint in _installs(finding.code, mitigation, environment)
    ]
    return list(dict.fromkeys(results))


def setting_steps(
    own: list[Finding], known: dict[str, Issue], environment: Environment, installer: Installer
) -> list[Step]:
    """Return one step for each change of settings, however many known issues it avoids."""
    merged: dict[tuple[Change, ...], list[tuple[Finding, Mitigation]]] = {}
    for finding, mitigation in _chosen_mitigations(own, known, environment):
        if not (is_certain(finding) and _installs(finding.code, mitigation, environment)):
            merged.setdefault(tuple(_edits(mitigation, environment)), []).append((finding, mitigation))
    return [_step(edits, users, installer) for edits, users in merged.items()]


def is_certain(finding: Finding) -> bool:
    """Return whether a finding surely affects the user; a known issue of a release may never occur."""
    return finding.certainty == "established" or finding.severity >= Severity.ERROR


def _installs(code: str, mitigation: Mitigation, environment: Environment) -> list[Constraint]:
    return [
        constraint
        for edit in _edits(mitigation, environment)
        if isinstance(edit, Install)
        for constraint in install_constraints(code, edit, mitigation.evidence)
    ]


def _chosen_mitigations(
    own: list[Finding], known: dict[str, Issue], environment: Environment
) -> list[tuple[Finding, Mitigation]]:
    """Return the first recommended mitigation of each finding that has an edit for this environment."""
    results = []
    frameworks = configured_in(environment.packages) or ("vllm",)
    for finding in own:
        issue = known[finding.code]
        by_name = {mitigation.name: mitigation for mitigation in issue.mitigations}
        ranked = recommended_fix(issue, frameworks=frameworks, releases=environment.releases).offers[:1]
        chosen = [by_name[item.mitigation] for item in ranked]
        results += [(finding, mitigation) for mitigation in chosen if _edits(mitigation, environment)]
    return results


def _step(edits: tuple[Change, ...], users: list[tuple[Finding, Mitigation]], installer: Installer) -> Step:
    first = users[0][1]
    reason = [f"{finding.code} can occur in these releases: {finding.title}." for finding, _ in users]
    reason += [
        f"It does not help {finding.code} against: {', '.join(mitigation.fails)}."
        for finding, mitigation in users if mitigation.fails
    ]  # fmt: skip
    system = all(finding.code.startswith("ENV") for finding, _ in users)
    text = tuple(installer.translate(edit) if isinstance(edit, Install) else edit for edit in edits)
    return Step(
        kind="system" if system else "configuration", title=f"{first.name}: {first.about}",
        severity=max(finding.severity for finding, _ in users), codes=tuple(finding.code for finding, _ in users),
        why=tuple(reason), known_by=min((item.evidence for _, item in users), key=model.EVIDENCE.index),
        cost=first.cost or "unknown", undo=(Advice("set the option back"),), text=text or (Advice(first.about),),
        commands=tuple(dict.fromkeys(action for finding, _ in users for action in _commands(finding))),
        established=any(finding.certainty == "established" for finding, _ in users),
    )  # fmt: skip


def _commands(finding: Finding) -> list[Action]:
    """Return the commands that the check itself recommends."""
    actions = finding.remedy.actions if finding.remedy else ()
    return [action for action in actions if not isinstance(action, Advice | SetOption | Explain)]


def _edits(mitigation: Mitigation, environment: Environment) -> list[Change]:
    """Return the edits for the installed trainers, else for vLLM itself; advice is no edit."""
    for required in (configured_in(environment.packages), {"vllm"}):
        names = [name for name, _ in mitigation.edits if name in required]
        edits = edits_for(mitigation, names, environment.releases)
        results = [edit for edit, _ in edits if not isinstance(edit, Advice)]
        if results:
            return results
    return []
