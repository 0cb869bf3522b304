"""The commands: each takes the parsed options and returns an exit code."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from diagnostics.matrix import breadth, ci, cluster, environments, findings, locks, probing, selection
from diagnostics.matrix import releases as known_releases
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
from diagnostics.tables import TableError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

# uv waits for the index most of the time.
JOBS_PER_CORE = 4


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
    again = _again(workplace, questions, chosen, options)
    fresh = frozenset(chosen) if options.fresh else again
    only = again if options.only_failed else None
    if options.dry_run:
        return _plan(workplace, questions, fresh, only)
    wide = options.profile == breadth.PROFILE
    if options.ray and options.jobs:
        raise TableError(
            "--jobs: beside --ray the nodes' resources say how much is asked at a time: leave it out"
        )
    jobs = options.jobs or (JOBS_PER_CORE * (os.cpu_count() or 1) if wide else 1)
    show = findings.render if wide else _table
    try:
        with workplace.store.locked(), shown() as progress:
            _fetch_pythons(workplace, cells)
            workplace.stage()  # what runs in cells from here on is what the identities name
            result = run_questions(
                workplace,
                _questions(workplace, cells, wanted),
                Options(fresh, options.keep, only, options.disk_gb, jobs),
                progress,
                partial(cluster.run_on, options.ray) if options.ray else None,
            )
    except KeyboardInterrupt:
        print(show(board(questions, workplace.store.read())), end="", flush=True)
        print("interrupted: what was finished is kept, the next run goes on from here", file=sys.stderr)
        raise
    print(show(result), end="", flush=True)
    _report(workplace, options.report, result if wide else None)
    return exit_code([square.judged for square in result.squares])


def _again(
    workplace: Workplace, questions: list[Question], chosen: set[tuple[str, str]], options: argparse.Namespace
) -> frozenset[tuple[str, str]]:
    """Returns the (cell, layer) that `--only-failed` and `--since` ask again."""
    if not (options.only_failed or options.since):
        return frozenset()
    try:
        day = datetime.date.fromisoformat(options.since).isoformat() if options.since else ""
    except ValueError:
        raise TableError(f"--since {options.since}: expected a day, as 2026-11-20") from None
    found = set()
    for square in board(questions, workplace.store.read()).squares:
        event, name = square.event, (square.question.cell.id, square.question.layer.name)
        if event is None or name not in chosen:
            continue
        failed = options.only_failed and not square.judged.expected
        if failed or event.started[:10] < day:
            found.add(name)
    return frozenset(found)


def _report(workplace: Workplace, named: Path | None, wide: Board | None) -> None:
    """Writes the reports: of all written cells, or of the generated ones that were asked."""
    folder = named or workplace.store.folder / "report"
    if wide is None:
        page = write(folder, _board(workplace), workplace.store.read())
    else:
        page = write(folder / breadth.PROFILE, wide, workplace.store.read())
        (folder / breadth.PROFILE / "findings.txt").write_text(findings.render(wide), encoding="utf-8")
    print(f"page: {page}", file=sys.stderr)


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


def bisect(options: argparse.Namespace) -> int:
    """Names the first vLLM at which a layer's verdict changes."""
    return probing.bisected(options, _workplace(options))


def add(options: argparse.Namespace) -> int:
    """Tries a release of vLLM that no cell names yet."""
    return probing.added(options, _workplace(options))


def merge(options: argparse.Namespace) -> int:
    """Takes in what other stores know."""
    workplace = _workplace(options)
    for folder in options.stores:
        if not (folder / "store.jsonl").is_file():
            raise TableError(f"{folder}: holds no store.jsonl: expected the folder of a store")
    with workplace.store.locked():
        for folder in options.stores:
            count = workplace.store.merge(Store(folder.resolve()))
            print(f"{folder}: {count} new verdicts")
    return 0


