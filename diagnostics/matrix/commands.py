"""The commands: each takes the parsed options and returns an exit code."""

from __future__ import annotations

import contextlib
import datetime
import sys
from typing import TYPE_CHECKING

from diagnostics.matrix import environments, locks, selection
from diagnostics.matrix.board import Board, Question, board, question
from diagnostics.matrix.cells import Cell, load
from diagnostics.matrix.progress import shown
from diagnostics.matrix.publish import compat
from diagnostics.matrix.report import words, write
from diagnostics.matrix.report.table import render
from diagnostics.matrix.runner import Options, ordered
from diagnostics.matrix.runner import run as run_questions
from diagnostics.matrix.store import Store
from diagnostics.matrix.verdicts import exit_code
from diagnostics.matrix.workplace import InterpreterError, Workplace

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def run(options: argparse.Namespace) -> int:
    """Asks what is due and prints the table."""
    workplace = _workplace(options)
    cells = selection.cells(workplace.matrix, options.cells, options.profile)
    wanted = selection.layers(options.layers)
    if options.list:
        return _list(cells)
    questions = _questions(workplace, cells, wanted)
    chosen = {
        (item.cell.id, item.layer.name) for item in questions if not wanted or item.layer.name in wanted
    }
    fresh = frozenset(chosen) if options.fresh else frozenset()
    if options.dry_run:
        return _plan(workplace, questions, fresh)
    try:
        with workplace.store.locked(), shown() as progress:
            _fetch_pythons(workplace, cells)
            workplace.stage()  # what runs in cells from here on is what the identities name
            result = run_questions(
                workplace, _questions(workplace, cells, wanted), Options(fresh, options.keep), progress
            )
    except KeyboardInterrupt:
        _print(board(questions, workplace.store.read()))
        print("interrupted: what was finished is kept, the next run goes on from here", file=sys.stderr)
        raise
    _print(result)
    everything = _board(workplace)
    folder = options.report or workplace.store.folder / "report"
    page = write(folder, everything, workplace.store.read())
    print(f"page: {page}", file=sys.stderr)
    return exit_code([square.judged for square in result.squares])


def environment(options: argparse.Namespace) -> int:
    """Builds a cell's environment unless it is there, and prints its path."""
    workplace = _workplace(options)
    cell = workplace.matrix.cell(options.cell)
    with workplace.store.locked(), shown() as progress:
        workplace.say = progress.note
        try:
            environments.ensure(workplace, cell)
        except environments.BuildError as error:
            print(f"matrix: {error}", file=sys.stderr)
            return 3 if error.infrastructure else 1
    print(environments.folder(workplace, cell))
    return 0


def lock(options: argparse.Namespace) -> int:
    """Makes the locks of the chosen cells again."""
    workplace = _workplace(options)
    profile = options.profile or "full"
    cells = selection.cells(workplace.matrix, options.cells, profile)
    with shown() as progress:
        workplace.say = progress.note
        problems = locks.refresh(workplace, cells)
    for problem in problems:
        print(f"matrix: {problem}", file=sys.stderr)
    return 3 if problems else 0


def publish(options: argparse.Namespace) -> int:
    """Writes compat.json from what the store knows."""
    workplace = _workplace(options)
    result = _board(workplace)
    text = compat(result, _today())
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, encoding="utf-8")
    print(options.output)
    unanswered = [square for square in result.squares if square.judged.incomplete]
    for square in unanswered:
        where = f"{square.question.cell.id} {square.question.layer.name}"
        print(
            f"matrix: published as {square.judged.verdict.value}: {where}: {square.summary}", file=sys.stderr
        )
    return 3 if unanswered else 0


def _workplace(options: argparse.Namespace) -> Workplace:
    matrix = load(options.file)
    folder: Path = options.store or matrix.path.resolve().parent / ".matrix"
    return Workplace(matrix, Store(folder.resolve()), programs=options.programs.resolve())


def _questions(workplace: Workplace, cells: list[Cell], wanted: tuple[str, ...]) -> list[Question]:
    """Returns the questions of these cells, with what the wanted layers need."""
    return [
        question(workplace, cell, layer) for cell in cells for layer in selection.with_needs(cell, wanted)
    ]


def _board(workplace: Workplace) -> Board:
    cells = list(workplace.matrix.cells)
    return board(_questions(workplace, cells, ()), workplace.store.read())


def _fetch_pythons(workplace: Workplace, cells: list[Cell]) -> None:
    """Sees to it that each cell's Python is there, since identities name its full version."""
    for minor in sorted({cell.python for cell in cells if cell.recipe}):
        with contextlib.suppress(InterpreterError):  # the layers say it, cell by cell
            workplace.interpreter(minor, fetch=True)


def _list(cells: list[Cell]) -> int:
    for cell in cells:
        print(f"{cell.id}  python {cell.python}, at {cell.exclude_newer}: {', '.join(cell.layers)}")
    return 0


def _plan(workplace: Workplace, questions: list[Question], fresh: frozenset[tuple[str, str]]) -> int:
    """Prints what a run would do."""
    now = board(questions, workplace.store.read())
    squares = {(square.question.cell.id, square.question.layer.name): square for square in now.squares}
    for item in ordered(questions):
        square = squares[item.cell.id, item.layer.name]
        answered = square.event is not None and square.event.finished
        if answered and (item.cell.id, item.layer.name) not in fresh:
            line = f"known ({words.word(square.judged)})"
        else:
            limit = workplace.matrix.layer(item.layer.name).timeout_s
            line = f"ask{' again' if answered else ''}, at most {limit:.0f} s"
        print(f"{item.cell.id}  {item.layer.name}: {line}")
    return 0


def _print(result: Board) -> None:
    print(render(result, colour=sys.stdout.isatty()), end="", flush=True)


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()
