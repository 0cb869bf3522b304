"""Which mitigation first? The one answer, for whoever asks.

A run shows a mitigation to help against a trigger, and says nothing of the others. So those come first that were shown
to help against the trigger of the case at hand; where that is not known, those shown to help against the most. What
was run and failed is never offered: it is told, with the run that says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.catalogue import model
from diagnostics.catalogue.affects import subject
from diagnostics.catalogue.releases import within
from diagnostics.report.remedies import FAILS, SHOWN, UNTRIED, Explain, Offer, Remedy, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from diagnostics.catalogue.model import Issue, Mitigation
    from diagnostics.report.remedies import Edit

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
    made = [(_offer(issue, one, known, here, names), one) for one in issue.mitigations]
    offered = [(offer, one) for offer, one in made if offer.standing != FAILS]
    offered.sort(key=lambda pair: _rank(pair[0], pair[1], possible, names))
    return Remedy(
        actions=(Explain(issue.code),),
        offers=tuple(offer for offer, _ in offered),
        does_not_help=tuple(offer for offer, _ in made if offer.standing == FAILS),
    )


def occurring(issue: Issue, releases: Mapping[str, str]) -> tuple[str, ...]:
    """The triggers on record that can occur in the releases at hand."""
    release = releases.get(subject(issue))
    never = {
        trigger.name
        for trigger in issue.triggers
        if release is not None and trigger.versions and not within(release, trigger.versions)
    }
    return tuple(name for name in issue.recorded() if name not in never)


def _edits(mitigation: Mitigation, frameworks: tuple[str, ...]) -> tuple[Edit, ...]:
    """What to change, in the words of the frameworks at hand, else of the engine; in all where none is known."""
    names = [name for name, _ in mitigation.edits]
    own = [name for name in names if not frameworks or name in frameworks]
    return tuple(mitigation.actions(own or [name for name in names if name == _ENGINE]))


def _offer(
    issue: Issue,
    mitigation: Mitigation,
    known: tuple[str, ...],
    here: tuple[str, ...],
    frameworks: tuple[str, ...],
) -> Offer:
    possible = known or here
    shown = [name for name in possible if name in mitigation.helps]
    failed = [name for name in possible if name in mitigation.fails]
    executed = mitigation.evidence == "executed"
    # What helps against triggers alone that cannot occur in these releases helps nobody here.
    useless = executed and not shown and bool(failed or not set(mitigation.helps) & set(here))
    return Offer(
        mitigation=mitigation.name,
        about=mitigation.about,
        standing=FAILS if useless else SHOWN if shown else UNTRIED,
        evidence=mitigation.evidence,
        edits=_edits(mitigation, frameworks),
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
        -len(mitigation.helps),
        len(mitigation.fails),
        -model.EVIDENCE.index(mitigation.evidence),
    )
