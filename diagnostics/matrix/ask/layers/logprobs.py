"""Are the log-probs that vLLM reports those of the model, by a plain forward pass in transformers?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.ask.layers import in_cell
from diagnostics.matrix.ask.layers.base import Layer
from diagnostics.matrix.plan.verdicts import Answer, Evidence, Outcome

if TYPE_CHECKING:
    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell

SCHEMA = "grpo-doctor.logprobs.v1"
PROGRAM = tuple(
    f"repro/{name}.py"
    for name in (
        "__init__",
        "questions/agreement",
        "issues/num001_num002_num003_syn001",
        "drivers/whole_engine",
        "upstream",
        "base",
    )
)


def _ask(workplace: Workplace, cell: Cell) -> Answer:
    arguments = workplace.matrix.layer("logprobs").arguments
    reply = in_cell.ask(workplace, cell, "logprobs", ["repro.questions.agreement", *arguments], SCHEMA)
    return reply.instead or read(reply, cell)


def read(reply: in_cell.Reply, cell: Cell) -> Answer:
    """Makes the answer of the differences that were found; their bound and its reason come with them."""
    document = reply.document
    ran_with = in_cell.ran_with(cell, document.get("versions"))
    details = tuple(f"{key}: {value}" for key, value in document.items() if key not in {"versions", "schema"})
    if document.get("outcome") != "ok":
        error = " ".join(str(document.get("error") or f"outcome {document.get('outcome')!r}").split())
        return Answer(
            Outcome.FAIL,
            error[:300],
            Evidence.EXECUTED,
            signs=(error,),
            details=details,
            ran_with=ran_with,
            excerpt=reply.excerpt,
            log=reply.log,
        )
    summary = (
        f"{document['tokens']} tokens in {document['dtype']}: apart by {document['max_difference']:.1e} at most, "
        f"{document['mean_difference']:.1e} in the mean (bound {document['bound']:.0e})"
    )
    return Answer(Outcome.PASS, summary, Evidence.EXECUTED, details=details, ran_with=ran_with, log=reply.log)


LAYER = Layer(
    name="logprobs",
    question="Are vLLM's log-probs of what it sampled those of a plain forward pass in transformers?",
    evidence=Evidence.EXECUTED,
    needs=("install", "import", "engine"),
    heavy=True,
    harness=("diagnostics/matrix/ask/layers/logprobs.py", *in_cell.HARNESS, *PROGRAM),
    inputs=lambda workplace, cell: in_cell.inputs(workplace, cell, "logprobs"),
    ask=_ask,
)
