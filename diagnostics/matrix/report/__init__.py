"""The board as a terminal table, a page, Markdown and JSON. Each takes a board and gives text."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from diagnostics.matrix.board import Board


def write(folder: Path, board: Board) -> Path:
    """Writes page, Markdown and JSON into a folder and returns the page's path."""
    from diagnostics.matrix.report import html, json, markdown

    folder.mkdir(parents=True, exist_ok=True)
    generated = datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
    page = folder / "index.html"
    texts = {
        page: html.render(board, generated),
        folder / "report.md": markdown.render(board, generated),
        folder / "report.json": json.render(board, generated),
    }
    for path, text in texts.items():
        aside = path.with_name(path.name + ".part")
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    return page
