"""Steps in the configuration: mitigations of known issues, in the words of the frameworks installed."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from diagnostics.catalogue import model
from diagnostics.doctor.fixplan import demands as wants
from diagnostics.doctor.fixplan.plan import Step
from diagnostics.report.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.catalogue.model import Issue, Mitigation
    from diagnostics.doctor.fixplan.installers import Installer
    from diagnostics.facts.environment import Environment
    from diagnostics.report.findings import Finding

_ITSELF = f"{model.FRAMEWORKS['vllm']}: "
_DONT = re.compile(r"(?i)\bdon't\b|changes nothing|\bdo not\b")


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
    merged: dict[tuple[str, ...], list[tuple[Finding, Mitigation]]] = {}
    for finding, mitigation in _chosen(own, known, environment):
        if not (_sure(finding) and _installs(finding.code, mitigation, environment)):
            merged.setdefault(tuple(_edits(mitigation, environment)), []).append((finding, mitigation))
    return [_step(edits, users, installer) for edits, users in merged.items()]


def _sure(finding: Finding) -> bool:
    return finding.certainty == "established" or finding.severity >= Severity.ERROR


def _installs(code: str, mitigation: Mitigation, environment: Environment) -> list[wants.Demand]:
    """The requirements of a mitigation whose words are an installation and nothing more."""
    edits = [edit.partition(": ")[2] for edit in _edits(mitigation, environment)]
    return [demand for edit in edits for demand in wants.of_edit(code, edit, mitigation.evidence)]


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
            all(edit.startswith(_ITSELF) for edit in edits) and bool(_trainers(environment)),
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


def _step(edits: tuple[str, ...], users: list[tuple[Finding, Mitigation]], installer: Installer) -> Step:
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
        undo=("take the setting back",),
        text=tuple(map(installer.translated, edits)) or (first.about,),
        commands=tuple(dict.fromkeys(line for finding, _ in users for line in _commands(finding))),
        established=any(finding.certainty == "established" for finding, _ in users),
    )


def _commands(finding: Finding) -> list[str]:
    """Commands that a check made out itself; to read more is none."""
    commands = finding.remedy.commands if finding.remedy else ()
    return [line for line in commands if not line.startswith("python -m diagnostics")]


def _trainers(environment: Environment) -> set[str]:
    names = {"ms-swift", "trl", "verl", "openrlhf"} & set(environment.packages)
    # ms-swift brings TRL along without being configured by it.
    return names - ({"trl"} if "ms-swift" in names else set())


def _edits(mitigation: Mitigation, environment: Environment) -> list[str]:
    """The edits for the trainers installed, else for vLLM itself."""
    names = _trainers(environment)
    found = [
        f"{model.FRAMEWORKS[key]}: {edit}"
        for key, edit in mitigation.edits
        if key in names and not _DONT.search(edit)
    ]
    return found or [
        f"{model.FRAMEWORKS[key]}: {edit}"
        for key, edit in mitigation.edits
        if key == "vllm" and not _DONT.search(edit)
    ]


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
