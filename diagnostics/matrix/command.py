"""Run the compatibility matrix: run cells, update locks, report and publish.

The functions `*_command` are the workflows; each calls its steps in order. Exit codes:

- `run`: 1 if a final verdict is not the expected one, else 3 if a verdict is open (not final), else 0.
- `lock`: 3 for a lock that could not be made. With --check, which ignores --cells: 1 for a lock that is missing, stale
  or without a cell.
- `publish`: 3, and nothing is written, if a layer of a cell has no result, neither a published one nor a final one in
  the store. With --cells, the store's results count only for these cells.
- 2 for wrong usage and file errors.
"""

import contextlib
import datetime
import json
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click
from click import option

from diagnostics import UserError
from diagnostics.cli import run_command as cli_main
from diagnostics.matrix import locks, results
from diagnostics.matrix.cells import PROFILES, Cell, load_matrix
from diagnostics.matrix.context import ROOT, Context, InterpreterError
from diagnostics.matrix.layers import BY_NAME, LAYERS
from diagnostics.matrix.progress import Progress
from diagnostics.matrix.publish import Publication, make_publication, read_published
from diagnostics.matrix.ray_cells import run_on_ray
from diagnostics.matrix.report import terminal_table, write_reports
from diagnostics.matrix.runner import Run
from diagnostics.matrix.store import Store
from diagnostics.matrix.verdicts import exit_code
from diagnostics.output import json_output, sanitize
from diagnostics.process import handle_signals
from diagnostics.safe_io import write_atomically

# Time to download and unpack the gigabytes of an environment. GitHub ends a job after six hours.
BUILD_S, LONGEST_MINUTES = 2400.0, 360


@dataclass
class Job:
    """One call of a matrix command: its options, its context, and the chosen cells and layers."""

    options: dict[str, Any]
    context: Context
    cells: Sequence[Cell] = ()
    layers: Sequence[str] = tuple(BY_NAME)

    def current_questions(self) -> list[results.Question]:
        """Return the questions (layers to run for cells) with their current inputs."""
        return results.make_questions(self.context, self.cells, self.layers)

    def stored_grid(self) -> results.ResultsGrid:
        """Return a grid of results from the answers in the store."""
        return results.ResultsGrid(self.current_questions(), self.context.store.read_events())


def run_command(job: Job) -> int:
    """Run the checks (layers) that have no result yet, print the table and write the reports."""
    select_cells_and_layers(job)
    if job.options["list"]:
        return list_cells(job)
    grid = run_due(job)
    print_grid(grid)
    return save_run_reports(job, grid)


def lock_command(job: Job) -> int:
    """Update or check the committed locks; print the locks that are missing, stale or could not be made."""
    select_cells_and_layers(job)
    if job.options["check"]:
        problems = locks.check_locks(job.context, job.context.matrix.cells)
    else:
        job.context.show_status = Progress().note
        problems = locks.refresh_locks(job.context, job.cells)
    for problem in problems:
        print(problem)
    return (1 if job.options["check"] else 3) if problems else 0


def report_command(job: Job) -> int:
    """Write the reports from the store."""
    merge_stores(job)
    select_cells_and_layers(job)
    print(write_reports(report_folder(job), job.stored_grid()))
    return 0


def publish_command(job: Job) -> int:
    """Copy the results in the store into compat.json."""
    merge_stores(job)
    table, path = merge_answers(job), job.options["output"]
    if table.unanswered:
        print("matrix: nothing written: `nox -s matrix` runs what has no answer", file=sys.stderr)
        return 3
    if not job.options["dry_run"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json_output.dump(table.document) + "\n", mode=0o644)
        print(path)
    return 0


# Steps of several commands.


def open_job(options: dict[str, Any]) -> Job:
    """Read the matrix file, open the store, and return the job."""
    matrix = load_matrix(options["file"], LAYERS)
    folder: Path = options["store"] or matrix.path.resolve().parent / ".matrix"
    # Not resolved: the owner of a link counts, too.
    return Job(options, Context(matrix, Store(folder.absolute()), programs=options["programs"].resolve()))


