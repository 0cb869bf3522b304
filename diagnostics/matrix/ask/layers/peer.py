"""Does the cell's own TRL take GRPO steps, with vLLM in its process and without?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.matrix.ask.layers import in_cell
from diagnostics.matrix.ask.layers.base import Layer
from diagnostics.matrix.plan.verdicts import Answer, Evidence, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell

SCHEMA = "grpo-doctor.peer.v1"
ENGINES = {"alone": "sampling with transformers", "vllm": "sampling with vLLM in its own process"}
# Of repro, all that the program goes through.
PROGRAM = tuple(
    f"repro/{name}.py"
    for name in (
        "__init__",
        "questions/trl_steps",
        "drivers/tiny_trl",
        "drivers/whole_engine",
        "upstream",
        "base",
    )
)


def _layer(engine: str, about: str) -> Layer:
    name = f"peer:{engine}"

    def ask(workplace: Workplace, cell: Cell) -> Answer:
        arguments = workplace.matrix.layer(name).arguments
        reply = in_cell.ask(workplace, cell, name, ["repro.questions.trl_steps", engine, *arguments], SCHEMA)
        return reply.instead or read(reply, cell)

    return Layer(
        name=name,
        question=f"Does the cell's own GRPOTrainer of TRL take steps, {about}?",
        evidence=Evidence.EXECUTED,
        needs=("install", "import"),
        heavy=True,
        harness=("diagnostics/matrix/ask/layers/peer.py", *in_cell.HARNESS, *PROGRAM),
        inputs=lambda workplace, cell: in_cell.inputs(workplace, cell, name),
        ask=ask,
    )


def read(reply: in_cell.Reply, cell: Cell) -> Answer:
    """Makes the answer of what TRL did; what it raised is a sign that an expectation can name."""
    document = reply.document
    outcome = {"ok": Outcome.PASS, "not_run": Outcome.NOT_RUN}.get(str(document.get("outcome")), Outcome.FAIL)
    error = " ".join(str(document.get("error") or f"outcome {document.get('outcome')!r}").split())
    if document.get("where"):
        error += f" ({document['where']})"
    passed = outcome is Outcome.PASS
    return Answer(
        outcome,
        _steps(document) if passed else error[:300],
        Evidence.EXECUTED,
        signs=() if passed else (error,),
        details=tuple(
            f"{key}: {value}"
            for key, value in document.items()
            if key not in {"versions", "schema", "logged"}
        )
        + tuple(f"{key}, by step: {value}" for key, value in _logged(document).items()),
        ran_with=in_cell.ran_with(cell, document.get("versions")),
        excerpt="" if passed else reply.excerpt,
        log=reply.log,
    )


def _steps(document: Mapping[str, Any]) -> str:
    """Returns what was done, in one line."""
    parts = [f"{document.get('steps')} steps in {document.get('seconds')} s"]
    parts.append(f"weights moved by up to {float(document.get('moved') or 0):.1e}")
    mismatch = _logged(document).get("sampling/sampling_logp_difference/mean")
    if mismatch:
        parts.append(f"engine and trainer apart by {max(mismatch):.1e} in the mean, as TRL logs it")
    return "; ".join(parts)


def _logged(document: Mapping[str, Any]) -> Mapping[str, list[float]]:
    logged = document.get("logged")
    return logged if isinstance(logged, dict) else {}


LAYERS = tuple(_layer(engine, about) for engine, about in ENGINES.items())
