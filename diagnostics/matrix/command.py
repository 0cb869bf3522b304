"""`python -m diagnostics.matrix`: run cells, make locks, try new releases, report and publish.

Each command is a workflow: a list of functions that receive the job, in order. A function that returns a number ends
the workflow with that exit code: 0 as expected, 1 something is not, 2 wrong usage, 3 something has no answer.
"""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from diagnostics import UserError
from diagnostics.cli import report_error
from diagnostics.matrix import gpu_results, locks, workflow
from diagnostics.matrix.add_release import add_release
from diagnostics.matrix.cells import Cell, load_matrix
from diagnostics.matrix.context import ROOT, Context, InterpreterError
from diagnostics.matrix.environments import BuildError, ensure_environment, environment_folder
from diagnostics.matrix.layers import LAYERS, SOLVING
from diagnostics.matrix.progress import displayed_progress
from diagnostics.matrix.publish import make_publication, publication_text, read_published
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
from diagnostics.matrix.store import Store
from diagnostics.matrix.verdicts import exit_code
from diagnostics.output import sanitize
from diagnostics.output.redact import mask
from diagnostics.toml_source import close_matches

# uv waits for the index most of the time.
JOBS_PER_CORE = 4


def run_command(job: Job) -> int:
    """Run the layers that are due and print the table."""
    return follow(
        job,
        [
            open_context,
            select_questions,
            list_cells,
            choose_repeats,
            print_plan,
            run_due,
            print_grid,
            save_reports,
        ],
    )


def lock_command(job: Job) -> int:
    """Resolve locks again, read the index again, or check what is committed."""
    return follow(job, [open_context, check_committed, fetch_release_list, select_all_cells, refresh_locks])


def add_command(job: Job) -> int:
    """Try a release of vLLM that no cell has, and print its cell."""
    return follow(job, [open_context, try_release, print_grid, grid_exit_code])


def report_command(job: Job) -> int:
    """Write the reports from the store."""
    return follow(job, [open_context, merge_stores, select_all_cells, grid_from_store, save_reports])


def publish_command(job: Job) -> int:
    """Update compat.json from the store."""
    return follow(job, [open_context, merge_stores, make_table, refuse_loss, write_table])


def workflow_command(job: Job) -> int:
    """Make a CI workflow from the matrix file."""
    return follow(job, [open_context, select_all_cells, write_workflow])


def env_command(job: Job) -> int:
    """Build a cell's environment and print its path."""
    return follow(job, [open_context, build_environment])


def merge_command(job: Job) -> int:
    """Add the answers of other stores, and the results of a GPU kit."""
    return follow(job, [open_context, merge_stores])


@dataclass
class Job:
    """The options of a command, and what its steps have made so far."""

    options: dict[str, Any]
    context: Context = field(init=False)
    cells: list[Cell] = field(default_factory=list)
    layers: tuple[str, ...] = ()
    chosen: frozenset[tuple[str, str]] = frozenset()
    """(cell, layer) that the user chose, without what they need."""
    run_options: RunOptions = field(default_factory=RunOptions)
    grid: ResultsGrid = field(default_factory=lambda: ResultsGrid((), ()))
    table: Any = None
    run_name: str = ""

    def questions(self) -> list[Question]:
        """Return the questions with all inputs as they are now."""
        return make_questions(self.context, self.cells, self.layers)


def follow(job: Job, steps: Iterable[Callable[[Job], int | None]]) -> int:
    """Call the steps in order until one returns an exit code."""
    for step in steps:
        code = step(job)
        if code is not None:
            return code
    return 0


# Steps of several commands.


def open_context(job: Job) -> None:
    """Read the matrix file and open the store."""
    matrix = load_matrix(job.options["file"], LAYERS)
    folder: Path = job.options["store"] or matrix.path.resolve().parent / ".matrix"
    folder_of_programs: Path = job.options["programs"]
    job.context = Context(matrix, Store(folder.resolve()), programs=folder_of_programs.resolve())


def select_all_cells(job: Job) -> None:
    """Choose the cells and layers named, all of the file by default."""
    profile = job.options.get("profile") or "full"
    job.cells = select_cells(job.context.matrix, job.options["cells"], profile)
    job.layers = select_layers(job.context.matrix, (), quick=False)