def select_cells_and_layers(job: Job) -> None:
    """Set the job's cells and layers: those that the options name, or those of the profile.

    The default profile of `run` is `quick`, that of other commands `full`. With `quick`, `run` leaves out the layers
    `repro:CODE`, unless the options name cells or layers.
    """
    options = job.options
    named_layers = options.get("layers")
    profile = options.get("profile") or ("full" if named_layers is None else "quick")
    job.cells = results.select_cells(job.context.matrix, options["cells"], profile)
    quick = named_layers is not None and profile == "quick" and not options["cells"]
    job.layers = results.select_layers(named_layers or (), quick=quick)


def print_grid(grid: results.ResultsGrid) -> None:
    """Print the table; its text is escaped already, and the sanitized stream would escape its colours."""
    sanitize.unwrap(sys.stdout).write(terminal_table(grid, colour=sys.stdout.isatty()))


def report_folder(job: Job) -> Path:
    """Return the folder for the reports."""
    return job.options["report"] or job.context.folder("report")


def merge_stores(job: Job) -> None:
    """Add the answers of the stores in the option --merge to the store."""
    store, folders = job.context.store, job.options["merge"]
    if folders:
        with store.locked():
            for folder in folders:
                print(f"{folder}: {store.merge(Store(folder.resolve()))} new verdicts")


# Steps of `run`.


def list_cells(job: Job) -> int:
    """Print the chosen cells with all their layers, or as jobs of a CI workflow; return exit code 0."""
    matrix, jobs = job.context.matrix, []
    for cell in job.cells:
        seconds = BUILD_S + sum(matrix.settings[name].timeout_s for name in cell.layers)
        minutes, artifact = min(LONGEST_MINUTES, int(seconds / 60)), cell.id.replace("+", "_")
        layers = ",".join(cell.layers)
        jobs.append({"cell": cell.id, "artifact": artifact, "minutes": minutes, "layers": layers})
        if not job.options["json"]:
            print(f"{cell.id}  python {cell.python}, at {cell.exclude_newer}: {', '.join(cell.layers)}")
    if job.options["json"]:
        print(json.dumps(jobs))
    return 0


def run_due(job: Job) -> results.ResultsGrid:
    """Lock the store and run the layers that are due, here or on a Ray cluster; return the grid of results.

    Missing Python interpreters are fetched first. After an interrupt, the finished results are printed.
    """
    context, options, run = job.context, job.options, None
    chosen = {(cell.id, layer) for cell in job.cells for layer in job.layers} if options["fresh"] else ()
    try:
        with context.store.locked():
            for minor in sorted({cell.python for cell in job.cells if cell.recipe}):
                with contextlib.suppress(InterpreterError):  # the layers report it, cell by cell
                    context.interpreter(minor, fetch=True)
            # From here on, cells import these copies; the identities of the questions are made from the same sources.
            _ = context.stage
            questions = job.current_questions()
            grid = results.ResultsGrid(questions, context.store.read_events())
            run = Run(context, grid, frozenset(chosen))
            if options["ray"]:
                run_on_ray(options["ray"], run, questions)
            else:
                run.execute(questions)
    except KeyboardInterrupt:
        if run is not None:
            print_grid(run.grid)
            print_new_answers(run)
        print("interrupted: finished results are kept, the next run continues here", file=sys.stderr)
        raise
    print_new_answers(run)
    return run.grid


def print_new_answers(run: Run) -> None:
    """Print how many answers are from this run and how many were in the store."""
    events = [result.event for result in run.grid.results if result.event is not None]
    new = sum(event.run == run.name for event in events)
    repeat = "" if new else "; `nox -s matrix -- --fresh` runs all again"
    print(f"matrix: {new} new results, {len(events) - new} from the store{repeat}", file=sys.stderr)


