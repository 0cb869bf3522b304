"""The commands: each takes the parsed options and returns an exit code."""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import json
import os
import shutil
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from diagnostics import door, given
from diagnostics.collect.compat import problem_of
from diagnostics.collect.secrets import mask
from diagnostics.matrix import probing
from diagnostics.matrix.ask.registry import load
from diagnostics.matrix.build import environments, listing, locks
from diagnostics.matrix.build.workplace import InterpreterError, Workplace
from diagnostics.matrix.plan import breadth
from diagnostics.matrix.plan import releases as known_releases
from diagnostics.matrix.plan.verdicts import exit_code
from diagnostics.matrix.records import gpu_runs
from diagnostics.matrix.records.store import Store
from diagnostics.matrix.report import ci, digests, findings, findings_document, merging, words, write
from diagnostics.matrix.report import confusion as predictions
from diagnostics.matrix.report import publish as compat
from diagnostics.matrix.report.progress import shown
from diagnostics.matrix.report.table import render, short
from diagnostics.matrix.run import cluster, selection
from diagnostics.matrix.run.board import Board, Question, board, question
from diagnostics.matrix.run.runner import Options, ordered
from diagnostics.matrix.run.runner import run as run_questions
from diagnostics.matrix.sweep import command as sweeps
from diagnostics.tables import TableError, close_matches

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from diagnostics.matrix.plan.cells import Cell, Matrix

# uv waits for the index most of the time.
JOBS_PER_CORE = 4


def run(options: argparse.Namespace) -> int:
    """Asks what is due and prints the table."""
    workplace = _workplace(options)
    cells = selection.cells(workplace.matrix, options.cells, options.profile)
    wanted = selection.layers(options.layers)
    if options.list:
        return _list(cells)
    if not wanted:
        wanted = selection.of_profile(workplace.matrix, options.cells, options.profile)
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
    show = findings.render if wide else partial(_table, verbose=options.verbose)
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
        door.write_painted(show(board(questions, workplace.store.read())))
        print("interrupted: what was finished is kept, the next run goes on from here", file=sys.stderr)
        raise
    door.write_painted(show(result))
    print(f"page: {_report(workplace, options.report, result if wide else None)}", file=sys.stderr)
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


def _report(
    workplace: Workplace, named: Path | None, wide: Board | None, cells: list[Cell] | None = None
) -> Path:
    """Writes the reports of the written cells, or of the generated ones that were asked; returns the page."""
    folder = named or workplace.store.folder / "report"
    if wide is None:
        return write(folder, _board(workplace, cells), workplace.store.read())
    page = write(folder / breadth.PROFILE, wide, workplace.store.read())
    (folder / breadth.PROFILE / "findings.txt").write_text(findings.render(wide), encoding="utf-8")
    return page


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
    """Makes the locks of the chosen cells again; of generated ones their digests, unless a folder is named."""
    workplace = replace(_workplace(options), locks_aside=options.into)
    profile = options.profile or "full"
    cells = selection.cells(workplace.matrix, options.cells, profile)
    if profile == breadth.PROFILE and options.into is None:
        return _digests(workplace, cells)
    with shown() as progress:
        workplace.say = progress.note
        problems = locks.refresh(workplace, cells, keep=options.keep)
    for problem in problems:
        print(f"matrix: {problem}", file=sys.stderr)
    return 3 if problems else 0


def _digests(workplace: Workplace, cells: list[Cell]) -> int:
    """Resolves generated cells again and writes the digests of the locks of all that are known."""
    chosen = [cell for cell in cells if "resolve" in cell.layers]
    fresh = frozenset((cell.id, "resolve") for cell in chosen)
    jobs = JOBS_PER_CORE * (os.cpu_count() or 1)
    with workplace.store.locked(), shown() as progress:
        asked = [question(workplace, cell, "resolve") for cell in chosen]
        found = run_questions(workplace, asked, Options(fresh=fresh, jobs=jobs), progress)
    write_digests(workplace)
    open_ = [square for square in found.squares if square.judged.incomplete]
    for square in open_:
        print(f"matrix: {square.question.cell.id}: {square.summary}", file=sys.stderr)
    return 3 if open_ else 0