def grid_from_store(job: Job) -> None:
    """Judge the store's answers."""
    job.grid = ResultsGrid(job.questions(), job.context.store.read())


def print_grid(job: Job) -> None:
    """Print the table; on a screen that is too small for it, what is not as expected."""
    live = sys.stdout.isatty()
    text = terminal_table(job.grid, colour=live)
    rows = os.get_terminal_size().lines if live else 0
    too_long = job.options.get("profile") == BREADTH or (live and text.count("\n") > rows - 2)
    short = too_long and not job.options.get("verbose")
    # Both are escaped already; the sanitized stream would escape their colours.
    sanitize.unwrap(sys.stdout).write(short_summary(job.grid) if short else text)


def save_reports(job: Job) -> int:
    """Write page, Markdown, JSON and JUnit."""
    folder = job.options["report"] or job.context.store.folder / "report"
    if job.options.get("profile") == BREADTH:
        folder = folder / BREADTH
    ran = "layers" in job.options
    if ran and (job.options["cells"] or job.options["layers"]):  # the page shows all cells
        job.cells, job.layers = (
            list(job.context.matrix.cells),
            select_layers(job.context.matrix, (), quick=False),
        )
        grid = ResultsGrid(job.questions(), job.context.store.read())
    else:
        grid = job.grid
    page = write_reports(folder, grid)
    print(f"page: {page}" if ran else page, file=sys.stderr if ran else sys.stdout)
    return grid_exit_code(job) if ran else 0


def grid_exit_code(job: Job) -> int:
    """Return the exit code of the verdicts."""
    return exit_code(result.judgement for result in job.grid.results)


def merge_stores(job: Job) -> None:
    """Add the answers of other stores, and the results of a GPU kit."""
    paths: Sequence[Path] = job.options["merge"]
    results = {path: gpu_results.read_gpu_results(path) for path in paths if path.is_file()}
    folders = [path for path in paths if path not in results]
    for folder in folders:
        if not (folder / "store.jsonl").is_file():
            raise UserError(f"{folder}: has no store.jsonl: expected the folder of a store")
    if not paths:
        return
    with job.context.store.locked():
        for path, result in results.items():
            new = gpu_results.keep_gpu_results(job.context.store.folder, result)
            print(sanitize.escape_line(f"{path}: {result.summary()}{'' if new else '; imported before'}"))
        for folder in folders:
            print(f"{folder}: {job.context.store.merge(Store(folder.resolve()))} new verdicts")


# Steps of `run`.


def select_questions(job: Job) -> None:
    """Choose cells and layers; cells that are named run all their layers."""
    options, matrix = job.options, job.context.matrix
    job.cells = select_cells(matrix, options["cells"], options["profile"])
    quick = not options["cells"] and options["profile"] in {None, "quick"}
    job.layers = select_layers(matrix, options["layers"], quick=quick)
    chosen = set(job.layers)
    job.chosen = frozenset((cell.id, layer) for cell in job.cells for layer in cell.layers if layer in chosen)


def list_cells(job: Job) -> int | None:
    """Print cells and layers, with --list."""
    if not job.options["list"]:
        return None
    for cell in job.cells:
        print(f"{cell.id}  python {cell.python}, at {cell.exclude_newer}: {', '.join(cell.layers)}")
    return 0


def choose_repeats(job: Job) -> None:
    """Choose what runs again although it has an answer: --fresh, --only-failed, --since."""
    options = job.options
    if options["ray"] and options["jobs"]:
        raise UserError(
            "--jobs: with --ray the nodes' resources decide how much runs at a time: leave it out"
        )
    wide = options["profile"] == BREADTH
    jobs = options["jobs"] or (JOBS_PER_CORE * (os.cpu_count() or 1) if wide else 1)
    repeated: set[tuple[str, str]] = set()
    if options["only_failed"] or options["since"]:
        grid_from_store(job)
        for result in job.grid.results:
            if result.event is not None and result.question.key in job.chosen:
                failed = options["only_failed"] and not result.judgement.expected
                if failed or (
                    options["since"] and result.event.started[:10] < f"{options['since']:%Y-%m-%d}"
                ):
                    repeated.add(result.question.key)
    job.run_options = RunOptions(
        fresh=job.chosen if options["fresh"] else frozenset(repeated),
        only=frozenset(repeated) if options["only_failed"] else None,
        keep=options["keep"],
        budget_gb=options["disk_gb"],
        jobs=jobs,
    )


