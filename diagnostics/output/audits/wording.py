"""The sentences of an audit, out of its document and the templates of both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.output.audits import live, recorded

if TYPE_CHECKING:
    from collections.abc import Mapping

FAULTS = {**live.FAULTS, **recorded.FAULTS}
CLASSES = {**live.CLASSES, **recorded.CLASSES}
FACTS = {**live.FACTS, **recorded.FACTS}
HEADS = {
    "fault": "FAULT",
    "clean": "clean",
    "not_decided": "not decided",
    "masked": "hidden",
    "not_asked": "not asked",
}


# What an answer of a probe rests on so many of, where it is no tokens.
_UNITS = {
    "P2": "prompt", "P11": "sample", "P12": "sample", "P13": "tensor", "P14": "call", "data": "step", "metrics": "line",
    "samples": "sample", "masks": "sample", "curves": "line",
}  # fmt: skip


def counted(answer: Mapping[str, Any]) -> str:
    """How much an answer rests on, in its own unit.

    >>> counted({"probe": "P11", "count": 48}), counted({"probe": "P1", "count": 1})
    ('48 samples', '1 token')
    """
    unit = _UNITS.get(answer["probe"], "token")
    return f"{answer['count']} {unit}{'' if answer['count'] == 1 else 's'}"


def about(family: str) -> str:
    """What a class is called.

    >>> about("weights/version")
    'weights and positions'
    """
    return CLASSES.get(family) or CLASSES[family.partition("/")[0]]


def sentence(answer: Mapping[str, Any]) -> str:
    """What an answer says, in one sentence."""
    outcome, called = answer["outcome"], about(answer["family"])
    if outcome == "fault":
        return FAULTS[answer["family"]].format(**answer["values"])
    if outcome == "masked":
        return f"{called}: hidden by another fault ({about(answer['by'])}); ask again when that is mended"
    if outcome == "not_asked":
        return f"{called}: not asked"
    if outcome == "not_decided":
        return f"{called}: not decided{_measured(answer)}"
    return f"{called}: nothing wrong{_measured(answer)}"


def _measured(answer: Mapping[str, Any]) -> str:
    residual, floor = answer["residual"], answer["floor"]
    if residual is None:
        return ""
    told = f"; off by {residual:.2g}"
    if floor is not None:
        told += f", where arithmetic alone makes {floor:.2g}"
    return told + (f" ({counted(answer)})" if answer["count"] else "")


def fact(seen: Mapping[str, Any]) -> str:
    """What was seen, in one line."""
    told = FACTS[seen["name"]].format(**seen["values"])
    return f"{told}    # {seen['place']}" if seen["place"] else told


def estimate(found: Mapping[str, Any]) -> str:
    """A value with its interval.

    >>> estimate({"name": "top_p", "value": 0.9, "low": 0.89, "high": 0.9, "expected": 1.0})
    'top_p 0.9 (0.89 to 0.9), expected 1'
    """
    told = f"{found['name']} {_value(found['value'])}"
    if found["low"] is not None and found["high"] is not None:
        told += f" ({_value(found['low'])} to {_value(found['high'])})"
    return told if found["expected"] is None else f"{told}, expected {_value(found['expected'])}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def summary(document: Mapping[str, Any]) -> str:
    """The whole audit in one sentence."""
    found = [each for each in document["answers"] if each["outcome"] == "fault"]
    missing = [about(family) for family in document["not_asked"]]
    if found:
        return "; ".join(each["sentence"] for each in found)
    if document["outcome"] == "clean":
        return "clean as far as asked" + (f"; not asked: {', '.join(missing)}" if missing else "")
    open_ones = [
        about(each["family"])
        for each in document["answers"]
        if each["outcome"] in ("not_decided", "masked")
        or (each["outcome"] == "not_asked" and each["decisive"])
    ]
    return f"not decided: {', '.join(dict.fromkeys(open_ones)) or 'nothing was asked'}"