def write_digests(workplace: Workplace) -> Path:
    """Writes the digests of the generated cells' locks from what the store knows, and returns the file."""
    asked = [
        question(workplace, cell, "resolve")
        for cell in breadth.cells(workplace.matrix)
        if "resolve" in cell.layers
    ]
    file = workplace.locks / digests.GENERATED
    file.write_text(digests.text(board(asked, workplace.store.read())), encoding="utf-8")
    print(file)
    return file


def bisect(options: argparse.Namespace) -> int:
    """Names the first vLLM at which a layer's verdict changes."""
    return probing.bisected(options, _workplace(options))


def add(options: argparse.Namespace) -> int:
    """Tries a release of vLLM that no cell names yet."""
    return probing.added(options, _workplace(options))


def merge(options: argparse.Namespace) -> int:
    """Takes in what other stores know, and what a kit brought back from a GPU box."""
    workplace = _workplace(options)
    stores = [path for path in options.stores if not path.is_file()]
    for folder in stores:
        if not (folder / "store.jsonl").is_file():
            raise TableError(f"{folder}: holds no store.jsonl: expected the folder of a store")
    ran = {path: gpu_runs.read(path) for path in options.stores if path.is_file()}
    with workplace.store.locked():
        for path, document in ran.items():
            kept = gpu_runs.keep(workplace.store.folder, document)
            said = door.line(mask(gpu_runs.told(document)))
            print(f"{path}: {said}{'' if kept else '; is there already'}")
        for folder in stores:
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
    found = listing.fetch(workplace.environ, today, since=since)
    path = workplace.locks / known_releases.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(known_releases.render(found), encoding="utf-8")
    print(f"{path}: {len(found.trl)} releases of TRL, {len(found.vllm)} of vLLM")
    return 0


def publish(options: argparse.Namespace) -> int:
    """Brings compat.json up to date from what the store knows; writes nothing where it does not end well."""
    workplace = _workplace(options)
    named = _named(workplace.matrix, options.cells)
    written, wide = _board(workplace), _wide_if_any(workplace)
    merged = merging.merge(
        compat.document(written, _today(), wide), _published(options.output), written, wide, named
    )
    for line in merged.changed:
        print(f"matrix: changed: {line}", file=sys.stderr)
    for line in merged.open:
        print(f"matrix: no answer: {line}", file=sys.stderr)
    for line in () if options.drop else merged.lost:
        print(f"matrix: would be lost: {line}", file=sys.stderr)
    about = f"{len(merged.changed)} verdicts changed, {merged.kept} stand as published"
    print(f"matrix: {about}, {len(merged.lost)} dropped, {len(merged.open)} open", file=sys.stderr)
    if merged.lost and not options.drop:
        print(
            "matrix: nothing written: --drop leaves out what is published and asked no more", file=sys.stderr
        )
        return 1
    if merged.open:
        print("matrix: nothing written: ask what has no answer, `nox -s matrix` says how", file=sys.stderr)
        return 3
    if options.dry_run:
        return 0
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(compat.text_of(merged.document), encoding="utf-8")
    print(options.output)
    return 0


def _published(path: Path) -> dict[str, Any]:
    """Returns the table that is there, {} for none.

    Raises:
        TableError: it can't be read: what it said would be lost.
    """
    if not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(given.read(path, given.LIST))
    except (OSError, ValueError, RecursionError) as error:
        raise TableError(f"{path}: cannot be read: {error}") from None
    if wrong := problem_of(found):
        raise TableError(f"{path}: expected a table of the schema {compat.SCHEMA}: {wrong}")
    return found


def _named(matrix: Matrix, globs: Sequence[str]) -> Callable[[str], bool]:
    """Returns what tells whether a cell is named, written or generated; all are, where no pattern is given.

    Raises:
        TableError: for a pattern that matches neither.
    """
    names = [cell.id for cell in (*matrix.cells, *breadth.cells(matrix))]
    for pattern in globs:
        if not fnmatch.filter(names, pattern):
            raise TableError(f"no cell matches {pattern!r}{close_matches(pattern, names)}; --list shows all")
    return lambda name: not globs or any(fnmatch.fnmatchcase(name, pattern) for pattern in globs)


