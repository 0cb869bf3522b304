"""Run the compatibility matrix: run cells, update locks, try new releases, report and publish.

The functions `*_command` are the workflows; each calls its steps in order. Exit codes: 0 everything is as expected,
1 something is not, 2 wrong usage, 3 something has no answer.
"""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
from click import option

from diagnostics import UserError
from diagnostics.cli import report_error
from diagnostics.matrix import locks, workflow
from diagnostics.matrix.add_release import add_release
from diagnostics.matrix.cells import Cell, load_matrix
from diagnostics.matrix.context import ROOT, Context, InterpreterError
from diagnostics.matrix.environments import BuildError, ensure_environment, environment_folder
from diagnostics.matrix.layers import LAYERS, SOLVING
from diagnostics.matrix.progress import displayed_progress
from diagnostics.matrix.publish import Publication, make_publication, publication_text, read_published
from diagnostics.matrix.ray_cells import run_on_ray
from diagnostics.matrix.releases import PROFILE as BREADTH
from diagnostics.matrix.releases import fetch_releases, generated_cells, releases_file
from diagnostics.matrix.report import short_summary, terminal_table, verdict_text, write_reports
from diagnostics.matrix.results import (
    Question,
    ResultsGrid,
    make_questions,
    select_cells,
    select_layers,
)
from diagnostics.matrix.runner import Run, RunOptions, in_run_order
from diagnostics.matrix.store import Store, keep_gpu_results, read_gpu_results
from diagnostics.matrix.verdicts import exit_code
from diagnostics.output import sanitize
from diagnostics.output.redact import mask
from diagnostics.toml_source import close_matches

# uv waits for the index most of the time.
JOBS_PER_CORE = 4


@dataclass
class Job:
    """The options of a command, its context, and the cells and layers that it chose."""

    options: dict[str, Any]
    context: Context
    cells: list[Cell] = field(default_factory=list)
    layers: tuple[str, ...] = ()

    def current_questions(self) -> list[Question]:
        """Return the questions with all inputs as they are now."""
        return make_questions(self.context, self.cells, self.layers)

    def stored_grid(self) -> ResultsGrid:
        """Return the results of the answers in the store."""
        return ResultsGrid(self.current_questions(), self.context.store.read_events())


def run_command(job: Job) -> int:
    """Run the layers that are due and print the table."""
    chosen = select_questions(job)
    if job.options["list"]:
        return list_cells(job)
    options = choose_repeats(job, chosen)
    if job.options["dry_run"]:
        return print_plan(job, options)
    grid = run_due(job, options)
    print_grid(job, grid)
    return save_reports(job, grid)


def lock_command(job: Job) -> int:
    """Update or check the committed locks and releases."""
    if job.options["check"]:
        return check_committed(job)
    if job.options["releases"]:
        return fetch_release_list(job)
    select_all_cells(job)
    return refresh_locks(job)


def add_command(job: Job) -> int:
    """Try a new release of vLLM, and print its cell."""
    grid = try_release(job)
    print_grid(job, grid)
    return grid_exit_code(grid)


def report_command(job: Job) -> int:
    """Write the reports from the store."""
    merge_stores(job)
    select_all_cells(job)
    save_reports(job, job.stored_grid())
    return 0


def publish_command(job: Job) -> int:
    """Update compat.json from the store."""
    merge_stores(job)
    table = make_table(job)
    refused = refuse_loss(job, table)
    if refused or job.options["dry_run"]:
        return refused
    return write_output(job.options["output"], publication_text(table.document))


def workflow_command(job: Job) -> int:
    """Make a CI workflow from the matrix file."""
    select_all_cells(job)
    text = make_workflow(job)
    if job.options["output"] is not None:
        return write_output(job.options["output"], text)
    print(text, end="")
    return 0


def env_command(job: Job) -> int:
    """Build a cell's environment and print its path."""
    return build_environment(job)


def merge_command(job: Job) -> int:
    """Add the answers of other stores, and the results of a GPU kit."""
    merge_stores(job)
    return 0


# Steps of several commands.


def open_job(options: dict[str, Any]) -> Job:
    """Read the matrix file and open the store."""
    matrix = load_matrix(options["file"], LAYERS)
    folder: Path = options["store"] or matrix.path.resolve().parent / ".matrix"
    return Job(options, Context(matrix, Store(folder.resolve()), programs=options["programs"].resolve()))


