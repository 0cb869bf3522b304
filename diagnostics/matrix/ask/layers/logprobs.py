"""Are the log-probs that vLLM reports those of the model, by a plain forward pass in transformers?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.ask import in_cell
from diagnostics.matrix.plan.verdicts import Answer, Outcome

if TYPE_CHECKING:
    from diagnostics.matrix.plan.cells import Cell

SCHEMA = "grpo-doctor.logprobs.v1"


def read(reply: in_cell.Reply, cell: Cell) -> Answer:
    """Makes the answer of the differences that were found; their bound and its reason come with them."""
    document = reply.document
    if document.get("outcome") != "ok":
        return in_cell.failed(reply, cell)
    summary = (
        f"{document['tokens']} tokens in {document['dtype']}: apart by {document['max_difference']:.1e} at most, "
        f"{document['mean_difference']:.1e} in the mean (bound {document['bound']:.0e})"
    )
    return in_cell.answer(reply, cell, Outcome.PASS, summary)


LAYERS = (
    in_cell.layer(
        "logprobs",
        80,
        "training",
        "Are vLLM's log-probs of what it sampled those of a plain forward pass in transformers?",
        ("repro.questions.agreement",),
        SCHEMA,
        read,
        needs=(*in_cell.USABLE, "engine"),
    ),
)