def releases(options: argparse.Namespace) -> int:
    """Asks the index which releases there are and writes the list from which cells are generated."""
    workplace = _workplace(options)
    wanted = workplace.matrix.breadth
    if wanted is None:
        raise TableError(f"{workplace.matrix.path}: expected a table [breadth]")
    since = {"trl": wanted.trl_since, "vllm": wanted.vllm_since}
    today = datetime.datetime.now(datetime.UTC).date()
    found = known_releases.fetch(workplace.environ, today, since=since)
    path = workplace.locks / known_releases.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(known_releases.render(found), encoding="utf-8")
    print(f"{path}: {len(found.trl)} releases of TRL, {len(found.vllm)} of vLLM")
    return 0


def publish(options: argparse.Namespace) -> int:
    """Writes compat.json from what the store knows."""
    workplace = _workplace(options)
    result = _board(workplace)
    wide = board(_questions(workplace, list(breadth.cells(workplace.matrix)), ()), workplace.store.read())
    text = compat(result, _today(), wide if any(square.event for square in wide.squares) else None)
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


def report(options: argparse.Namespace) -> int:
    """Writes the page and the other reports from what the store knows; asks nothing."""
    workplace = _workplace(options)
    folder = options.report or workplace.store.folder / "report"
    cells = selection.cells(workplace.matrix, options.cells, None) if options.cells else None
    print(write(folder, _board(workplace, cells), workplace.store.read()))
    return 0


def workflow(options: argparse.Namespace) -> int:
    """Writes the CI workflow made from the matrix file, or prints it."""
    workplace = _workplace(options)
    cells = selection.cells(workplace.matrix, options.cells, options.profile or "full")
    gpu = [label.strip() for label in options.gpu.split(",") if label.strip()]
    text = ci.workflow(workplace.matrix, cells, cpu=options.cpu, gpu=gpu)
    if options.output is None:
        print(text, end="")
        return 0
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, encoding="utf-8")
    print(options.output)
    return 0


def _workplace(options: argparse.Namespace) -> Workplace:
    matrix = load(options.file)
    folder: Path = options.store or matrix.path.resolve().parent / ".matrix"
    return Workplace(matrix, Store(folder.resolve()), programs=options.programs.resolve())


def _questions(workplace: Workplace, cells: list[Cell], wanted: tuple[str, ...]) -> list[Question]:
    """Returns the questions of these cells, with what the wanted layers need."""
    return [
        question(workplace, cell, layer) for cell in cells for layer in selection.with_needs(cell, wanted)
    ]


def _board(workplace: Workplace, cells: list[Cell] | None = None) -> Board:
    """Returns what the store knows of these cells, of all written ones if none are named."""
    asked = list(workplace.matrix.cells) if cells is None else cells
    return board(_questions(workplace, asked, ()), workplace.store.read())


def _fetch_pythons(workplace: Workplace, cells: list[Cell]) -> None:
    """Sees to it that each cell's Python is there, since identities name its full version."""
    for minor in sorted({cell.python for cell in cells if cell.recipe}):
        with contextlib.suppress(InterpreterError):  # the layers say it, cell by cell
            workplace.interpreter(minor, fetch=True)


def _list(cells: list[Cell]) -> int:
    for cell in cells:
        print(f"{cell.id}  python {cell.python}, at {cell.exclude_newer}: {', '.join(cell.layers)}")
    return 0


def _plan(
    workplace: Workplace,
    questions: list[Question],
    fresh: frozenset[tuple[str, str]],
    only: frozenset[tuple[str, str]] | None,
) -> int:
    """Prints what a run would do."""
    now = board(questions, workplace.store.read())
    squares = {(square.question.cell.id, square.question.layer.name): square for square in now.squares}
    for item in ordered(questions):
        square = squares[item.cell.id, item.layer.name]
        answered = square.event is not None and square.event.finished
        if only is not None and (item.cell.id, item.layer.name) not in only:
            line = "left out: not among what failed"
        elif answered and (item.cell.id, item.layer.name) not in fresh:
            line = f"known ({words.word(square.judged)})"
        else:
            limit = workplace.matrix.layer(item.layer.name).timeout_s
            line = f"ask{' again' if answered else ''}, at most {limit:.0f} s"
        print(f"{item.cell.id}  {item.layer.name}: {line}")
    return 0


def _table(result: Board) -> str:
    return render(result, colour=sys.stdout.isatty())


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()
