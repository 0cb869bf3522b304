"""The board as JSON, for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from diagnostics.matrix.report import confusion

if TYPE_CHECKING:
    from diagnostics.matrix.run.board import Board, Square

SCHEMA = "grpo-doctor.matrix-report.v1"


def render(board: Board, generated: str) -> str:
    """Returns the whole board, evidence included, as one JSON document."""
    document = {
        "schema": SCHEMA,
        "generated": generated,
        "counts": {verdict.value: count for verdict, count in sorted(board.counts().items())},
        "questions": len(board.squares),
        "doctor": confusion.document(confusion.of(board)),
        "cells": [
            {
                "id": row.cell.id,
                "vllm": row.cell.vllm,
                "trl": row.cell.trl,
                "python": row.cell.python,
                "exclude_newer": row.cell.exclude_newer.isoformat(),
                "note": row.cell.note,
                "layers": {square.question.layer.name: _square(square) for square in row.squares},
            }
            for row in board.rows
        ],
    }
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _square(square: Square) -> dict[str, Any]:
    event = square.event
    found: dict[str, Any] = {
        "verdict": square.judged.verdict.value,
        "expected": square.judged.expected,
        "remark": square.judged.remark,
        "evidence": square.evidence.value,
        "codes": list(square.codes),
        "summary": square.summary,
        "command": square.question.command,
        "identity": square.question.identity,
        "inputs": dict(square.question.inputs),
    }
    if event is not None:
        answer = event.answer
        found |= {
            "outcome": answer.outcome.value,
            "signs": list(answer.signs),
            "details": list(answer.details),
            "ran_with": dict(answer.ran_with),
            "log": answer.log,
            "started": event.started,
            "seconds": event.seconds,
        }
    return found
