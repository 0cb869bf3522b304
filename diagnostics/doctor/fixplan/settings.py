"""Steps in the configuration: mitigations of known issues, in the words of the frameworks installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.catalog import model, offers
from diagnostics.doctor.fixplan import demands as wants
from diagnostics.frameworks import configured_in
from diagnostics.output.findings import Severity
from diagnostics.output.plans import Step
from diagnostics.output.remedies import Advice, Explain, Install

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.catalog.model import Issue, Mitigation
    from diagnostics.collect.environment import Environment
    from diagnostics.doctor.fixplan.installers import Installer
    from diagnostics.output.findings import Finding
    from diagnostics.output.remedies import Action, SetOption

    Edit = Install | SetOption


def demands_of(own: list[Finding], known: dict[str, Issue], environment: Environment) -> list[wants.Demand]:
    """What the chosen mitigations ask to install, where installing is all that they are.

    Only of findings that surely concern the user: other releases are no answer to what may never happen.
    """
    found = [
        demand
        for finding, mitigation in _chosen(own, known, environment)
        if sure(finding)
        for demand in _installs(finding.code, mitigation, environment)
    ]
    return list(dict.fromkeys(found))


def steps(
    own: list[Finding], known: dict[str, Issue], environment: Environment, installer: Installer
) -> list[Step]:
    """One step for each change of settings, however many known issues it avoids."""
    merged: dict[tuple[Edit, ...], list[tuple[Finding, Mitigation]]] = {}
    for finding, mitigation in _chosen(own, known, environment):
        if not (sure(finding) and _installs(finding.code, mitigation, environment)):
            merged.setdefault(tuple(_edits(mitigation, environment)), []).append((finding, mitigation))
    return [_step(edits, users, installer) for edits, users in merged.items()]


def sure(finding: Finding) -> bool:
    """Tells whether it concerns the user; a known issue of a release may never occur."""
    return finding.certainty == "established" or finding.severity >= Severity.ERROR


def _installs(code: str, mitigation: Mitigation, environment: Environment) -> list[wants.Demand]:
    """The requirements of a mitigation whose words are an installation and nothing more."""
    return [
        demand
        for edit in _edits(mitigation, environment)
        if isinstance(edit, Install)
        for demand in wants.of_install(code, edit, mitigation.evidence)
    ]


def _chosen(
    own: list[Finding], known: dict[str, Issue], environment: Environment
) -> list[tuple[Finding, Mitigation]]:
    """The first offer for each finding, as every other command has it, if there are words for it here."""
    found = []
    for finding in own:
        issue = known[finding.code]
        offered = offers.remedy(
            issue, frameworks=configured_in(environment.packages) or ("vllm",), releases=environment.releases
        ).offers[:1]
        by_name = {mitigation.name: mitigation for mitigation in issue.mitigations}
        chosen = [by_name[offer.mitigation] for offer in offered]
        found += [(finding, mitigation) for mitigation in chosen if _edits(mitigation, environment)]
    return found


def _step(edits: tuple[Edit, ...], users: list[tuple[Finding, Mitigation]], installer: Installer) -> Step:
    first = users[0][1]
    why = [f"{finding.code} can happen in these releases: {finding.title}." for finding, _ in users]
    why += [
        f"It does not help {finding.code} against: {', '.join(mitigation.fails)}."
        for finding, mitigation in users
        if mitigation.fails
    ]
    worst = max(users, key=lambda user: user[0].severity)[0].severity
    return Step(
        kind="system" if all(finding.code.startswith("ENV") for finding, _ in users) else "configuration",
        title=f"{first.name}: {first.about}",
        severity=worst,
        codes=tuple(finding.code for finding, _ in users),
        why=tuple(why),
        known_by=min((mitigation.evidence for _, mitigation in users), key=model.EVIDENCE.index),
        cost=first.cost or "not known",
        undo=(Advice("take the setting back"),),
        text=tuple(installer.translated(edit) if isinstance(edit, Install) else edit for edit in edits)
        or (Advice(first.about),),
        commands=tuple(dict.fromkeys(action for finding, _ in users for action in _commands(finding))),
        established=any(finding.certainty == "established" for finding, _ in users),
    )


def _commands(finding: Finding) -> list[Action]:
    """What a check made out itself; to read more is none."""
    actions = finding.remedy.actions if finding.remedy else ()
    return [action for action in actions if not isinstance(action, Advice | Explain)]


def _edits(mitigation: Mitigation, environment: Environment) -> list[Edit]:
    """The edits for the trainers installed, else for vLLM itself; what had better not be done is none."""
    trainers = configured_in(environment.packages)
    for wanted in (trainers, {"vllm"}):
        names = [name for name, _ in mitigation.edits if name in wanted]
        known = offers.edits_for(mitigation, names, environment.releases)
        found = [edit for edit, _ in known if not isinstance(edit, Advice)]
        if found:
            return found
    return []


def releases_in(breadth: Mapping[str, Any]) -> set[str]:
    """All vLLM releases that the static part of the table speaks of."""
    return {
        version
        for known in breadth.values()
        for layer in known.values()
        if isinstance(layer, dict)
        for versions in layer.values()
        for version in str(versions).split()
    }
