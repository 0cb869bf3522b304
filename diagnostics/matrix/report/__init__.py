"""The board as a terminal table, a page, Markdown, JUnit and JSON. Each takes a board and gives text."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from diagnostics.matrix.records.events import Event
    from diagnostics.matrix.run.board import Board


def write(folder: Path, board: Board, events: Iterable[Event] = ()) -> Path:
    """Writes page, Markdown, JUnit and JSON into a folder and returns the page's path.

    Args:
        folder: made if it is not there.
        board: the verdicts.
        events: all that the store knows, from which the difference to the run before is made.
    """
    from diagnostics.matrix.report import html, json, junit, markdown
    from diagnostics.matrix.report.changes import changes

    folder.mkdir(parents=True, exist_ok=True)
    generated = datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
    page = folder / "index.html"
    texts = {
        page: html.render(board, generated, changes(events)),
        folder / "report.md": markdown.render(board, generated),
        folder / "junit.xml": junit.render(board, generated),
        folder / "report.json": json.render(board, generated),
    }
    for path, text in texts.items():
        aside = path.with_name(path.name + ".part")
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    return page
