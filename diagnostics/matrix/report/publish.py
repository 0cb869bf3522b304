"""Makes compat.json, from which `doctor` answers offline, out of the board."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from diagnostics.matrix.ask.layers.contract import AT_IMPORT
from diagnostics.matrix.plan.verdicts import Evidence, Outcome, Verdict
from diagnostics.matrix.run import triaged

if TYPE_CHECKING:
    from diagnostics.matrix.run.board import Board, Row, Square

SCHEMA = "grpo-doctor.compat.v1"


def compat(board: Board, generated: str, wide: Board | None = None) -> str:
    """Returns the compatibility table as JSON.

    Args:
        board: the written cells.
        generated: the day.
        wide: the generated cells; what is answered of them stands under `breadth`, in short (see `breadth`).

    A cell's verdict: `unresolvable` if its requirements have no solution and nothing of it ran; `fail` if a
    layer other than `scheduler` and `repro:CODE` failed, and not only because there is no GPU; `pass` if every
    question that applies passed and at least one answer comes from a run; `unknown` if nothing is answered;
    `partial` otherwise (something was not run, a known issue of the release was reproduced, or what has no solution
    ran). A known issue that a setting decides, made to happen by `repro:CODE`, says nothing about the pair.
    """
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "generated": generated,
        "harness": _harness(),
        "cells": [_cell(row) for row in board.rows],
    }
    if wide is not None:
        document["breadth"] = breadth(wide)
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def breadth(board: Board) -> dict[str, Any]:
    """Returns what is known of generated cells, by TRL: its declared range, and by layer and outcome the vLLM releases.

    Releases stand in one string, separated by spaces. A release that stands nowhere in a layer was not asked there, or
    gave no answer: nothing is known. A contract that failed names what is missing first. All of it is known from
    metadata and source, none of it from a run.
    """
    found: dict[str, Any] = {}
    answered = 0
    for row in board.rows:
        known = found.setdefault(row.cell.trl, {"declares": row.cell.declares or ""})
        for square in row.squares:
            if square.event is None or not square.event.finished:
                continue
            answered += 1
            said = known.setdefault(square.question.layer.name, {})
            said.setdefault(_said(square), []).append(row.cell.vllm)
    joined = {
        trl: {
            key: value if isinstance(value, str) else {said: " ".join(names) for said, names in value.items()}
            for key, value in known.items()
        }
        for trl, known in found.items()
    }
    return {"evidence": "static", "questions": len(board.squares), "answered": answered, "trl": joined}


def _said(square: Square) -> str:
    """Returns an outcome and, of a failure, what is missing first: at import before what is met later."""
    assert square.event is not None
    answer = square.event.answer
    missing = sorted(answer.told("missing"), key=lambda fact: (fact[1] != AT_IMPORT, fact[0]))
    first = missing[:1] if answer.outcome is Outcome.FAIL else []
    return " ".join((answer.outcome.value, *(name for name, _when in first)))


def _cell(row: Row) -> dict[str, Any]:
    resolved = row.square("resolve")
    found = resolved.event.answer.packages if resolved and resolved.event else {}
    return {
        "id": row.cell.id,
        "vllm": row.cell.vllm,
        "trl": row.cell.trl,
        "python": row.cell.python,
        "transformers": found.get("transformers"),
        "torch": found.get("torch"),
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
    if Outcome.UNRESOLVABLE in outcomes.values() and not _works(row):
        return "unresolvable"
    if any(
        square.event.answer.outcome is Outcome.FAIL
        for square in row.squares
        if square.event and not square.of_machine and not square.of_issues
    ):
        return "fail"
    ran = any(square.evidence.value == "executed" for square in row.squares)
    everything = all(_settled(square) for square in row.squares)
    return "pass" if everything and ran else "partial"


def _works(row: Row) -> bool:
    """Tells whether something of the pair ran and passed: then it can be had together, whatever it declares."""
    return any(
        square.event is not None
        and square.event.answer.outcome is Outcome.PASS
        and square.event.answer.evidence is Evidence.EXECUTED
        and square.question.layer.name not in {"install", "doctor"}
        and not square.of_issues
        for square in row.squares
    )


def _settled(square: Square) -> bool:
    """Tells whether a question passed, or was asked and found not to apply, as expected."""
    inapplicable = (
        square.event is not None and square.judged.verdict is Verdict.NOT_RUN and square.judged.expected
    )
    return square.judged.verdict is Verdict.PASS or inapplicable or _by_setting(square)


def _by_setting(square: Square) -> bool:
    """Tells whether a repro made happen, as announced, what a setting decides and not the pair."""
    codes = square.asked_about
    return bool(codes) and all(map(triaged.by_setting, codes)) and square.judged.expected


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
