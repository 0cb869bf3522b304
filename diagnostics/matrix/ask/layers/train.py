"""Does the reference trainer take steps with this engine, in each of the three rollout modes?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from diagnostics.matrix.ask.layers import in_cell
from diagnostics.matrix.ask.layers.base import Layer
from diagnostics.matrix.plan.verdicts import Answer, Evidence, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell

SCHEMA = "grpo-doctor.train.v1"
# Points of a reward curve on the page.
POINTS = 50
MODES = {
    "colocate": "trainer and engine take turns",
    "async": "the engine samples in a process of its own, one policy version ahead",
    "server": "the engine is a server on loopback",
}


def _layer(mode: str, about: str) -> Layer:
    name = f"train:{mode}"

    def ask(workplace: Workplace, cell: Cell) -> Answer:
        arguments = workplace.matrix.layer(name).arguments
        reply = in_cell.ask(
            workplace, cell, name, ["grpo_core", "train", "--rollout.mode", mode, *arguments], SCHEMA
        )
        return reply.instead or read(reply, cell)

    return Layer(
        name=name,
        question=f"Does the reference trainer train with it when {about}?",
        evidence=Evidence.EXECUTED,
        needs=("install", "import", "engine"),
        heavy=True,
        harness=("diagnostics/matrix/ask/layers/train.py", *in_cell.HARNESS, "grpo_core"),
        inputs=lambda workplace, cell: in_cell.inputs(workplace, cell, name),
        ask=ask,
    )


def read(reply: in_cell.Reply, cell: Cell) -> Answer:
    """Makes the answer of a training run's document."""
    document = reply.document
    ran_with = in_cell.ran_with(cell, document.get("versions"))
    details = tuple(f"{key}: {value}" for key, value in document.items() if key not in {"versions", "schema"})
    problem = _problem(document)
    if problem:
        return Answer(
            Outcome.FAIL,
            problem,
            Evidence.EXECUTED,
            details=details,
            ran_with=ran_with,
            excerpt=reply.excerpt,
            log=reply.log,
        )
    summary = (
        f"{document.get('steps')} steps with {document.get('engine')}: "
        f"reward {_number(document.get('reward_first'))} → {_number(document.get('reward_last'))}; "
        f"{document.get('syncs_proven')} of {document.get('syncs')} weight syncs proven; "
        f"staleness ≤ {document.get('max_staleness')}"
    )
    curve = rewards(reply.folder / str(document.get("metrics")))
    return Answer(
        Outcome.PASS,
        summary,
        Evidence.EXECUTED,
        details=details,
        curve=curve,
        ran_with=ran_with,
        log=reply.log,
    )


def rewards(metrics: Path) -> tuple[float, ...]:
    """Returns the mean reward by step, averaged to at most `POINTS` points; nothing if there is no such file."""
    try:
        lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return ()
    found = [float(line["reward/mean"]) for line in lines if isinstance(line, dict) and "reward/mean" in line]
    width = max(1, -(-len(found) // POINTS))
    parts = (found[start : start + width] for start in range(0, len(found), width))
    return tuple(round(sum(part) / len(part), 4) for part in parts)


def _problem(document: Mapping[str, object]) -> str:
    """Returns why the run doesn't count as training, '' if it does."""
    if document.get("outcome") != "ok":
        return " ".join(str(document.get("error") or f"outcome {document.get('outcome')!r}").split())[:300]
    if not document.get("steps"):
        return "no step was taken"
    if document.get("syncs_proven") != document.get("syncs"):
        return f"only {document.get('syncs_proven')} of {document.get('syncs')} weight syncs were proven"
    first, last = document.get("reward_first"), document.get("reward_last")
    if not (isinstance(first, int | float) and isinstance(last, int | float) and last > first):
        return f"the reward did not rise: {_number(first)} to {_number(last)}"
    return ""


def _number(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else "?"


LAYERS = tuple(_layer(mode, about) for mode, about in MODES.items())
