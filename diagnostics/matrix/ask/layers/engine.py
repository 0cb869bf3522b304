"""Does the real engine start, sample, agree with the trainer, and take new weights?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.ask import in_cell
from diagnostics.matrix.plan.verdicts import Answer, Outcome

if TYPE_CHECKING:
    from diagnostics.matrix.plan.cells import Cell

SCHEMA = "grpo-doctor.engine.v1"


def read(reply: in_cell.Reply, cell: Cell) -> Answer:
    """Makes the answer of what the probe found."""
    document = reply.document
    if document.get("outcome") != "ok":
        return in_cell.failed(reply, cell)
    summary = (
        f"{document.get('engine')} {document.get('engine_version') or ''}: {document.get('tokens')} tokens; "
        f"log-probs within {_small(document.get('max_logprob_difference_before'))} of the trainer's, "
        f"{_small(document.get('max_logprob_difference_after'))} after new weights"
    )
    return in_cell.answer(reply, cell, Outcome.PASS, summary)


def _small(value: object) -> str:
    return f"{value:.1e}" if isinstance(value, int | float) else "?"


LAYERS = (
    in_cell.layer(
        "engine",
        70,
        "engine",
        "Does the real engine sample, agree with the trainer's log-probs, and take new weights?",
        ("grpo_core", "probe"),
        SCHEMA,
        read,
    ),
)
