"""Define `Layer`, which is one check that runs for a cell, and `EarlyAnswer`, the exception that ends a layer early."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from diagnostics.matrix.cells import Cell, LayerSettings
from diagnostics.matrix.context import Context
from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Outcome


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One check that runs for a cell."""

    name: str
    question: str
    """Question that the layer answers, for the HTML page."""
    evidence: EvidenceLevel = EvidenceLevel.EXECUTED
    """EXECUTED for a layer that runs in the cell's environment."""
    check: Callable[[Context, Cell], Answer]
    """Function that runs the layer; expected errors become answers or EarlyAnswer."""
    code: tuple[str, ...]
    """Our own modules and packages that the answer depends on; the layer's own module first."""
    needs: tuple[str, ...] = ()
    """Layers that must have passed."""
    trainers: tuple[str, ...] = ()
    """Trainers whose cells may have the layer; empty for all."""
    inputs: Callable[[Context, Cell], Mapping[str, str]] = lambda _context, _cell: {}
    """Function that returns further inputs of the answer, in readable form."""
    program: Callable[[LayerSettings, Cell], Sequence[str]] = lambda _settings, _cell: ()
    """Function that returns the arguments of `python -m` in the cell; empty if no program in the cell is needed."""
    codes: Callable[[LayerSettings], Sequence[str]] | None = None
    """Function that returns the known issues that the layer tries to reproduce; these do not fail the cell."""

    @property
    def heavy(self) -> bool:
        """Whether the layer runs in the cell's environment; light layers run first."""
        return self.evidence is EvidenceLevel.EXECUTED

    def run(self, context: Context, cell: Cell) -> Answer:
        """Return the layer's answer with its evidence level; an unexpected error gives an infrastructure fault."""
        try:
            answer = self.check(context, cell)
        except EarlyAnswer as early:
            answer = early.answer
        except Exception as error:  # noqa: BLE001 - a bug in a layer becomes a result, and the run continues
            summary = f"the layer failed itself: {type(error).__name__}: {error}"
            answer = Answer(Outcome.INFRA_ERROR, summary)
        return msgspec.structs.replace(answer, evidence=self.evidence)


class EarlyAnswer(Exception):  # noqa: N818 - not an error: the answer of a layer that ends early
    """Raised if a layer's answer is known before its last step; carries the answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.summary)
        self.answer = answer
