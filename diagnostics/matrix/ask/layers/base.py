"""What a layer is: one question asked of a cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.matrix.plan.verdicts import Answer, Evidence, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell


@dataclass(frozen=True)
class Layer:
    """One question, and what its answer depends on."""

    name: str
    question: str
    """For the page: what is asked."""
    evidence: Evidence
    needs: tuple[str, ...]
    """Layers that must have passed."""
    heavy: bool
    """Runs in an environment; light layers of all cells come before the heavy ones of any."""
    harness: tuple[str, ...]
    """Our own code that the answer depends on: paths below the project."""
    inputs: Callable[[Workplace, Cell], Mapping[str, str]]
    """What else it depends on, in words."""
    ask: Callable[[Workplace, Cell], Answer]
    """Asks it. May raise nothing but bugs: what goes wrong is an answer."""


def infrastructure(summary: str, evidence: Evidence, excerpt: str = "") -> Answer:
    """Returns the answer of a layer that the machine kept from answering."""
    return Answer(Outcome.INFRA_ERROR, summary, evidence, excerpt=excerpt)