def print_plan(job: Job) -> int | None:
    """Print what would run and why, with --dry-run."""
    if not job.options["dry_run"]:
        return None
    grid_from_store(job)
    fresh, only = job.run_options.fresh, job.run_options.only
    for question in in_run_order(job.questions()):
        result = job.grid.result(question)
        answered = result.event is not None and result.event.finished
        if only is not None and question.key not in only:
            line = "left out: it did not fail"
        elif answered and question.key not in fresh:
            line = f"known ({verdict_text(result.judgement)})"
        else:
            limit_s = job.context.matrix.layer(question.layer.name).timeout_s
            line = f"run{' again' if answered else ''}, at most {limit_s:.0f} s"
        print(f"{question.cell.id}  {question.layer.name}: {line}")
    return 0


def run_due(job: Job) -> None:
    """Run what is due, here or on a Ray cluster; an interrupt prints what was finished."""
    try:
        _run_due(job)
    except KeyboardInterrupt:
        print_grid(job)
        print_new_answers(job)
        print("interrupted: finished answers are kept, the next run continues here", file=sys.stderr)
        raise
    print_new_answers(job)


def print_new_answers(job: Job) -> None:
    """Print how many answers are of this run, and how old the others are."""
    events = [result.event for result in job.grid.results if result.event is not None]
    new = sum(event.run == job.run_name for event in events)
    old = min((event.started[:10] for event in events if event.run != job.run_name), default="")
    stored = f", {len(events) - new} from the store, the oldest of {old}" if old else ""
    repeat = "; `nox -s matrix -- --fresh` runs all again" if old and not new else ""
    print(f"matrix: {new} answers of this run{stored}{repeat}", file=sys.stderr)


def _run_due(job: Job) -> None:
    context = job.context
    with context.store.locked(), displayed_progress() as progress:
        for minor in sorted({cell.python for cell in job.cells if cell.recipe}):
            with contextlib.suppress(InterpreterError):  # the layers report it, cell by cell
                context.interpreter(minor, fetch=True)
        context.stage()  # the programs in cells are from here on those of the identities
        questions = job.questions()
        job.grid = ResultsGrid(questions, context.store.read())
        run = Run(context, job.run_options, progress, job.grid)
        job.run_name = run.name
        if job.options["ray"]:
            run_on_ray(job.options["ray"], run, questions)
        else:
            run.execute(questions)


# Steps of `lock`.


def check_committed(job: Job) -> int | None:
    """Print which locks and workflows are missing or stale, with --check."""
    if not job.options["check"]:
        return None
    matrix = job.context.matrix
    problems = [*locks.check_locks(job.context, matrix.cells), *workflow.stale_workflows(matrix)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def fetch_release_list(job: Job) -> int | None:
    """Read the index and write the list of releases, with --releases."""
    if not job.options["releases"]:
        return None
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
    job.context = replace(job.context, locks_folder=job.options["into"])
    with displayed_progress() as progress:
        job.context.say = progress.say
        problems = locks.refresh_locks(job.context, job.cells, keep=job.options["keep"])
    for problem in problems:
        print(f"matrix: {problem}", file=sys.stderr)
    return 3 if problems else 0


# Steps of `add`, `publish`, `workflow` and `env`.


def try_release(job: Job) -> None:
    """Resolve and compare a new vLLM with a TRL; with --write, add its cell and lock."""
    options = job.options
    with job.context.store.locked(), displayed_progress() as progress:
        job.grid = add_release(
            job.context, options["release"], options["trl"], progress, write=options["write"]
        )


def make_table(job: Job) -> None:
    """Merge the store's answers into the published table, and print the differences."""
    matrix, options = job.context.matrix, job.options
    generated = generated_cells(matrix, LAYERS, SOLVING) if matrix.breadth else []
    names = [cell.id for cell in (*matrix.cells, *generated)]
    for pattern in options["cells"]:
        if not fnmatch.filter(names, pattern):
            raise UserError(f"no cell matches {pattern!r}{close_matches(pattern, names)}; --list shows all")
    events = job.context.store.read()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    patterns = options["cells"] or ["*"]
    job.table = make_publication(
        ResultsGrid(make_questions(job.context, matrix.cells), events),
        ResultsGrid(make_questions(job.context, generated), events),
        read_published(options["output"]),
        today,
        lambda name: any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns),
    )
    lists = (("changed", job.table.changed), ("no answer", job.table.unanswered))
    for label, lines in (*lists, ("would be lost", () if options["drop"] else job.table.lost)):
        for line in lines:
            print(f"matrix: {label}: {line}", file=sys.stderr)
    counts = f"{len(job.table.changed)} verdicts changed, {job.table.kept} stay as published"
    print(
        f"matrix: {counts}, {len(job.table.lost)} dropped, {len(job.table.unanswered)} open", file=sys.stderr
    )


