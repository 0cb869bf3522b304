"""Do the cell's own rollout servers start, and answer? Each as its project ships it, with nothing of ours in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.ask import in_cell
from diagnostics.matrix.plan.verdicts import Answer, Outcome

if TYPE_CHECKING:
    from diagnostics.matrix.plan.cells import Cell

SCHEMA = "grpo-doctor.started.v1"
SERVERS = {"vllm": "vllm serve", "trl": "trl vllm-serve"}


def read(reply: in_cell.Reply, cell: Cell) -> Answer:
    """Makes the answer of what the program saw."""
    document = reply.document
    server = str(document.get("server"))
    if document.get("outcome") != "ok":
        return in_cell.failed(reply, cell, server=server)
    said = f"{server}: up, and {document.get('protocol')} answered with {document.get('tokens')} tokens"
    return in_cell.answer(reply, cell, Outcome.PASS, said)


LAYERS = tuple(
    in_cell.layer(
        f"serve:{server}",
        130 + place,
        "engine",
        f"Does `{command}` of the cell's own packages start and answer a request?",
        ("repro.questions.servers_start", server),
        SCHEMA,
        read,
    )
    for place, (server, command) in enumerate(SERVERS.items())
)
