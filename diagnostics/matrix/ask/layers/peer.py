"""Does the cell's own TRL take GRPO steps, with vLLM in its process and without?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.matrix.ask import in_cell
from diagnostics.matrix.plan.verdicts import Answer, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.matrix.plan.cells import Cell

SCHEMA = "grpo-doctor.peer.v1"
ENGINES = {"alone": "sampling with transformers", "vllm": "sampling with vLLM in its own process"}


def read(reply: in_cell.Reply, cell: Cell) -> Answer:
    """Makes the answer of what TRL did; what it raised is a sign that an expectation can name."""
    document = reply.document
    outcome = {"ok": Outcome.PASS, "not_run": Outcome.NOT_RUN}.get(str(document.get("outcome")), Outcome.FAIL)
    error = " ".join(str(document.get("error") or f"outcome {document.get('outcome')!r}").split())
    if document.get("where"):
        error += f" ({document['where']})"
    passed = outcome is Outcome.PASS
    lines = (
        *(
            f"{key}: {value}"
            for key, value in document.items()
            if key not in {"versions", "schema", "logged"}
        ),
        *(f"{key}, by step: {value}" for key, value in _logged(document).items()),
    )
    said, signs = (_steps(document), ()) if passed else (error, (error,))
    return in_cell.answer(reply, cell, outcome, said, signs=signs, details=lines)


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


LAYERS = tuple(
    in_cell.layer(
        f"peer:{engine}",
        90,
        "training",
        f"Does the cell's own GRPOTrainer of TRL take steps, {about}?",
        ("repro.questions.trl_steps", engine),
        SCHEMA,
        read,
    )
    for engine, about in ENGINES.items()
)