def select_all_cells(job: Job) -> None:
    """Choose the cells named, by default all of the file, with all layers."""
    profile = job.options.get("profile") or "full"
    job.cells = select_cells(job.context.matrix, job.options["cells"], profile)
    job.layers = select_layers(job.context.matrix, (), quick=False)


def print_grid(job: Job, grid: ResultsGrid) -> None:
    """Print the table; on a screen that is too small for it, what is not as expected."""
    live = sys.stdout.isatty()
    text = terminal_table(grid, colour=live)
    rows = os.get_terminal_size().lines if live else 0
    too_long = job.options.get("profile") == BREADTH or (live and text.count("\n") > rows - 2)
    short = too_long and not job.options.get("verbose")
    # Both are escaped already; the sanitized stream would escape their colours.
    sanitize.unwrap(sys.stdout).write(short_summary(grid) if short else text)


def save_reports(job: Job, grid: ResultsGrid) -> int:
    """Write page, Markdown, JSON and JUnit; return the exit code of the verdicts."""
    folder = job.options["report"] or job.context.store.folder / "report"
    if job.options.get("profile") == BREADTH:
        folder = folder / BREADTH
    ran = "layers" in job.options
    shown = grid
    if ran and (job.options["cells"] or job.options["layers"]):  # the page shows all cells
        every = Job(job.options, job.context, list(job.context.matrix.cells))
        every.layers = select_layers(job.context.matrix, (), quick=False)
        shown = every.stored_grid()
    page = write_reports(folder, shown)
    print(f"page: {page}" if ran else page, file=sys.stderr if ran else sys.stdout)
    return grid_exit_code(grid)


def grid_exit_code(grid: ResultsGrid) -> int:
    """Return the exit code of the verdicts."""
    return exit_code(result.judgement for result in grid.results)


def merge_stores(job: Job) -> None:
    """Add the answers of other stores, and the results of a GPU kit."""
    store, paths = job.context.store, job.options["merge"]
    results = {path: read_gpu_results(path) for path in paths if path.is_file()}
    folders = [path for path in paths if path not in results]
    for folder in folders:
        if not (folder / "store.jsonl").is_file():
            raise UserError(f"{folder}: has no store.jsonl: expected the folder of a store")
    if not paths:
        return
    with store.locked():
        for path, result in results.items():
            new = keep_gpu_results(store.folder, result)
            print(sanitize.escape_line(f"{path}: {result.summary()}{'' if new else '; imported before'}"))
        for folder in folders:
            print(f"{folder}: {store.merge(Store(folder.resolve()))} new verdicts")


