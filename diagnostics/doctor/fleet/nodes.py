"""A node of a fleet: what it answered, or why it did not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diagnostics.collect import collection
from diagnostics.collect.plain import FactsError
from diagnostics.nodes.answer import AnswerError, one_line

if TYPE_CHECKING:
    from diagnostics.collect.collection import Facts
    from diagnostics.nodes.answer import NodeAnswer


@dataclass(frozen=True)
class Node:
    """A node.

    Attributes:
        position: In the list, from 0.
        word: What its number is called: `rank`, `ranks` or `node`.
        number: That number, as "3" or "6-7".
        name: Its name or address; empty where it must not be shown.
        facts: What was found there; None if nothing was.
        problem: Why it could not be examined, one line.
        reached: Whether it was reached, so that the problem is what it said itself.
        dead: Whether the cluster itself says that it is dead.
        clock: Seconds that its clock is ahead of ours, at least and at most.
    """

    position: int
    word: str
    number: str
    name: str
    facts: Facts | None = None
    nccl: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    problem: str = ""
    reached: bool = False
    dead: bool = False
    clock: tuple[float, float] | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Names and addresses of it that must not stand in a text that is shared."""

    @property
    def label(self) -> str:
        """As findings call it: "rank 3 (d)"."""
        return f"{self.word} {self.number}" + (f" ({self.name})" if self.name else "")


def read(answer: NodeAnswer) -> dict[str, Any]:
    """What an answer holds, as arguments of Node: facts, or the problem."""
    try:
        document = answer.document()
        found: dict[str, Any] = {
            "facts": collection.from_json(document["facts"]),
            "nccl": tuple(map(one_line, document["nccl"])),
            "models": tuple(map(one_line, document["models"])),
        }
    except AnswerError as error:
        return {"problem": str(error), "reached": not answer.problem}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, FactsError) as error:
        return {
            "problem": one_line(f"its answer is broken: {type(error).__name__}: {error}"),
            "reached": True,
        }
    return found | {"clock": _skew(answer)}


def _skew(answer: NodeAnswer) -> tuple[float, float] | None:
    """How far its clock is ahead: it was read after we asked and before its word arrived."""
    if answer.clock is None:
        return None
    there, arrived = answer.clock
    return there - arrived, there - answer.started
