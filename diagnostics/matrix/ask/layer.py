"""What a layer is: one question asked of a cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.matrix.plan.layers import Kind
from diagnostics.matrix.plan.verdicts import Answer, Evidence, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell, LayerSettings


@dataclass(frozen=True, kw_only=True)
class Layer(Kind):
    """One question, and what its answer depends on. Its own code is found by what is imported: see `closure.py`."""

    group: str
    """Under which reports show it."""
    question: str
    """For the page: what is asked."""
    evidence: Evidence
    ask: Callable[[Workplace, Cell], Answer]
    """Asks it. May raise nothing but bugs: what goes wrong is an answer."""
    inputs: Callable[[Workplace, Cell], Mapping[str, str]] = lambda _workplace, _cell: {}
    """What else it depends on, in words."""
    program: Callable[[LayerSettings, Cell], Sequence[str]] = lambda _settings, _cell: ()
    """What `python -m` is given in the cell, where the answer comes from a program there."""
    codes: Callable[[LayerSettings], Sequence[str]] | None = None
    """Known issues that it makes happen, if that is what it does: one that happens does not stop the pair."""
    reads: bool = False
    """Keeps this process busy with the source of releases: neighbours in the order of releases share the work."""
    modules: tuple[str, ...] = ()
    """Our own modules that the answer rests on and that nobody imports by name: the layer's own among them."""


def infrastructure(summary: str, evidence: Evidence, excerpt: str = "") -> Answer:
    """Returns the answer of a layer that the machine kept from answering."""
    return Answer(Outcome.INFRA_ERROR, summary, evidence, excerpt=excerpt)