def write_output(path: Path, text: str) -> int:
    """Write a file and print its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(path)
    return 0


# Steps of `run`.


def select_questions(job: Job) -> frozenset[tuple[str, str]]:
    """Choose cells and layers; return the chosen (cell, layer), without the layers that these need.

    Cells that are named run all their layers.
    """
    options, matrix = job.options, job.context.matrix
    job.cells = select_cells(matrix, options["cells"], options["profile"])
    quick = not options["cells"] and options["profile"] in {None, "quick"}
    job.layers = select_layers(matrix, options["layers"], quick=quick)
    return frozenset((cell.id, layer) for cell in job.cells for layer in cell.layers if layer in job.layers)


def list_cells(job: Job) -> int:
    """Print cells and layers."""
    for cell in job.cells:
        print(f"{cell.id}  python {cell.python}, at {cell.exclude_newer}: {', '.join(cell.layers)}")
    return 0


def choose_repeats(job: Job, chosen: frozenset[tuple[str, str]]) -> RunOptions:
    """Choose what runs again although it has an answer: --fresh, --only-failed, --since."""
    options = job.options
    if options["ray"] and options["jobs"]:
        raise UserError(
            "--jobs: with --ray the nodes' resources decide how much runs at a time: leave it out"
        )
    wide = options["profile"] == BREADTH
    repeated: set[tuple[str, str]] = set()
    since = f"{options['since']:%Y-%m-%d}" if options["since"] else ""
    for result in job.stored_grid().results if since or options["only_failed"] else ():
        if result.event is not None and result.question.key in chosen:
            failed = options["only_failed"] and not result.judgement.expected
            if failed or result.event.started[:10] < since:
                repeated.add(result.question.key)
    return RunOptions(
        fresh=chosen if options["fresh"] else frozenset(repeated),
        only=frozenset(repeated) if options["only_failed"] else None,
        keep=options["keep"],
        budget_gb=options["disk_gb"],
        jobs=options["jobs"] or (JOBS_PER_CORE * (os.cpu_count() or 1) if wide else 1),
    )


def print_plan(job: Job, options: RunOptions) -> int:
    """Print what would run and why."""
    grid = job.stored_grid()
    for question in in_run_order(job.current_questions()):
        result = grid.result(question)
        answered = result.event is not None and result.event.finished
        if options.only is not None and question.key not in options.only:
            line = "left out: it did not fail"
        elif answered and question.key not in options.fresh:
            line = f"known ({verdict_text(result.judgement)})"
        else:
            limit_s = job.context.matrix.layer(question.layer.name).timeout_s
            line = f"run{' again' if answered else ''}, at most {limit_s:.0f} s"
        print(f"{question.cell.id}  {question.layer.name}: {line}")
    return 0


def run_due(job: Job, options: RunOptions) -> ResultsGrid:
    """Run what is due, here or on a Ray cluster; an interrupt prints what was finished."""
    context, run = job.context, None
    try:
        with context.store.locked(), displayed_progress() as progress:
            for minor in sorted({cell.python for cell in job.cells if cell.recipe}):
                with contextlib.suppress(InterpreterError):  # the layers report it, cell by cell
                    context.interpreter(minor, fetch=True)
            context.stage()  # the programs in cells are from here on those of the identities
            questions = job.current_questions()
            run = Run(context, options, progress, ResultsGrid(questions, context.store.read_events()))
            if job.options["ray"]:
                run_on_ray(job.options["ray"], run, questions)
            else:
                run.execute(questions)
    except KeyboardInterrupt:
        if run is not None:
            print_grid(job, run.grid)
            print_new_answers(run)
        print("interrupted: finished results are kept, the next run continues here", file=sys.stderr)
        raise
    print_new_answers(run)
    return run.grid


def print_new_answers(run: Run) -> None:
    """Print how many answers are of this run, and how old the others are."""
    events = [result.event for result in run.grid.results if result.event is not None]
    new = sum(event.run == run.name for event in events)
    old = min((event.started[:10] for event in events if event.run != run.name), default="")
    stored = f", {len(events) - new} from the store, the oldest of {old}" if old else ""
    repeat = "; `nox -s matrix -- --fresh` runs all again" if old and not new else ""
    print(f"matrix: {new} new results{stored}{repeat}", file=sys.stderr)


# Steps of `lock`.


def check_committed(job: Job) -> int:
    """Print which locks and workflows are missing or stale."""
    matrix = job.context.matrix
    problems = [*locks.check_locks(job.context, matrix.cells), *workflow.stale_workflows(matrix)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def fetch_release_list(job: Job) -> int:
    """Read the index and write the list of releases."""
    matrix = job.context.matrix
    if matrix.breadth is None:
        raise UserError(f"{matrix.path}: expected a table [breadth]")
    today = datetime.datetime.now(datetime.UTC).date()
    releases = fetch_releases(job.context.environ, today, matrix.breadth)
    path = releases_file(matrix)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(releases.to_text(), encoding="utf-8")
    print(f"{path}: {len(releases.trl)} releases of TRL, {len(releases.vllm)} of vLLM")
    return 0


def refresh_locks(job: Job) -> int:
    """Resolve the locks of the chosen cells again."""
    if job.options["profile"] == BREADTH and job.options["into"] is None:
        raise UserError(
            "--profile breadth: generated cells have no committed locks; name a folder with --into"
        )
    context = replace(job.context, locks_folder=job.options["into"])
    with displayed_progress() as progress:
        context.say = progress.say
        problems = locks.refresh_locks(context, job.cells, keep=job.options["keep"])
    for problem in problems:
        print(f"matrix: {problem}", file=sys.stderr)
    return 3 if problems else 0


# Steps of `add`, `publish`, `workflow` and `env`.


def try_release(job: Job) -> ResultsGrid:
    """Resolve and compare a new vLLM with a TRL; with --write, add its cell and lock."""
    options = job.options
    with job.context.store.locked(), displayed_progress() as progress:
        return add_release(job.context, options["release"], options["trl"], progress, write=options["write"])


def make_table(job: Job) -> Publication:
    """Merge the store's answers into the published table, and print the differences."""
    matrix, options = job.context.matrix, job.options
    generated = generated_cells(matrix, LAYERS, SOLVING) if matrix.breadth else []
    names = [cell.id for cell in (*matrix.cells, *generated)]
    for pattern in options["cells"]:
        if not fnmatch.filter(names, pattern):
            raise UserError(f"no cell matches {pattern!r}{close_matches(pattern, names)}; --list shows all")
    events = job.context.store.read_events()
    patterns = options["cells"] or ["*"]
    table = make_publication(
        ResultsGrid(make_questions(job.context, matrix.cells), events),
        ResultsGrid(make_questions(job.context, generated), events),
        read_published(options["output"]),
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        lambda name: any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns),
    )
    lists = (("changed", table.changed), ("no answer", table.unanswered))
    for label, lines in (*lists, ("would be lost", () if options["drop"] else table.lost)):
        for line in lines:
            print(f"matrix: {label}: {line}", file=sys.stderr)
    counts = f"{len(table.changed)} verdicts changed, {table.kept} stay as published"
    print(f"matrix: {counts}, {len(table.lost)} dropped, {len(table.unanswered)} open", file=sys.stderr)
    return table


