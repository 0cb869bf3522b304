"""The board as a terminal table, a page, Markdown, JUnit and JSON. Each takes a board and gives text."""

from __future__ import annotations

import datetime
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from diagnostics import door
from diagnostics.output import clean
from diagnostics.output.personal import strip

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from diagnostics.matrix.records.events import Event
    from diagnostics.matrix.run.board import Board, Square


def write(folder: Path, board: Board, events: Iterable[Event] = ()) -> Path:
    """Writes page, Markdown, JUnit and JSON into a folder and returns the page's path.

    Args:
        folder: made if it is not there.
        board: the verdicts.
        events: all that the store knows, from which the difference to the run before is made.
    """
    from diagnostics.matrix.report import html, json, junit, markdown
    from diagnostics.matrix.report.changes import changes

    board = shareable(board)
    folder.mkdir(parents=True, exist_ok=True)
    generated = datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
    page = folder / "index.html"
    texts = {
        page: html.render(board, generated, changes(map(_named, events))),
        folder / "report.md": markdown.render(board, generated),
        folder / "junit.xml": junit.render(board, generated),
        folder / "report.json": json.render(board, generated),
    }
    for path, text in texts.items():
        aside = path.with_name(path.name + ".part")
        aside.write_text(door.visible(text), encoding="utf-8")
        aside.replace(path)
    return page


def shareable(board: Board) -> Board:
    """The board for everybody's eyes: reports are uploaded and pasted, and hold what upstream code said."""
    rows = [replace(row, squares=tuple(_shareable(square) for square in row.squares)) for row in board.rows]
    return replace(board, rows=tuple(rows))


def _shareable(square: Square) -> Square:
    judged = replace(square.judged, remark=_clean(square.judged.remark))
    if square.event is None:
        return replace(square, judged=judged)
    answer = square.event.answer
    answer = replace(
        answer,
        summary=_clean(answer.summary),
        excerpt=_clean(answer.excerpt),
        signs=tuple(map(_clean, answer.signs)),
        details=tuple(map(_clean, answer.details)),
        grids=clean.shareable(answer.grids),
        ran_with=tuple((_clean(what), _clean(with_what)) for what, with_what in answer.ran_with),
    )
    return replace(square, judged=judged, event=replace(square.event, answer=answer))


def _named(event: Event) -> Event:
    """With names of inputs for everybody's eyes: of a change, those that differ are told."""
    return replace(event, inputs=tuple((_clean(name), value) for name, value in event.inputs))


@lru_cache(4096)
def _clean(text: str) -> str:
    return door.visible(strip(text))
