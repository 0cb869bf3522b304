"""The board as one HTML page: no script, no outside assets, nothing fetched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.matrix.report import words

if TYPE_CHECKING:
    from diagnostics.matrix.board import Board, Row, Square

TEMPLATE = Path(__file__).with_name("page.html")


def render(board: Board, generated: str) -> str:
    """Returns the page. Everything that comes from logs or upstream is escaped by the template engine."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    page: str = template.render(
        generated=generated,
        totals=words.totals(board),
        layers=[{"name": name, "question": _question(board, name)} for name in board.layers],
        rows=[_row(board, row) for row in board.rows],
        shapes=[{"shape": shape, "evidence": evidence.value} for evidence, shape in words.SHAPES.items()],
    )
    return page


def _question(board: Board, layer: str) -> str:
    return next(
        square.question.layer.question for square in board.squares if square.question.layer.name == layer
    )


def _row(board: Board, row: Row) -> dict[str, Any]:
    squares = [(layer, row.square(layer)) for layer in board.layers]
    return {
        "cell": row.cell,
        "squares": [
            _square(square) if square else {"layer": layer, "asked": False} for layer, square in squares
        ],
    }


def _square(square: Square) -> dict[str, Any]:
    verdict, event = square.judged.verdict, square.event
    return {
        "asked": True,
        "layer": square.question.layer.name,
        "question": square.question.layer.question,
        "anchor": f"{square.question.cell.id}.{square.question.layer.name}".replace("+", "_").replace(
            ":", "_"
        ),
        "cell": square.question.cell.id,
        "verdict": verdict.value,
        "word": words.word(square.judged),
        "symbol": words.SYMBOLS[verdict],
        "shape": words.SHAPES[square.evidence],
        "evidence": square.evidence.value,
        "surprise": not square.judged.expected and not square.judged.incomplete,
        "codes": square.codes,
        "summary": square.summary,
        "remark": square.judged.remark if square.event else "",
        "expected": square.judged.expected,
        "link": _link(square),
        "command": square.question.command,
        "inputs": square.question.inputs,
        "identity": square.question.identity,
        "answer": event.answer if event else None,
        "points": _points(event.answer.curve) if event else "",
        "started": event.started if event else "",
        "seconds": event.seconds if event else 0.0,
    }


def _points(curve: tuple[float, ...]) -> str:
    """Returns a curve as the points of a line in a box of 400 by 100, the vertical axis from 0 to 1."""
    if len(curve) < 2:
        return ""
    step = 400 / (len(curve) - 1)
    return " ".join(
        f"{index * step:.1f},{100 - 100 * min(1.0, max(0.0, value)):.1f}" for index, value in enumerate(curve)
    )


def _link(square: Square) -> str:
    expectation = square.question.cell.expectation(square.question.layer.name)
    link = expectation.link if expectation else ""
    return link if link.startswith("https://") else ""
