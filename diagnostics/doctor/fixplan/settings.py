"""Steps in the configuration: mitigations of known issues, in the words of the frameworks installed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from diagnostics.catalogue import model
from diagnostics.doctor.fixplan import demands as wants
from diagnostics.frameworks import configured_in
from diagnostics.report.findings import Severity
from diagnostics.report.plans import Step
from diagnostics.report.remedies import Advice, Explain, Install

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from diagnostics.catalogue.model import Affected, Issue, Mitigation
    from diagnostics.doctor.fixplan.installers import Installer
    from diagnostics.facts.environment import Environment
    from diagnostics.report.findings import Finding
    from diagnostics.report.remedies import Action, SetOption

    Edit = Install | SetOption


def demands_of(own: list[Finding], known: dict[str, Issue], environment: Environment) -> list[wants.Demand]:
    """What the chosen mitigations ask to install, where installing is all that they are.

    Only of findings that surely concern the user: other releases are no answer to what may never happen.
    """
    found = [
        demand
        for finding, mitigation in _chosen(own, known, environment)
        if _sure(finding)
        for demand in _installs(finding.code, mitigation, environment)
    ]
    return list(dict.fromkeys(found))


def steps(
    own: list[Finding], known: dict[str, Issue], environment: Environment, installer: Installer
) -> list[Step]:
    """One step for each change of settings, however many known issues it avoids."""
    merged: dict[tuple[Edit, ...], list[tuple[Finding, Mitigation]]] = {}
    for finding, mitigation in _chosen(own, known, environment):
        if not (_sure(finding) and _installs(finding.code, mitigation, environment)):
            merged.setdefault(tuple(_edits(mitigation, environment)), []).append((finding, mitigation))
    return [_step(edits, users, installer) for edits, users in merged.items()]


def _sure(finding: Finding) -> bool:
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
    """The best mitigation of each finding that has one.

    What a run showed comes first, then what can be said in the words of the trainer that is here, then what helps
    against every trigger, then what helps against other known issues too. Other releases come last where it is not
    sure that the issue occurs at all.
    """
    popular = Counter(
        edit
        for finding in own
        for mitigation in known[finding.code].mitigations
        for edit in _edits(mitigation, environment)
    )

    def rank(finding: Finding, mitigation: Mitigation) -> tuple[object, ...]:
        edits = _edits(mitigation, environment)
        return (
            not _sure(finding) and bool(_installs(finding.code, mitigation, environment)),
            -model.EVIDENCE.index(mitigation.evidence),
            all(edit.framework == "vllm" for edit in edits) and bool(configured_in(environment.packages)),
            len(mitigation.fails) > 0,
            -max(popular[edit] for edit in edits),
            len(mitigation.fails) - len(mitigation.helps),
        )

    found = []
    for finding in own:
        useful = _useful(known[finding.code], environment)
        if useful:
            found.append((finding, min(useful, key=lambda item: rank(finding, item))))
    return found


def _useful(issue: Issue, environment: Environment) -> list[Mitigation]:
    """The mitigations that have words for what is installed and that no run showed to be useless."""
    return [
        mitigation
        for mitigation in issue.mitigations
        if (mitigation.helps or mitigation.evidence != "executed") and _edits(mitigation, environment)
    ]


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
        found = [edit for edit in mitigation.actions(names) if not isinstance(edit, Advice)]
        if found:
            return found
    return []


def affected(issue: Issue, name: str) -> list[Affected]:
    """What an issue claims of a package, if it is the first that it concerns."""
    return [claim for claim in issue.affected if claim.package == name] if issue.components[0] == name else []


def holds(claims: Iterable[Affected], version: str) -> bool:
    """Tells whether any claim holds a version."""
    return any(
        version in claim.releases if claim.releases else wants.allows(claim.versions, version)
        for claim in claims
    )


def free_of(claims: Iterable[Affected]) -> str:
    """The releases that a range leaves, as a specifier where the range has an end."""
    ends = [
        part.strip()
        for claim in claims
        if claim.versions
        for part in claim.versions.split(",")
        if part.strip()[0] == "<"
    ]
    if ends:
        return ">" + ends[0][2:] if ends[0].startswith("<=") else ">=" + ends[0][1:]
    return " of other releases"


def concerns(issue: Issue, environment: Environment, versions: Mapping[str, str]) -> bool:
    """Tells whether an issue is in a set of versions, what the set leaves open being as installed."""
    first = issue.components[0]
    there = environment.vllm if first == "vllm" else environment.packages.get(first)
    version = versions.get(first) or (there.version if there else None)
    return version is not None and holds(
        [claim for claim in issue.affected if claim.package == first], version
    )


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
