"""The board as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.report import confusion, table, words
from diagnostics.output.formats.markdown import text_of

if TYPE_CHECKING:
    from diagnostics.matrix.run.board import Board, Square


def render(board: Board, generated: str) -> str:
    """Returns the table and the remarks as a Markdown document."""
    head = ["cell", *board.layers]
    lines = ["# Compatibility matrix", "", f"Made {generated}. {words.totals(board)}. {table.LEGEND}.", ""]
    lines += [_line(head), _line(["---"] * len(head))]
    lines += [
        _line([f"`{row.cell.id}`", *(_square(row.square(layer)) for layer in board.layers)])
        for row in board.rows
    ]
    remarks = table.remarks(board)
    if remarks:
        lines += ["", "## What was observed", "", *(f"- {text_of(text)}" for text, _style in remarks)]
    lines += confusion.markdown(confusion.of(board), text_of)
    return "\n".join(lines) + "\n"


def _line(parts: list[str]) -> str:
    return f"| {' | '.join(parts)} |"


def _square(square: Square | None) -> str:
    if square is None:
        return ""
    codes = f" {' '.join(square.codes)}" if square.codes else ""
    return f"{table.symbols(square)} {words.word(square.judged)}{codes}"