def refuse_loss(job: Job, table: Publication) -> int:
    """Return 1 if a published verdict would be lost, 3 if a question has no answer, 0 if the table can be written."""
    if table.lost and not job.options["drop"]:
        print("matrix: nothing written: --drop leaves out published verdicts without a cell", file=sys.stderr)
        return 1
    if table.unanswered:
        print("matrix: nothing written: `nox -s matrix` runs what has no answer", file=sys.stderr)
        return 3
    return 0


def make_workflow(job: Job) -> str:
    """Return the text of the chosen workflow."""
    options = job.options
    gpu = [label.strip() for label in options["gpu"].split(",") if label.strip()]
    if options["release"]:
        return workflow.release_workflow()
    if options["suite"]:
        return workflow.gpu_workflow(cpu=options["cpu"], gpu=gpu)
    return workflow.matrix_workflow(job.context.matrix, job.cells, cpu=options["cpu"], gpu=gpu)


def build_environment(job: Job) -> int:
    """Build a cell's environment unless it is complete, and print its path."""
    cell = job.context.matrix.cell(job.options["cell"])
    with job.context.store.locked(), displayed_progress() as progress:
        job.context.say = progress.say
        try:
            ensure_environment(job.context, cell)
        except BuildError as error:
            print(f"matrix: {error}", file=sys.stderr)
            return 3 if error.infrastructure else 1
    print(environment_folder(job.context, cell))
    return 0


# The command line.

_PATH = click.Path(path_type=Path)
_COMMON = (
    option(
        "--file", type=_PATH, default=ROOT / "matrix.toml", help="The matrix file (default: the project's)."
    ),
    option("--store", type=_PATH, help="Folder of results, environments and logs (default: .matrix)."),
    option(
        "--programs",
        type=_PATH,
        default=ROOT,
        help="Folder that contains grpo_core and repro, which run in cells.",
    ),
    option("--cells", multiple=True, metavar="GLOB", help="Only these cells; may be repeated."),
)
_PROFILE = option(
    "--profile", help="Cells of this profile: quick (default), full, or the generated ones of breadth."
)
_REPORT = option(
    "--report", type=_PATH, metavar="DIR", help="Folder for the reports (default: report/ in the store)."
)
# Removed command -> its replacement.
REMOVED = {
    "bisect": "`run --profile breadth --layers contract` shows at which release a verdict changes",
    "check": "use `lock --check`",
    "releases": "use `lock --releases`",
    "findings": "use `report --profile breadth`",
    "confusion": "the layer `doctor` of `report` shows doctor's findings of each cell",
    "sweep": "use `run --layers repro` for the cells; the published results stay in diagnostics/data",
}
_MERGE = option(
    "--merge",
    type=_PATH,
    multiple=True,
    metavar="PATH",
    help="First add this store, or this result of a GPU kit.",
)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]}, help=(__doc__ or "").partition("\n\n")[0]
)
def cli() -> None:
    """Define the command line."""


def _command(name: str, run: Callable[[Job], int], *parameters: Any, hidden: bool = False) -> None:
    """Add a command with the common options."""

    def callback(**options: Any) -> int:
        return run(open_job(options))

    for decorate in reversed((*parameters, *_COMMON)):
        callback = decorate(callback)
    cli.command(name, help=run.__doc__, hidden=hidden)(callback)


