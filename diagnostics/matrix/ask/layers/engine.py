"""Does the real engine start, sample, agree with the trainer, and take new weights?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.ask.layers import in_cell
from diagnostics.matrix.ask.layers.base import Layer
from diagnostics.matrix.plan.verdicts import Answer, Evidence, Outcome

if TYPE_CHECKING:
    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell

SCHEMA = "grpo-doctor.engine.v1"


def _ask(workplace: Workplace, cell: Cell) -> Answer:
    arguments = workplace.matrix.layer("engine").arguments
    reply = in_cell.ask(workplace, cell, "engine", ["grpo_core", "probe", *arguments], SCHEMA)
    if reply.instead:
        return reply.instead
    document = reply.document
    ran_with = in_cell.ran_with(cell, document.get("versions"))
    if document.get("outcome") != "ok":
        summary = " ".join(str(document.get("error") or f"outcome {document.get('outcome')!r}").split())[:300]
        return Answer(
            Outcome.FAIL, summary, Evidence.EXECUTED, ran_with=ran_with, excerpt=reply.excerpt, log=reply.log
        )
    before, after = (
        document.get("max_logprob_difference_before"),
        document.get("max_logprob_difference_after"),
    )
    summary = (
        f"{document.get('engine')} {document.get('engine_version') or ''}: {document.get('tokens')} tokens; "
        "log-probs within "
        f"{_small(before)} of the trainer's, {_small(after)} after new weights"
    )
    return Answer(
        Outcome.PASS,
        summary,
        Evidence.EXECUTED,
        details=tuple(f"{key}: {value}" for key, value in document.items() if key != "versions"),
        ran_with=ran_with,
        log=reply.log,
    )


def _small(value: object) -> str:
    return f"{value:.1e}" if isinstance(value, int | float) else "?"


LAYER = Layer(
    name="engine",
    question="Does the real engine sample, agree with the trainer's log-probs, and take new weights?",
    evidence=Evidence.EXECUTED,
    needs=("install", "import"),
    heavy=True,
    harness=("diagnostics/matrix/ask/layers/engine.py", *in_cell.HARNESS, "grpo_core"),
    inputs=lambda workplace, cell: in_cell.inputs(workplace, cell, "engine"),
    ask=_ask,
)