def save_run_reports(job: Job, grid: results.ResultsGrid) -> int:
    """Write the reports and return the exit code for the verdicts of this run.

    With --cells or --layers, the reports have all cells of the matrix file, from the store.
    """
    reported = grid
    if job.options["cells"] or job.options["layers"]:
        reported = Job(job.options, job.context, job.context.matrix.cells).stored_grid()
    print(f"page: {write_reports(report_folder(job), reported)}", file=sys.stderr)
    return exit_code(result.judgement for result in grid.results)


# Steps of `publish`.


def merge_answers(job: Job) -> Publication:
    """Merge the store's answers into the published table, and print the differences."""
    matrix, options = job.context.matrix, job.options
    updated = {cell.id for cell in results.select_cells(matrix, options["cells"], "full")}
    events = job.context.store.read_events()
    table = make_publication(
        results.ResultsGrid(results.make_questions(job.context, matrix.cells), events),
        read_published(options["output"]),
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        updated,
    )
    lists = (("changed", table.changed), ("no answer", table.unanswered), ("dropped", table.dropped))
    for label, lines in lists:
        for line in lines:
            print(f"matrix: {label}: {sanitize.escape_line(line)}", file=sys.stderr)
    counts = f"{len(table.changed)} verdicts changed, {table.kept_count} stay as published"
    print(f"matrix: {counts}, {len(table.dropped)} dropped, {len(table.unanswered)} open", file=sys.stderr)
    return table


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
        help="Folder with grpo_core and repro, the programs that run in cells.",
    ),
    option("--cells", multiple=True, metavar="GLOB", help="Use only cells that match; may be repeated."),
)
_PROFILE = option(
    "--profile",
    type=click.Choice(PROFILES),
    help="Use the cells of this profile: quick (default of run) or full (default of report).",
)
_REPORT = option(
    "--report", type=_PATH, metavar="DIR", help="Folder for the reports (default: report/ in the store)."
)
_MERGE = option(
    "--merge", type=_PATH, multiple=True, metavar="PATH", help="Merge the results of this store first."
)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]}, help=(__doc__ or "").partition("\n\n")[0]
)
def cli() -> None:
    """Define the command line."""


def _command(name: str, run: Callable[[Job], int], *parameters: Any) -> None:
    """Add a command with the common options; an OSError of the command becomes a UserError."""

    def callback(**options: Any) -> int:
        try:
            return run(open_job(options))
        except OSError as error:
            text = f"{error.filename or 'a file'}: {error.strerror or error}: finished answers are kept"
            raise UserError(text) from None

    for decorate in reversed((*parameters, *_COMMON)):
        callback = decorate(callback)
    cli.command(name, help=run.__doc__)(callback)


_command(
    "run",
    run_command,
    _PROFILE,
    option("--layers", multiple=True, metavar="LIST", help="Run only these layers, separated by commas."),
    option("--fresh", is_flag=True, help="Also run layers that already have a result."),
    _REPORT,
    option("--ray", metavar="ADDRESS", help="Run each cell as a task of a Ray cluster: HOST:PORT or auto."),
    option("--list", is_flag=True, help="Print cells and layers; run nothing."),
    option("--json", is_flag=True, help="With --list: print the jobs of a CI workflow."),
)
_command(
    "lock",
    lock_command,
    option("--check", is_flag=True, help="Only print missing and stale locks; resolve nothing."),
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
    option("--dry-run", is_flag=True, help="Print which verdicts change; write nothing."),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; SIGTERM ends a run as Ctrl-C does, with exit code 143."""
    received: list[int] = []

    def interrupt(number: int) -> NoReturn:
        received.append(number)
        raise KeyboardInterrupt

    with handle_signals((signal.SIGTERM,), interrupt):
        code = cli_main(cli, arguments, "python -m diagnostics.matrix")
    return 128 + received[0] if received else code
