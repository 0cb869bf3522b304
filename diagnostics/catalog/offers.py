"""Which mitigation first? The one answer, for whoever asks.

A run shows a mitigation to help against a trigger, and says nothing of the others. So those come first that were shown
to help against the trigger of the case at hand; where that is not known, those shown to help against the most. What
was run and failed is never offered: it is told, with the run that says so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from diagnostics.catalog import model
from diagnostics.catalog.affects import subject
from diagnostics.catalog.releases import readable, within
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.output.findings import Evidence, Finding, Severity
from diagnostics.output.remedies import FAILS, SHOWN, UNTRIED, Explain, Offer, Remedy, Run, SetOption

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from diagnostics.catalog.model import Bound, Issue, Mitigation
    from diagnostics.output.remedies import Edit

# What every framework here runs on: its words help whoever has none of their own.
_ENGINE = "vllm"


def remedy(
    issue: Issue,
    *,
    triggers: Iterable[str] = (),
    frameworks: Iterable[str] = (),
    releases: Mapping[str, str] | None = None,
) -> Remedy:
    """The mitigations of an issue in a case, the first one first, and those that do not help in it.

    Args:
        issue: The issue.
        triggers: Those that it may be here; none where that is not known.
        frameworks: Those at hand; none where that is not known.
        releases: By package, those at hand.
    """
    known = tuple(triggers)
    here = occurring(issue, releases or {})
    possible = known or here
    names = tuple(frameworks)
    made = [(_offer(issue, one, known, here, names, releases or {}), one) for one in issue.mitigations]
    offered = [(offer, one) for offer, one in made if offer.standing != FAILS]
    offered.sort(key=lambda pair: _rank(pair[0], pair[1], possible, names))
    return Remedy(
        actions=(Explain(issue.code),),
        offers=tuple(offer for offer, _ in offered),
        does_not_help=tuple(offer for offer, _ in made if offer.standing == FAILS),
    )


def as_finding(issue: Issue, certainty: str, seen: Iterable[tuple[str, str]], title: str = "") -> Finding:
    """What was seen of an issue as a finding, with what to do first where nothing but the issue is known.

    Args:
        issue: The issue.
        certainty: How sure it is that this concerns the user.
        seen: What was seen, and where.
        title: What it is called here; else as its entry calls it.
    """
    return Finding(
        issue.code, title or issue.title, Severity.ERROR, certainty,
        known_by=max((claim.evidence for claim in issue.affected), key=model.EVIDENCE.index, default="declared"),
        evidence=tuple(Evidence(text, place) for text, place in seen), remedy=remedy(issue),
    )  # fmt: skip


def told(issue: Issue) -> dict[str, Any]:
    """An issue for a document where nothing but its code is known: title, cause, and what may help, the first first."""
    by_name = {one.name: one for one in issue.mitigations}
    offered = [by_name[offer.mitigation] for offer in remedy(issue).offers]
    return {
        "title": issue.title,
        "cause": " ".join(issue.cause.split()),
        "mitigations": [
            {"name": one.name, "about": one.about, "edits": one.by_framework(), "evidence": one.evidence}
            for one in offered
        ],
    }


def occurring(issue: Issue, releases: Mapping[str, str]) -> tuple[str, ...]:
    """The triggers on record that can occur in the releases at hand."""
    release = releases.get(subject(issue))
    never = {
        trigger.name
        for trigger in issue.triggers
        if release is not None and trigger.versions and not within(release, trigger.versions)
    }
    return tuple(name for name in issue.recorded() if name not in never)


def edits_for(
    mitigation: Mitigation, frameworks: Iterable[str], releases: Mapping[str, str]
) -> list[tuple[Edit, Bound]]:
    """The edits for frameworks, but those in words that the release at hand does not have."""
    found = [
        (edit, bound)
        for name in dict.fromkeys(frameworks)
        for edit, bound in mitigation.known_edits()
        if edit.framework == name and _exists(edit.framework, bound, releases)
    ]
    times = Counter(edit.framework for edit, _ in found)
    # Of several in a framework's words one is right: for which releases each is has to be said.
    return [
        (replace(edit, versions=bound.versions), bound)
        if isinstance(edit, SetOption) and times[edit.framework] > 1
        else (edit, bound)
        for edit, bound in found
    ]


def _exists(framework: str, bound: Bound, releases: Mapping[str, str]) -> bool:
    """Whether a release has an edit's words; where none is known, or it can't be read, they are told."""
    packages = FRAMEWORKS[framework].packages
    release = next((releases[name] for name in packages if name in releases), None)
    return not bound.versions or release is None or not readable(release) or within(release, bound.versions)


def _edits(
    mitigation: Mitigation, frameworks: tuple[str, ...], releases: Mapping[str, str]
) -> list[tuple[Edit, Bound]]:
    """What to change, in the words of the frameworks at hand, else of the engine; in all where none is known."""
    own = [name for name, _ in mitigation.edits if not frameworks or name in frameworks]
    return edits_for(mitigation, own, releases) or edits_for(mitigation, [_ENGINE], releases)


def _offer(
    issue: Issue,
    mitigation: Mitigation,
    known: tuple[str, ...],
    here: tuple[str, ...],
    frameworks: tuple[str, ...],
    releases: Mapping[str, str],
) -> Offer:
    possible = known or here
    shown = [name for name in possible if name in mitigation.helps]
    failed = [name for name in possible if name in mitigation.fails]
    executed = mitigation.evidence == "executed"
    # What helps against triggers alone that cannot occur in these releases helps nobody here.
    useless = executed and not shown and bool(failed or not set(mitigation.helps) & set(here))
    edits = _edits(mitigation, frameworks, releases)
    return Offer(
        mitigation=mitigation.name,
        about=mitigation.about,
        standing=FAILS if useless else SHOWN if shown else UNTRIED,
        evidence=mitigation.evidence,
        edits=tuple(edit for edit, _ in edits),
        as_run=any(set(shown or mitigation.helps) & set(bound.ran) for _, bound in edits),
        triggers=known,
        helps=mitigation.helps,
        fails=mitigation.fails,
        untried=tuple(name for name in possible if executed and name not in [*shown, *failed]),
        run=_run(issue, mitigation, failed or list(mitigation.fails)) if useless else None,
    )


def _run(issue: Issue, mitigation: Mitigation, failed: list[str]) -> Run | None:
    """The command that repeats a run in which a mitigation failed, if there was one."""
    if not failed:
        return None
    words = ("python", "-m", "repro", "run", issue.code, "--trigger", failed[0])
    return Run((*words, "--mitigation", mitigation.name))


def _rank(
    offer: Offer, mitigation: Mitigation, possible: tuple[str, ...], frameworks: tuple[str, ...]
) -> tuple[object, ...]:
    trainers = set(frameworks) - {_ENGINE}
    return (
        # What can't be said in the words at hand is a remedy for somebody else.
        not offer.edits,
        -sum(name in possible for name in mitigation.helps),
        sum(name in possible for name in mitigation.fails),
        bool(trainers) and not any(name in trainers for name, _ in mitigation.edits),
        # Of two that help, the one whose words here are those that were run.
        not offer.as_run,
        -len(mitigation.helps),
        len(mitigation.fails),
        -model.EVIDENCE.index(mitigation.evidence),
    )