def refuse_loss(job: Job) -> int | None:
    """End without writing where a verdict would be lost, or a question has no answer."""
    if job.table.lost and not job.options["drop"]:
        print("matrix: nothing written: --drop leaves out published verdicts without a cell", file=sys.stderr)
        return 1
    if job.table.unanswered:
        print("matrix: nothing written: `nox -s matrix` runs what has no answer", file=sys.stderr)
        return 3
    return 0 if job.options["dry_run"] else None


def write_table(job: Job) -> None:
    """Write the published table."""
    _write_output(job.options["output"], publication_text(job.table.document))


def write_workflow(job: Job) -> None:
    """Print the workflow, or write it into a file."""
    options = job.options
    gpu = [label.strip() for label in options["gpu"].split(",") if label.strip()]
    if options["release"]:
        text = workflow.release_workflow()
    elif options["suite"]:
        text = workflow.gpu_workflow(cpu=options["cpu"], gpu=gpu)
    else:
        text = workflow.matrix_workflow(job.context.matrix, job.cells, cpu=options["cpu"], gpu=gpu)
    if options["output"] is None:
        print(text, end="")
    else:
        _write_output(options["output"], text)


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


def _write_output(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(path)


# The command line.

_PATH = click.Path(path_type=Path)
_COMMON = (
    click.option(
        "--file", type=_PATH, default=ROOT / "matrix.toml", help="The matrix file (default: the project's)."
    ),
    click.option("--store", type=_PATH, help="Folder of answers, environments and logs (default: .matrix)."),
    click.option(
        "--programs", type=_PATH, default=ROOT, help="Folder of grpo_core and repro, which run in cells."
    ),
    click.option("--cells", multiple=True, metavar="GLOB", help="Only these cells; may be repeated."),
)
_PROFILE = click.option(
    "--profile", help="Cells of this profile: quick (default), full, or the generated ones of breadth."
)
_REPORT = click.option(
    "--report", type=_PATH, metavar="DIR", help="Folder for the reports (default: report/ in the store)."
)
_MERGE = click.option(
    "--merge",
    type=_PATH,
    multiple=True,
    metavar="PATH",
    help="First add this store, or this result of a GPU kit.",
)
_OUTPUT = click.option("--output", type=_PATH, metavar="FILE", help="Default: standard output.")
_FORWARD = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
# Removed command -> its replacement.
REMOVED = {
    "bisect": "`run --profile breadth --layers contract` shows at which release a verdict changes",
    "check": "use `lock --check`",
    "releases": "use `lock --releases`",
    "findings": "use `report --profile breadth`",
    "confusion": "the layer `doctor` of `report` shows doctor's findings of each cell",
    "sweep": "use `run --layers repro` for the cells; the published results stay in diagnostics/data",
}


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]}, help=(__doc__ or "").partition("\n\n")[0]
)
def cli() -> None:
    """Define the command line."""


def _command(name: str, run: Callable[[Job], int], *parameters: Any, hidden: bool = False) -> None:
    """Add a command with the common options."""

    def callback(**options: Any) -> int:
        return run(Job(options))

    for decorate in reversed((*parameters, *_COMMON)):
        callback = decorate(callback)
    cli.command(name, help=run.__doc__, hidden=hidden)(callback)


