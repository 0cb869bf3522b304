"""What changed in a run that goes on, as a line of a log and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from diagnostics.output import clean
from diagnostics.output.audits import wording

if TYPE_CHECKING:
    from diagnostics.audit.running.watcher import Change

_AGAIN = {"found": "", "again": " again"}


def line(change: Change) -> str:
    """One line, as `step 12: FAULT NUM046: rewards differ, …    # metrics.jsonl:12`."""
    told = asdict(change.answer)
    if change.what == "gone":
        return _clean(f"step {change.step}: gone: {_said(told)}")
    head = f"{wording.HEADS[told['outcome']]}{_AGAIN[change.what]}"
    if told["code"] and told["outcome"] == "fault":
        head += f" {told['code']}"
    # The evidence of a fault is its place; of what is open the evidence is all that there is.
    places = [fact["place"] for fact in told["facts"] if fact["place"]]
    return _clean(f"step {change.step}: {head}: {_said(told)}{f'    # {places[0]}' if places else ''}")


def entry(change: Change) -> dict[str, Any]:
    """The same as data."""
    told = asdict(change.answer)
    told["sentence"] = wording.sentence(told)
    kept = ("family", "outcome", "probe", "code", "sentence", "values")
    made = {"type": "change", "change": change.what, "step": change.step, **{key: told[key] for key in kept}}
    cleaned: dict[str, Any] = clean.shareable(clean.own(made))
    return cleaned


def summary(steps: int, left_out: int, unread: int) -> str:
    """What was looked at, for the end."""
    told = f"{steps} looks"
    if left_out:
        told += f"; samples were left out of {left_out}, to stay within the share of time"
    if unread:
        told += f"; {unread} lines could not be read"
    return told


def waiting(name: str) -> str:
    """Of a file that is not there yet."""
    return f"{name}: not there yet"


def anew(name: str) -> str:
    """Of a file that began anew."""
    return f"{name}: it begins anew; what it had before no longer counts"


def broken(error: Exception) -> str:
    """Of a look that failed: the training goes on."""
    return _clean(f"no more looks: {type(error).__name__}: {error}")


def not_probed(why: str) -> str:
    """Of a probe that told nothing."""
    return _clean(f"the server was not probed: {why}")


def _said(told: dict[str, Any]) -> str:
    facts = [wording.fact({**fact, "place": ""}) for fact in told["facts"] if fact["name"] == "curve"]
    if told["outcome"] == "fault" or not facts:
        return wording.sentence(told)
    return f"{wording.about(told['family'])}: {'; '.join(facts)}"


def _clean(text: str) -> str:
    cleaned: str = clean.own(text)
    return cleaned
