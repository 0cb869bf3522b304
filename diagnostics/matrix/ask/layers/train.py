"""Does the reference trainer take steps with this engine, in each of the three rollout modes?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from diagnostics.matrix.ask import in_cell
from diagnostics.matrix.plan.verdicts import Answer, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from diagnostics.matrix.plan.cells import Cell

SCHEMA = "grpo-doctor.train.v1"
# Points of a reward curve on the page.
POINTS = 50
MODES = {
    "colocate": "trainer and engine take turns",
    "async": "the engine samples in a process of its own, one policy version ahead",
    "server": "the engine is a server on loopback",
}


def read(reply: in_cell.Reply, cell: Cell) -> Answer:
    """Makes the answer of a training run's document."""
    document = reply.document
    problem = _problem(document)
    if problem:
        return in_cell.answer(reply, cell, Outcome.FAIL, problem)
    summary = (
        f"{document.get('steps')} steps with {document.get('engine')}: "
        f"reward {_number(document.get('reward_first'))} → {_number(document.get('reward_last'))}; "
        f"{document.get('syncs_proven')} of {document.get('syncs')} weight syncs proven; "
        f"staleness ≤ {document.get('max_staleness')}"
    )
    curve = rewards(reply.folder / str(document.get("metrics")))
    return in_cell.answer(reply, cell, Outcome.PASS, summary, curve=curve)


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
        return " ".join(str(document.get("error") or f"outcome {document.get('outcome')!r}").split())
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


LAYERS = tuple(
    in_cell.layer(
        f"train:{mode}",
        100 + place,
        "training",
        f"Does the reference trainer train with it when {about}?",
        ("grpo_core", "train", "--rollout.mode", mode),
        SCHEMA,
        read,
        needs=(*in_cell.USABLE, "engine"),
    )
    for place, (mode, about) in enumerate(MODES.items())
)
