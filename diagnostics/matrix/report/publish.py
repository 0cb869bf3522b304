"""Makes compat.json, from which `doctor` answers offline, out of the board."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from diagnostics.matrix.ask.layers.contract import AT_IMPORT
from diagnostics.matrix.ask.registry import BY_NAME
from diagnostics.matrix.plan.verdicts import Outcome
from diagnostics.matrix.run import triaged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.matrix.plan.cells import Cell
    from diagnostics.matrix.run.board import Board, Row, Square

SCHEMA = "grpo-doctor.compat.v1"
_FAILED = frozenset({"fail", "expected_fail", "flaky"})
_PASSED = frozenset({"pass", "unexpected_pass"})


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
    return text_of(document(board, generated, wide))


def document(board: Board, generated: str, wide: Board | None = None) -> dict[str, Any]:
    """Returns the same for programs."""
    made: dict[str, Any] = {
        "schema": SCHEMA,
        "generated": generated,
        "harness": _harness(),
        "cells": [_cell(row) for row in board.rows],
    }
    if wide is not None:
        made["breadth"] = breadth(wide)
    return made


def text_of(made: Mapping[str, Any]) -> str:
    """Returns the file."""
    return json.dumps(made, ensure_ascii=False, indent=1) + "\n"


def breadth(board: Board) -> dict[str, Any]:
    """Returns what is known of generated cells, by TRL: its declared range, and by layer and outcome the vLLM releases.

    Releases stand in one string, separated by spaces. A release that stands nowhere in a layer was not asked there, or
    gave no answer: nothing is known. A contract that failed names what is missing first, one that was not judged what
    could not be decided. All of it is known from metadata and source, none of it from a run.
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
    """Returns an outcome and what decides it: of what is missing first what is met at import, or what is undecided."""
    assert square.event is not None
    answer = square.event.answer
    kind = {Outcome.FAIL: "missing", Outcome.NOT_JUDGED: "undecided"}.get(answer.outcome, "")
    facts = sorted(answer.told(kind), key=lambda fact: (fact[1] != AT_IMPORT, fact[0]))
    return " ".join((answer.outcome.value, *(fact[0] for fact in facts[:1])))


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
    return verdict_of(row.cell, {square.question.layer.name: _layer(square) for square in row.squares})


def verdict_of(cell: Cell, layers: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns what a cell's layers come to together, as they stand in the table."""
    answered = {name: layer for name, layer in layers.items() if layer["date"]}
    if not answered:
        return "unknown"
    if any(layer["verdict"] == "unresolvable" for layer in answered.values()) and not _works(answered):
        return "unresolvable"
    if any(
        layer["verdict"] in _FAILED and not _of_machine(cell, name, layer) and not _of_issues(name)
        for name, layer in answered.items()
    ):
        return "fail"
    ran = any(layer["evidence"] == "executed" for layer in layers.values())
    everything = all(_settled(name, layer) for name, layer in layers.items())
    return "pass" if everything and ran else "partial"


def _of_machine(cell: Cell, name: str, layer: Mapping[str, Any]) -> bool:
    expectation = cell.expectation(name)
    return bool(expectation and expectation.of_machine and layer["expected"])


def _of_issues(name: str) -> bool:
    return name in BY_NAME and BY_NAME[name].codes is not None


def _works(answered: Mapping[str, Mapping[str, Any]]) -> bool:
    """Tells whether something of the pair ran and passed: then it can be had together, whatever it declares."""
    return any(
        layer["verdict"] in _PASSED
        and layer["evidence"] == "executed"
        and name not in {"install", "doctor"}
        and not _of_issues(name)
        for name, layer in answered.items()
    )


def _settled(name: str, layer: Mapping[str, Any]) -> bool:
    """Tells whether a question passed, or was asked and found not to apply, as expected."""
    inapplicable = layer["date"] and layer["verdict"] == "not_run" and layer["expected"]
    return layer["verdict"] == "pass" or bool(inapplicable) or (_of_issues(name) and _by_setting(layer))


def _by_setting(layer: Mapping[str, Any]) -> bool:
    """Tells whether what was made to happen, as announced, is what a setting decides and not the pair."""
    codes = layer["codes"] if layer["verdict"] == "expected_fail" else ()
    return bool(codes) and all(map(triaged.by_setting, codes))


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
