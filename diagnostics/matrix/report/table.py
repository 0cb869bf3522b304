"""The board as a table for the terminal."""

from __future__ import annotations

import io
import shutil
from textwrap import wrap
from typing import TYPE_CHECKING

from diagnostics import door
from diagnostics.matrix.report import words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table
    from rich.text import Text

    from diagnostics.matrix.run.board import Board, Question, Square

LEGEND = "● run  ○ read in source  ◌ nothing run"
# Where no terminal tells its width: wide enough for all columns.
WIDTH = 200
# What a column takes, and what the cells' names take.
_COLUMN, _NAMES = 16, 20
# Lines of what is not as expected, where the table does not fit.
_REMARK = 2


def blocks(layers: Sequence[str], width: int) -> list[Sequence[str]]:
    """Returns the layers in as many lots, about as long, as a table each takes to fit into a width in characters.

    >>> blocks(["a", "b", "c"], 2 * 16 + 20)
    [['a', 'b'], ['c']]
    """
    most = max(1, (width - _NAMES) // _COLUMN)
    count = max(1, -(-len(layers) // most))
    size = max(1, -(-len(layers) // count))
    return [layers[start : start + size] for start in range(0, len(layers), size)]


def table(
    board: Board,
    current: Question | None = None,
    *,
    live: bool = False,
    layers: Sequence[str] | None = None,
) -> Table:
    """Returns the table; the question that is being asked is marked.

    Args:
        board: the verdicts.
        current: the question that is being asked.
        live: whether the run goes on, so that what has no answer yet is waiting.
        layers: the columns; all that some cell is asked, if None.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    drawn.add_column("cell", no_wrap=True)
    columns = board.layers if layers is None else layers
    for layer in columns:
        drawn.add_column(layer.replace(":", "\n"), vertical="top")
    for row in board.rows:
        if layers is not None and not any(row.square(layer) for layer in layers):
            continue  # nothing of this lot is asked of it
        squares: list[Text] = []
        for layer in columns:
            square = row.square(layer)
            asking = current is not None and (current.cell.id, current.layer.name) == (row.cell.id, layer)
            squares.append(Text("… asking", style="bold cyan") if asking else _square(square, live=live))
        drawn.add_row(row.cell.id.replace("+", "\n+ "), *squares)
    return drawn


def symbols(square: Square) -> str:
    """Returns the two symbols of a verdict: how it is known, and what it is."""
    return f"{words.SHAPES[square.evidence]} {words.SYMBOLS[square.judged.verdict]}"


def _square(square: Square | None, *, live: bool) -> Text:
    from rich.text import Text

    if square is None:
        return Text("")
    if live and square.event is None:
        return Text("· waiting", style="dim")
    text = f"{symbols(square)} {words.word(square.judged)}"
    if square.codes:
        text += "\n" + " ".join(square.codes)
    return Text(text, style=words.STYLES[square.judged.verdict])


def render(board: Board, *, colour: bool, width: int | None = None) -> str:
    """Returns the table, the remarks below it and the figures, as text."""
    from rich.text import Text

    stream = io.StringIO()
    width = width or (shutil.get_terminal_size((WIDTH, 40)).columns if colour else WIDTH)
    console = door.console(
        stream,
        width=width,
        force_terminal=colour,
        color_system="auto" if colour else None,
        highlight=False,
    )
    for layers in blocks(board.layers, width):
        console.print(table(board, layers=layers))
    for line, style in remarks(board):
        console.print(Text(line, style=style), soft_wrap=not colour)
    console.print(f"{LEGEND}\n{words.totals(board)}", markup=False)
    return stream.getvalue()


def short(board: Board, width: int, rows: int) -> str:
    """Returns what a board comes to, for a screen that its table does not fit on.

    The figures, then what is not as expected in two lines each, then what to do about it.

    Args:
        board: the verdicts.
        width: of the terminal.
        rows: of the terminal.
    """
    open_ones = [square for square in board.squares if square.event is None or square.judged.incomplete]
    wrong = [
        square for square in board.squares if not square.judged.expected and not square.judged.incomplete
    ]
    known = sum(square.judged.verdict.value == "expected_fail" for square in board.squares)
    lines = wrap(f"matrix: {words.totals(board)}", width)
    lines += [f"{known} fail as is expected of them"] if known else []
    told = []
    for square in wrong:
        head = f"{square.question.cell.id} {square.question.layer.name}: {words.word(square.judged)}"
        told.append(
            wrap(
                f"{head}: {square.summary}",
                width,
                max_lines=_REMARK,
                placeholder=" …",
                subsequent_indent="  ",
            )
        )
    # Two lines for what is left over and what to do, one for the page, the prompt's.
    room = max(rows - len(lines) - 5, _REMARK)
    shown = [remark for place, remark in enumerate(told) if sum(map(len, told[: place + 1])) <= room]
    lines += [line for remark in shown for line in remark]
    lines += [f"and {len(told) - len(shown)} more that are not as expected"] if len(shown) < len(told) else []
    if wrong or open_ones:
        lines.append("asked again: --only-failed; each with its log and command on the page")
    lines.append("--verbose shows the table")
    return door.visible("\n".join(lines)) + "\n"


def remarks(board: Board) -> list[tuple[str, str]]:
    """Returns (line, style) for every verdict but a plain pass: what was seen, and whether it is expected."""
    found = []
    for square in board.squares:
        judged = square.judged
        if square.event is None or judged.verdict.value == "pass":
            continue
        label = "expected: " if judged.expected else ""
        why = f" ({label}{judged.remark})" if judged.remark else ""
        head = f"{square.question.cell.id} {square.question.layer.name}: {words.word(judged)}"
        found.append(
            (f"{head}: {square.summary}{why}", "" if judged.expected else words.STYLES[judged.verdict])
        )
    return found
