"""How a rule says what it found: under a catalogue code, with the values and their places, in the user's own words."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from diagnostics import catalog
from diagnostics.catalog import model, offers
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.lint import known
from diagnostics.lint.rules.registered import replaced
from diagnostics.output.findings import Evidence, Finding, Severity
from diagnostics.output.remedies import Advice, Explain, Remedy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.values import Value
    from diagnostics.output.remedies import Offer

# What these say stands in the command itself, or was asked of the copy.
_OF_ANY_COPY = {"CFG113", "CFG114", "CFG120", "CFG121"}
NO_RELEASE = "Of {package} no release is known here."
NOT_KNOWN_RELEASE = "The release is not known here: give it, as --{package} VERSION, for a firm answer."


@cache
def entry_of(code: str) -> model.Issue:
    """A catalogue entry, read once."""
    return catalog.find(code)


@cache
def with_config() -> tuple[model.Issue, ...]:
    """The entries with a [[config]], but not those that have a rule in its place; the rest is not parsed."""
    return tuple(catalog.with_config(replaced()))


def found(
    plan: RunPlan,
    code: str,
    severity: Severity,
    detail: str,
    values: Iterable[Value],
    *,
    remedy: str = "",
    gate: bool | None = True,
    package: str = "",
    alone: bool = False,
    triggers: tuple[str, ...] = (),
) -> list[Finding]:
    """One finding, or none where the release is not concerned.

    Args:
        plan: What was judged.
        code: Of a catalogue entry.
        detail: What is wrong here, in a sentence with this config's numbers.
        severity: What it is where everything it rests on is sure. Where it is not, a warning at the most.
        values: What it rests on, the first one being the place that is shown.
        remedy: What to change, with the numbers of this config; the catalogue's mitigations follow it.
        gate: Whether the release is concerned; None where it is not known.
        package: Whose release that is.
        alone: `remedy` is the whole of it: the entry covers many cases, and its mitigations are for the others.
        triggers: Which of the entry's ways it would be, where the rule tells.
    """
    if gate is False:
        return []
    entry = entry_of(code)
    rests_on = [value for value in values if value is not None]
    soft = any(value.soft for value in rests_on)
    # `${X:-8}` may come from outside with another value: what rests on it is no certain failure.
    if any(value.outside for value in rests_on):
        severity = min(severity, Severity.WARNING)
    if severity > Severity.WARNING and code not in _OF_ANY_COPY and _changed_copy(plan):
        severity = Severity.WARNING
        detail = f"{detail} The project's own copy has options of its own, and may allow it."
    if gate is None:
        severity = min(severity, Severity.WARNING)
        asked = package or plan.framework
        with_releases = asked in FRAMEWORKS and bool(FRAMEWORKS[asked].packages)
        detail = f"{detail} {(NOT_KNOWN_RELEASE if with_releases else NO_RELEASE).format(package=asked)}"
    certainty = "hypothesis" if gate is None else "supported" if soft else "established"
    evidence = [
        Evidence(value.told + (" (a default)" if value.soft else ""), str(value.place)) for value in rests_on
    ]
    return [
        Finding(
            code=code,
            title=entry.title,
            severity=severity,
            certainty=certainty,
            known_by=_known_by(entry, plan.framework),
            detail=detail,
            evidence=tuple(dict.fromkeys(evidence)) or (Evidence(plan.framework, str(plan.settings.place)),),
            remedy=Remedy.of(remedy, Explain(code)) if alone else _remedy(plan, entry, remedy, triggers),
            references=tuple(reference.ref for reference in entry.references),
        )
    ]


def _changed_copy(plan: RunPlan) -> bool:
    """Whether the run is for a project's own copy that was changed: it sets options that no release has."""
    if plan.framework not in plan.versions.copies:
        return False
    names = known.names(plan.framework, plan.role)
    return any(not known.takes(value.key, names) for value in known.options_of(plan.settings))


def _known_by(entry: model.Issue, framework: str) -> str:
    """The best evidence for this framework: what was run on another one says nothing of it."""
    own = [claim.evidence for claim in entry.affected if claim.package == framework]
    if not own and framework in FRAMEWORKS and not FRAMEWORKS[framework].packages:
        # In no registry, so it has no releases to claim; its checks were read in its repository.
        return "static"
    others = [
        claim.evidence for claim in entry.affected if claim.package not in set(model.FRAMEWORKS) - {"vllm"}
    ]
    return max(own or others or ["declared"], key=model.EVIDENCE.index)


def _remedy(plan: RunPlan, entry: model.Issue, first: str, triggers: tuple[str, ...]) -> Remedy:
    """This config's own change, then the entry's first offer, then what else its framework has words for."""
    found = offers.remedy(entry, triggers=triggers, frameworks=(plan.framework,), releases=plan.releases)
    own = [one for one in found.offers if _is_own(one, plan)]
    told = [*(one for one in found.offers[:1] if one not in own), *own]
    return Remedy(
        actions=((Advice(first),) if first else ()) + found.actions,
        offers=tuple(_unnamed(one, plan) for one in told),
        does_not_help=tuple(_unnamed(one, plan) for one in found.does_not_help if _is_own(one, plan)),
    )


def _is_own(offer: Offer, plan: RunPlan) -> bool:
    return any(edit.framework == plan.framework for edit in offer.edits)


def _unnamed(offer: Offer, plan: RunPlan) -> Offer:
    """An offer whose words for this config's own framework go without its name."""
    edits = [
        replace(edit, framework="") if edit.framework == plan.framework else edit for edit in offer.edits
    ]
    return replace(offer, edits=tuple(edits))


def values(plan: RunPlan, *names: str) -> list[Value]:
    """The values behind names, in their order, those that are there."""
    return plan.evidence(names)
