"""Makes compat.json, from which `doctor` answers offline, out of the board."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from diagnostics.matrix.resolving import pins, version_of
from diagnostics.matrix.verdicts import Outcome, Verdict

if TYPE_CHECKING:
    from diagnostics.matrix.board import Board, Row, Square

SCHEMA = "grpo-doctor.compat.v1"
# These show known issues of a pair that otherwise works; a reproduced crash doesn't mean that the pair can't
# run.
_ISSUE_LAYERS = {"scheduler"}


def compat(board: Board, generated: str) -> str:
    """Returns the compatibility table as JSON.

    A cell's verdict: `unresolvable` if its requirements have no solution; `fail` if a layer other than
    `scheduler` failed; `pass` if every question that applies passed and at least one answer comes from a run;
    `unknown` if nothing is answered; `partial` otherwise (something was not run, or a known issue was
    reproduced).
    """
    document = {
        "schema": SCHEMA,
        "generated": generated,
        "harness": _harness(),
        "cells": [_cell(row) for row in board.rows],
    }
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _cell(row: Row) -> dict[str, Any]:
    resolved = row.square("resolve")
    found = (
        pins(resolved.event.answer.excerpt)
        if resolved and resolved.event and resolved.event.answer.outcome is Outcome.PASS
        else ()
    )
    return {
        "id": row.cell.id,
        "vllm": row.cell.vllm,
        "trl": row.cell.trl,
        "python": row.cell.python,
        "transformers": version_of(found, "transformers") or None,
        "torch": version_of(found, "torch") or None,
        "verdict": verdict(row),
        "note": row.cell.note or None,
        "layers": {square.question.layer.name: _layer(square) for square in row.squares},
    }


def verdict(row: Row) -> str:
    """Returns what the cell's layers come to together."""
    outcomes = {
        square.question.layer.name: square.event.answer.outcome for square in row.squares if square.event
    }
    if not outcomes:
        return "unknown"
    if Outcome.UNRESOLVABLE in outcomes.values():
        return "unresolvable"
    if any(outcome is Outcome.FAIL for layer, outcome in outcomes.items() if layer not in _ISSUE_LAYERS):
        return "fail"
    ran = any(square.evidence.value == "executed" for square in row.squares)
    everything = all(_settled(square) for square in row.squares)
    return "pass" if everything and ran else "partial"


def _settled(square: Square) -> bool:
    """Tells whether a question passed, or was asked and found not to apply, as expected."""
    inapplicable = (
        square.event is not None and square.judged.verdict is Verdict.NOT_RUN and square.judged.expected
    )
    return square.judged.verdict is Verdict.PASS or inapplicable


def _layer(square: Square) -> dict[str, Any]:
    event = square.event
    return {
        "verdict": square.judged.verdict.value,
        "expected": square.judged.expected,
        "evidence": square.evidence.value,
        "codes": list(square.codes),
        "summary": square.summary,
        "reason": square.judged.remark or None,
        "ran_with": dict(event.answer.ran_with) if event else {},
        "command": square.question.command,
        "date": event.started[:10] if event else None,
    }


def _harness() -> str:
    try:
        return version("grpo-doctor")
    except PackageNotFoundError:
        return "unknown"
