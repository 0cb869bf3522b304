"""Do the cell's own rollout servers start, and answer? Each as its project ships it, with nothing of ours in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.ask.layers import in_cell
from diagnostics.matrix.ask.layers.base import Layer
from diagnostics.matrix.plan.verdicts import Answer, Evidence, Outcome

if TYPE_CHECKING:
    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell

SCHEMA = "grpo-doctor.started.v1"
SERVERS = {"vllm": "vllm serve", "trl": "trl vllm-serve"}


def _layer(server: str, command: str) -> Layer:
    name = f"serve:{server}"

    def ask(workplace: Workplace, cell: Cell) -> Answer:
        arguments = workplace.matrix.layer(name).arguments
        program = ["repro.questions.servers_start", server, *arguments]
        reply = in_cell.ask(workplace, cell, name, program, SCHEMA)
        return reply.instead or read(reply, cell)

    return Layer(
        name=name,
        question=f"Does `{command}` of the cell's own packages start and answer a request?",
        evidence=Evidence.EXECUTED,
        needs=("install", "import"),
        heavy=True,
        harness=("diagnostics/matrix/ask/layers/serve.py", *in_cell.HARNESS, "grpo_core"),
        inputs=lambda workplace, cell: in_cell.inputs(workplace, cell, name),
        ask=ask,
    )


def read(reply: in_cell.Reply, cell: Cell) -> Answer:
    """Makes the answer of what the program saw; a failure is a sign that an expectation can name."""
    document = reply.document
    ran_with = in_cell.ran_with(cell, document.get("versions"))
    details = tuple(f"{key}: {value}" for key, value in document.items() if key not in {"versions", "schema"})
    server = document.get("server")
    if document.get("outcome") != "ok":
        error = " ".join(str(document.get("error") or f"outcome {document.get('outcome')!r}").split())
        return Answer(
            Outcome.FAIL,
            f"{server}: {error}"[:300],
            Evidence.EXECUTED,
            signs=(error,),
            details=details,
            ran_with=ran_with,
            excerpt=reply.excerpt,
            log=reply.log,
        )
    return Answer(
        Outcome.PASS,
        f"{server}: up, and {document.get('protocol')} answered with {document.get('tokens')} tokens",
        Evidence.EXECUTED,
        details=details,
        ran_with=ran_with,
        log=reply.log,
    )


LAYERS = tuple(_layer(server, command) for server, command in SERVERS.items())
