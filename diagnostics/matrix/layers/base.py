"""Define the type `Layer`: one check that runs for a cell, with everything that its answer depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from diagnostics.matrix.cells import Cell, LayerSettings
from diagnostics.matrix.context import Context
from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Outcome


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One check that runs for a cell."""

    name: str
    question: str
    """For the page."""
    evidence: EvidenceLevel
    check: Callable[[Context, Cell], Answer]
    """Runs it. Expected errors are answers, not exceptions."""
    code: tuple[str, ...]
    """Our own modules and packages that the answer depends on; the layer's own module first."""
    needs: tuple[str, ...] = ()
    """Layers that must have passed."""
    heavy: bool = True
    """It runs in the cell's environment; light layers of all cells run before the heavy ones of any."""
    of_pairs: bool = False
    """It also runs for generated cells."""
    solves: bool = False
    """It looks for a solution of the declared requirements: none is expected where the metadata forbids the pair."""
    inputs: Callable[[Context, Cell], Mapping[str, str]] = lambda _context, _cell: {}
    """Further inputs of the answer, readable."""
    program: Callable[[LayerSettings, Cell], Sequence[str]] = lambda _settings, _cell: ()
    """Arguments of `python -m` in the cell, where a program there gives the answer."""
    codes: Callable[[LayerSettings], Sequence[str]] | None = None
    """Known issues that it tries to reproduce: one that is reproduced does not fail the pair."""


class EarlyAnswer(Exception):  # noqa: N818 - not an error: the answer of a layer that ends early
    """Raised if a layer's answer is known before its program has ended; carries the answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.summary)
        self.answer = answer


def infrastructure_fault(summary: str, evidence: EvidenceLevel, excerpt: str = "") -> Answer:
    """Return the answer of a layer that failed because of the machine."""
    return Answer(Outcome.INFRA_ERROR, summary, evidence, excerpt=excerpt)