_command(
    "run",
    run_command,
    _PROFILE,
    click.option("--layers", multiple=True, metavar="LIST", help="Only these layers, separated by commas."),
    click.option("--fresh", is_flag=True, help="Run again what has an answer."),
    click.option("--only-failed", is_flag=True, help="Run again what is not as expected, nothing else."),
    click.option(
        "--since", type=click.DateTime(["%Y-%m-%d"]), help="Run again answers before this day (UTC)."
    ),
    click.option(
        "--disk-gb", type=click.FloatRange(0, min_open=True), help="Size of all environments at most."
    ),
    _REPORT,
    click.option(
        "--jobs",
        type=click.IntRange(1),
        help="Layers without environment at a time (default: 1; breadth 4 per core).",
    ),
    click.option(
        "--ray", metavar="ADDRESS", help="Run each cell as a task of a Ray cluster: HOST:PORT or auto."
    ),
    click.option("--keep-environments", "keep", flag_value="always", help="Never remove an environment."),
    click.option(
        "--drop", "keep", flag_value="never", help="Remove each environment after the cell's last layer."
    ),
    click.option("keep", "--keep-while-disk-allows", flag_value="auto", default=True, hidden=True),
    click.option("--list", is_flag=True, help="Print cells and layers, run nothing."),
    click.option(
        "--verbose", is_flag=True, help="Print the table also on a screen that is too small for it."
    ),
    click.option("--dry-run", is_flag=True, help="Print what would run and why, run nothing."),
)
_command(
    "lock",
    lock_command,
    _PROFILE,
    click.option("--keep", is_flag=True, help="Keep the versions of existing locks, look up their hashes."),
    click.option("--into", type=_PATH, metavar="DIR", help="Write the locks there (default: locks/)."),
    click.option(
        "--check", is_flag=True, help="Print missing and stale locks and workflows, resolve nothing."
    ),
    click.option("--releases", is_flag=True, help="Read the index and write locks/releases.json."),
)
_command(
    "add",
    add_command,
    click.argument("release", metavar="vllm==VERSION"),
    click.option("--trl", default="newest", help="A release of TRL (default: the newest known)."),
    click.option("--write", is_flag=True, help="Add the cell to the matrix file, and its lock."),
)
_command("report", report_command, _PROFILE, _REPORT, _MERGE)
_command(
    "publish",
    publish_command,
    _MERGE,
    click.option("--output", type=_PATH, default=ROOT / "diagnostics" / "data" / "compat.json"),
    click.option("--drop", is_flag=True, help="Leave out published verdicts that no cell has any more."),
    click.option("--dry-run", is_flag=True, help="Print which verdicts change, write nothing."),
)
_command(
    "workflow",
    workflow_command,
    _PROFILE,
    click.option("--release", is_flag=True, help="The workflow of a release."),
    click.option("--suite", is_flag=True, help="The workflow of the GPU tests."),
    click.option("--cpu", default=workflow.CPU, metavar="LABEL", help="Runner of the cells."),
    click.option("--gpu", default=workflow.GPU, metavar="LABELS", help="Runner with a GPU; '' for none."),
    _OUTPUT,
)
_command("env", env_command, click.argument("cell"), hidden=True)
_command("merge", merge_command, click.argument("merge", nargs=-1, required=True, type=_PATH), hidden=True)


def _add_removed(name: str, replacement: str) -> None:
    @cli.command(name, hidden=True, context_settings=_FORWARD)
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
        message = " ".join(error.format_message().split())
        print(f"matrix: {message}; see --help", file=sys.stderr)
        return 2
    except click.Abort as error:
        stopped = isinstance(error.__cause__, Terminated)
        return 128 + (signal.SIGTERM if stopped else signal.SIGINT)
    except OSError as error:
        place = error.filename or "a file"
        return report_error(
            UserError(f"{place}: {error.strerror or error}: finished answers are kept"), "matrix"
        )
    except Exception as error:  # noqa: BLE001 - the one place for unforeseen errors
        return report_error(error, "matrix")
    return code
