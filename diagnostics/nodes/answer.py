"""What a machine's Python printed, or why it did not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from diagnostics import given
from diagnostics.nodes.program import CLOCK, MARK

MOST_ANSWER_BYTES = 8 * 2**20


class AnswerError(ValueError):
    """Raised when a machine gave no document; the message is one line that says why."""


@dataclass(frozen=True)
class NodeAnswer:
    """What a node's Python printed, or why it did not.

    Attributes:
        started: Our clock when it was asked.
        clock: (its clock, our clock when that arrived).
    """

    text: str = ""
    problem: str = ""
    started: float = 0.0
    clock: tuple[float, float] | None = None

    def document(self) -> dict[str, Any]:
        """What the program said last.

        Raises:
            AnswerError: It could not be asked, ran into a problem, or said something else.
        """
        if self.problem:
            raise AnswerError(self.problem)
        lines = [line for line in self.text.splitlines() if line.startswith(MARK)]
        if not lines:
            raise AnswerError("it answered, but not with facts: another program ran there")
        try:
            document = given.parsed(lines[-1].removeprefix(MARK))
        except (ValueError, RecursionError) as error:
            raise AnswerError(one_line(f"its answer is broken: {type(error).__name__}: {error}")) from None
        if not isinstance(document, dict):
            raise AnswerError("its answer is broken: expected an object")
        if "error" in document:
            raise AnswerError(one_line(str(document["error"])))
        return document


@dataclass(frozen=True)
class Member:
    """A node that a cluster knows.

    Attributes:
        name: Its address; with the port where several nodes share it.
        dead: Whether the cluster itself says that it is dead.
        secrets: Names and addresses of it that must not stand in a text that is shared.
    """

    name: str
    answer: NodeAnswer
    dead: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)


def clock_of(line: str) -> float | None:
    """The time in the first line of the program."""
    try:
        told = float(line.removeprefix(CLOCK)) if line.startswith(CLOCK) else None
    except ValueError:
        return None
    return told if told is not None and math.isfinite(told) else None


def one_line(text: str, most: int = 300) -> str:
    """A text from elsewhere as one line without control characters."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    clean = " ".join(clean.split())
    return clean if len(clean) <= most else clean[: most - 1] + "…"