_command(
    "run",
    run_command,
    _PROFILE,
    option("--layers", multiple=True, metavar="LIST", help="Only these layers, separated by commas."),
    option("--fresh", is_flag=True, help="Run layers again that have a result."),
    option("--only-failed", is_flag=True, help="Run only layers again whose result is not as expected."),
    option(
        "--since",
        type=click.DateTime(["%Y-%m-%d"]),
        help="Run layers again with a result before this day (UTC).",
    ),
    option("--disk-gb", type=click.FloatRange(0, min_open=True), help="Maximum size of all environments."),
    _REPORT,
    option(
        "--jobs",
        type=click.IntRange(1),
        help="Layers without an environment that run at the same time (default: 1; breadth 4 per core).",
    ),
    option("--ray", metavar="ADDRESS", help="Run each cell as a task of a Ray cluster: HOST:PORT or auto."),
    option("--keep-environments", "keep", flag_value="always", help="Never remove an environment."),
    option("--drop", "keep", flag_value="never", help="Remove each environment after the cell's last layer."),
    option("keep", "--keep-while-disk-allows", flag_value="auto", default=True, hidden=True),
    option("--list", is_flag=True, help="Print cells and layers; run nothing."),
    option("--verbose", is_flag=True, help="Print the whole table even if the screen is too small."),
    option("--dry-run", is_flag=True, help="Print what would run and why; run nothing."),
)
_command(
    "lock",
    lock_command,
    _PROFILE,
    option("--keep", is_flag=True, help="Keep the versions of existing locks; only read their hashes again."),
    option("--into", type=_PATH, metavar="DIR", help="Write the locks there (default: locks/)."),
    option("--check", is_flag=True, help="Print missing and stale locks and workflows; resolve nothing."),
    option("--releases", is_flag=True, help="Read the index and write locks/releases.json."),
)
_command(
    "add",
    add_command,
    click.argument("release", metavar="vllm==VERSION"),
    option("--trl", default="newest", help="Release of TRL (default: the newest known)."),
    option("--write", is_flag=True, help="Also write the cell into the matrix file, and its lock."),
)
_command("report", report_command, _PROFILE, _REPORT, _MERGE)
_command(
    "publish",
    publish_command,
    _MERGE,
    option(
        "--output",
        type=_PATH,
        metavar="FILE",
        default=ROOT / "diagnostics" / "data" / "compat.json",
        help="Write the table here (default: diagnostics/data/compat.json).",
    ),
    option("--drop", is_flag=True, help="Remove published verdicts of cells that no longer exist."),
    option("--dry-run", is_flag=True, help="Print which verdicts change; write nothing."),
)
_command(
    "workflow",
    workflow_command,
    _PROFILE,
    option("--release", is_flag=True, help="Make the workflow of a release."),
    option("--suite", is_flag=True, help="Make the workflow of the GPU tests."),
    option("--cpu", default=workflow.CPU, metavar="LABEL", help="Label of the runner of the cells."),
    option(
        "--gpu", default=workflow.GPU, metavar="LABELS", help="Labels of the runner with a GPU; '' for none."
    ),
    option(
        "--output", type=_PATH, metavar="FILE", help="Write the workflow here (default: standard output)."
    ),
)
_command("env", env_command, click.argument("cell"), hidden=True)
_command("merge", merge_command, click.argument("merge", nargs=-1, required=True, type=_PATH), hidden=True)


def _add_removed(name: str, replacement: str) -> None:
    """Add a command that refuses with its replacement."""
    forward = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

    @cli.command(name, hidden=True, context_settings=forward)
    @click.argument("arguments", nargs=-1)
    def refuse(arguments: tuple[str, ...]) -> NoReturn:
        del arguments
        raise UserError(f"{name} was removed: {replacement}")


for _name, _replacement in REMOVED.items():
    _add_removed(_name, _replacement)


class Terminated(KeyboardInterrupt):
    """Raised by SIGTERM, so that it ends a run as Ctrl-C does."""


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    handler = signal.signal(signal.SIGTERM, _terminate)
    try:
        with sanitize.sanitize_stdio(mask):
            return _run(arguments)
    finally:
        signal.signal(signal.SIGTERM, handler)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code: int = cli.main(arguments, prog_name="python -m diagnostics.matrix", standalone_mode=False)
    except click.UsageError as error:
        print(f"matrix: {' '.join(error.format_message().split()).rstrip('.')}; see --help", file=sys.stderr)
        return 2
    except click.Abort as error:
        stopped = isinstance(error.__cause__, Terminated)
        return 128 + (signal.SIGTERM if stopped else signal.SIGINT)
    except OSError as error:
        text = f"{error.filename or 'a file'}: {error.strerror or error}: finished answers are kept"
        return report_error(UserError(text), "matrix")
    except Exception as error:  # noqa: BLE001 - the one place for unforeseen errors
        return report_error(error, "matrix")
    return code
