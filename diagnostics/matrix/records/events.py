"""One finished layer as a line of the store, there and back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from diagnostics.matrix.plan.verdicts import UNFINISHED, Answer, EvidenceLevel, Grid, Outcome

SCHEMA = "grpo-doctor.event.v1"


@dataclass(frozen=True)
class Event:
    """What one layer of one cell answered, and what the answer rests on."""

    identity: str
    """Digest of everything the answer depends on; see `identity.py`."""
    cell: str
    layer: str
    answer: Answer
    inputs: tuple[tuple[str, str], ...]
    """What went into the identity, in words: (name, value)."""
    command: str
    """Repeats the question."""
    started: str
    """UTC, ISO 8601."""
    seconds: float
    run: str
    """The run of the matrix that asked."""

    @property
    def finished(self) -> bool:
        """Tells whether the question is answered, so that it need not be asked again."""
        return self.answer.outcome not in UNFINISHED


def to_line(event: Event) -> str:
    """Returns the event as one line of JSON, without the line's end."""
    return json.dumps({"schema": SCHEMA, **asdict(event)}, ensure_ascii=False, separators=(",", ":"))


def from_line(line: str) -> Event | None:
    """Returns the event of a line, None if the line isn't one (torn, or written by something else)."""
    try:
        value = json.loads(line)
        if value.pop("schema") != SCHEMA:
            return None
        value["answer"] = _answer(value["answer"])
        value["inputs"] = _pairs(value["inputs"])
        return Event(**value)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _answer(value: dict[str, Any]) -> Answer:
    known = {item.name for item in fields(Answer)}
    kept = {key: _frozen(item) for key, item in value.items() if key in known}
    return Answer(
        **{
            **kept,
            "outcome": Outcome(value["outcome"]),
            "evidence": EvidenceLevel(value["evidence"]),
            "ran_with": _pairs(value["ran_with"]),
            "facts": tuple(tuple(fact) for fact in value.get("facts", ())),
            "grids": tuple(_grid(item) for item in value["grids"]),
        }
    )


def _grid(value: dict[str, Any]) -> Grid:
    rows = tuple(tuple(row) for row in value["rows"])
    return Grid(value["title"], tuple(value["columns"]), rows)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _pairs(values: list[list[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in values)