def check(options: argparse.Namespace) -> int:
    """Looks whether what is made from the matrix file is there and up to date; asks nothing."""
    workplace = _workplace(options)
    problems = [*locks.problems(workplace, workplace.matrix.cells), *_stale_workflow(workplace.matrix)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def _stale_workflow(matrix: Matrix) -> list[str]:
    path = ci.committed(matrix)
    if path is None:
        return []
    made = (
        (path, ci.usual(matrix), ci.MAKES),
        (path.with_name("release.yml"), ci.release(), ci.MAKES_RELEASE),
        (path.with_name("gpu.yml"), ci.suite(), ci.MAKES_SUITE),
    )
    return [
        f"{each}: is not what the matrix file makes: `nox -s matrix -- {command}` makes it"
        for each, text, command in made
        if each.is_file() and each.read_text(encoding="utf-8") != text
    ]


def found(options: argparse.Namespace) -> int:
    """Writes the findings as a document from what the store knows; asks nothing."""
    workplace = _workplace(options)
    releases = workplace.matrix.releases
    wide = _wide(workplace)
    assert releases is not None  # _wide refuses a matrix without one
    text = findings_document.render(wide, _board(workplace), releases, _today())
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, encoding="utf-8")
    print(options.output)
    return 0


def report(options: argparse.Namespace) -> int:
    """Writes the page and the other reports from what the store knows; asks nothing."""
    workplace = _workplace(options)
    if options.profile not in {None, breadth.PROFILE}:
        raise TableError(
            f"--profile {options.profile}: expected {breadth.PROFILE}, or nothing for the written cells"
        )
    cells = selection.cells(workplace.matrix, options.cells, None) if options.cells else None
    print(_report(workplace, options.report, _wide(workplace) if options.profile else None, cells))
    return 0


def confusion(options: argparse.Namespace) -> int:
    """Prints what doctor said of the cells' environments against what was then seen there; asks nothing."""
    workplace = _workplace(options)
    cells = selection.cells(workplace.matrix, options.cells, "full")
    found = predictions.of(board(_questions(workplace, cells, ()), workplace.store.read()))
    told = predictions.text(found)
    if told:
        print(told.lstrip("\n"), end="")
        return 0
    print(
        f"matrix: {workplace.store.folder}: doctor has looked at none of these {len(cells)} cells: "
        "`nox -s matrix -- --profile full --layers doctor` asks it",
        file=sys.stderr,
    )
    return 3


def sweep(options: argparse.Namespace) -> int:
    """Asks every release of a package for known failures."""
    return sweeps.main(options, _workplace(options))


def workflow(options: argparse.Namespace) -> int:
    """Writes the CI workflow made from the matrix file, or prints it."""
    workplace = _workplace(options)
    cells = selection.cells(workplace.matrix, options.cells, options.profile or "full")
    gpu = [label.strip() for label in options.gpu.split(",") if label.strip()]
    if options.release or options.suite:
        text = ci.release() if options.release else ci.suite(cpu=options.cpu, gpu=gpu)
    else:
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


def _wide_if_any(workplace: Workplace) -> Board:
    """Returns what the store knows of the generated cells; an empty board where none are generated."""
    cells = list(breadth.cells(workplace.matrix))
    return board(_questions(workplace, cells, ()), workplace.store.read())


def _wide(workplace: Workplace) -> Board:
    cells = list(selection.generated(workplace.matrix))
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


def _table(result: Board, *, verbose: bool) -> str:
    """The table, and doctor's word against what was seen; on a screen that they don't fit on, what they come to."""
    live = sys.stdout.isatty()
    whole = render(result, colour=live) + door.visible(predictions.text(predictions.of(result)))
    columns, rows = shutil.get_terminal_size()
    return short(result, columns, rows) if live and not verbose and whole.count("\n") > rows - 2 else whole


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()
