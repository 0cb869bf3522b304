"""Run the command `hang`: find the process that blocks a hung job.

The snapshot comes from processes of this machine, from other hosts (`observe_hosts`), or from dump files; `--save`
writes it to a file. Each job gets a diagnosis. Exit codes:

- 1: a job hangs;
- 2: wrong usage, no dump can be read, or --pid, --hosts or --ray finds no process;
- 3: a wait is too short or undecided, or no process of a job was found;
- 0: otherwise.

`--watch` runs a command, prints a diagnosis on standard error when it stalls, and returns the command's exit code; with
`--end` it stops a command that hangs and returns 1.
"""

import contextlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from diagnostics import UserError
from diagnostics.cli import Command, seconds_option
from diagnostics.collect.remote import Answer
from diagnostics.cpu_limit import cpu_limit
from diagnostics.findings import FINDINGS, FINE, INCOMPLETE
from diagnostics.hang import watch
from diagnostics.hang.collect.snapshot import NoProcessError, Selection, take_snapshot
from diagnostics.hang.diagnosis import BUSY_PATIENCE_S, PATIENCE_S, Diagnosis, Patience, diagnose
from diagnostics.hang.job_index import split_jobs
from diagnostics.hang.known_issues import with_issue
from diagnostics.hang.parsers import ParseError, bundle
from diagnostics.hang.parsers.dump_files import read_files
from diagnostics.hang.report import build_report
from diagnostics.hang.snapshot import Snapshot, join_snapshots
from diagnostics.multi_node_options import node_options, query_nodes
from diagnostics.output import progress
from diagnostics.output.redact import mask
from diagnostics.output.report_output import ReportOptions, print_report
from diagnostics.safe_io import try_output

FORMATS = ("terminal", "json", "markdown")


@click.command(
    cls=Command,
    examples=(
        ("hang", "all your jobs (ranks, vLLM, Ray), with one verdict each"),
        ("hang --pid 812", "this process, its descendants, the ranks of its job, and its peers"),
        ("hang --from job.json", "a file from --save, or another tool's dump; - for stdin"),
        ("hang --watch -- torchrun train.py", "run a command, and diagnose it when it stalls"),
    ),
    exit_codes={
        0: "nothing hangs", 1: "a hang", 2: "wrong usage, or no dump could be read",
        3: "incomplete: no permission, no process, too early, or not enough evidence",
    },
)  # fmt: skip
@click.option(
    "--pid", "pids", type=int, multiple=True, metavar="PID", help="Observe this process and its descendants."
)
@click.option("--match", "pattern", default="", metavar="PATTERN", help="Observe matching command lines.")
@click.option("--from", "files", multiple=True, metavar="FILE", help="Diagnose a saved dump; repeatable.")
@click.option("--watch", "watches", is_flag=True, help="Run the COMMAND after --, and diagnose stalls.")
@node_options("Observe these hosts over ssh.", "Observe the nodes of a Ray cluster.")
@seconds_option("--seconds", default=1.5, help="Time to observe the job.")
@click.option("--samples", type=click.IntRange(1, 50), default=3, show_default=True, help="Stack samples.")
@seconds_option("--patience", default=PATIENCE_S, help="A wait counts as a hang after this time.")
@seconds_option(
    "--busy-patience", default=BUSY_PATIENCE_S, help="The same limit if the blocking process computes."
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="terminal", help="Output format.")
@click.option("--verbose", "--stacks", "verbose", is_flag=True, help="Print all observations and stacks.")
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Save a redacted snapshot.")
@seconds_option("--stall", default=300.0, help="With --watch: diagnose after this time without a change.")
@click.option("--end", is_flag=True, help="With --watch: stop a command that hangs, and exit with 1.")
@click.argument("words", nargs=-1, metavar="[FILE... | -- COMMAND...]")
def command(**options: Any) -> int:
    """Find the process that blocks a hung job, on Linux. It reads no local variables. Only --end stops a process."""
    request = SimpleNamespace(**options)
    if request.files and not request.watches:
        request.files, request.words = (*request.files, *request.words), ()
    _check_usage(request)
    if request.watches:
        return _watch(request)
    with progress.show_spinner("hang"):
        return _run(request)


def _run(request: SimpleNamespace) -> int:
    """Take or load the snapshot, save it if requested, diagnose its jobs and print the report; return the exit code."""
    try:
        snapshot = collect_snapshot(request)
    except NoProcessError as error:
        if request.pids or request.nodes:
            raise UserError(f"hang: {error}") from None
        click.echo(f"hang: {error}", err=True)
        return INCOMPLETE
    except ValueError as error:  # a dump, a list of hosts, a cluster
        raise UserError(f"hang: {error}") from None
    if request.save:
        save_snapshot(snapshot, request.save)
    with cpu_limit("diagnosing the processes", _DIAGNOSE_S):
        diagnoses = diagnose_jobs(request, snapshot)
    return print_diagnoses(request, diagnoses)


def collect_snapshot(request: SimpleNamespace) -> Snapshot:
    """Read the given dumps, or observe the processes on this machine or on hosts."""
    if request.files:
        progress.update("reading the dumps")
        return read_files(request.files)
    if request.nodes:
        return observe_hosts(request)
    progress.update(f"observing processes for {request.seconds:g} s")
    return take_snapshot(Selection(request.pids, request.pattern, request.seconds, request.samples))


def save_snapshot(snapshot: Snapshot | None, path: Path) -> None:
    """Save the redacted snapshot, or without one try to; a file that cannot be written is a usage error."""
    try:
        bundle.save(snapshot, path) if snapshot else try_output(path)
    except OSError as error:
        raise UserError(f"hang: --save {path}: {error.strerror or error}") from None


def diagnose_jobs(request: SimpleNamespace, snapshot: Snapshot) -> list[Diagnosis]:
    """Return a diagnosis of each job with its known issue, the worst first.

    Processes of --pid and --match, and those in files, are one job; others are split into jobs.
    """
    selected = request.pids or request.pattern or request.files
    jobs = [snapshot] if selected else split_jobs(snapshot)
    patience = Patience(request.patience, request.busy_patience)
    diagnoses = [with_issue(diagnose(job, patience, _selection_words(request))) for job in jobs]
    return sorted(diagnoses, key=lambda diagnosis: _WORST_FIRST.index(diagnosis.verdict.outcome))


_DIAGNOSE_S = 60.0
_WORST_FIRST = ("hang", "unknown", "waiting", "progress", "idle")


def print_diagnoses(request: SimpleNamespace, diagnoses: list[Diagnosis]) -> int:
    """Print the report; return 1 if a job hangs, else 3 if the wait of one is too short or undecided, else 0."""
    verbose = request.verbose or request.watches
    print_report(build_report(diagnoses), ReportOptions(request.form, verbose))
    outcomes = {diagnosis.verdict.outcome for diagnosis in diagnoses}
    if "hang" in outcomes:
        return FINDINGS
    return FINE if outcomes <= {"idle", "progress"} else INCOMPLETE


def _watch(request: SimpleNamespace) -> int:
    """Run the command and print a report to standard error when it stalls; return `watch_command`'s exit code."""
    if request.save:
        save_snapshot(None, request.save)

    def diagnose_stall(pid: int, still_s: float) -> bool:
        try:
            snapshot = take_snapshot(Selection((pid,), seconds=request.seconds, samples=request.samples))
        except NoProcessError:
            return False
        with watch.errors_reported():
            if request.save:
                save_snapshot(snapshot, request.save)
        # The job has not moved for `still_s` seconds, so a longer patience is not needed.
        patience = Patience(min(request.patience, still_s), request.busy_patience)
        diagnosis = with_issue(diagnose(snapshot, patience))
        with watch.errors_reported(), contextlib.redirect_stdout(sys.stderr):
            print(f"hang: no activity for {still_s:.0f} s")
            print_diagnoses(request, [diagnosis])
        return diagnosis.verdict.outcome == "hang"

    return watch.watch_command(request.words, request.stall, diagnose_stall, end=request.end)


def _selection_words(request: SimpleNamespace) -> tuple[str, ...]:
    """Return the options of this call but --seconds, to repeat them in a suggested command."""
    nodes = request.nodes
    options = [("--pid", pid) for pid in request.pids]
    options += [("--match", request.pattern), ("--hosts", nodes.hosts), ("--ray", nodes.ray)]
    options += [("--host-command", nodes.host_command), ("--host-python", nodes.host_python)]
    for name, default in (("samples", 3), ("patience", PATIENCE_S), ("busy_patience", BUSY_PATIENCE_S)):
        value = getattr(request, name)
        options += [(f"--{name.replace('_', '-')}", f"{value:g}")] if value != default else []
    return tuple(word for name, value in options if value for word in (name, str(value)))


def _check_usage(request: SimpleNamespace) -> None:
    """Raise UserError for options that do not fit together, or an invalid pattern."""
    nodes = request.nodes
    selections = {
        "--pid": request.pids, "--match": request.pattern, "--hosts": nodes.hosts, "--ray": nodes.ray,
    }  # fmt: skip
    selecting = [name for name, value in selections.items() if value]
    remote = [name for name in selecting if name in ("--hosts", "--ray")]
    names = " and ".join(selecting)
    problems = (
        (f"--from reads dumps; {names or '--watch'} observes processes", request.files and (selecting or request.watches)),  # noqa: E501
        ("--watch: expected a command, as hang --watch -- python train.py", request.watches and not request.words),
        (f"--watch observes the command it starts; leave out {names}", request.watches and selecting),
        (f"{' '.join(request.words)!r}: unexpected argument (--watch -- COMMAND starts a command)", request.words and not request.watches),  # noqa: E501
        (f"--pid is a number of this host; with {' and '.join(remote)} use --match", remote and request.pids),
    )  # fmt: skip
    for text, applies in problems:
        if applies:
            raise UserError(f"hang: {text}")
    try:
        re.compile(request.pattern)
    except re.error as error:
        raise UserError(f"hang: --match {request.pattern!r}: no valid pattern: {error}") from None


# Other hosts.


SNAPSHOT_MODULE = "diagnostics.hang.collect.snapshot"


def observe_hosts(request: SimpleNamespace) -> Snapshot:
    """Take snapshots on hosts; return the joined snapshot, which lists hosts without an answer as missing.

    The numbers and names of the hosts are printed on standard error.
    """
    options = {name: getattr(request, name) for name in ("pattern", "seconds", "samples")}
    answers = query_nodes(request.nodes, SNAPSHOT_MODULE, "snapshot_as_json", options)
    for number, answer in enumerate(answers, start=1):
        problem = answer.problem and f": {answer.problem}"
        print(mask(f"host-{number} is {answer.name}{problem}"), file=sys.stderr)
    return join_answers(answers)


def join_answers(answers: Sequence[Answer]) -> Snapshot:
    """Return one snapshot of all answers; hosts are called host-1, host-2, ... in order.

    Raises:
        NoProcessError: All hosts answered, and none has a process of a job.
    """
    parts = []
    for number, answer in enumerate(answers, start=1):
        host = f"host-{number}"
        try:
            parts.append(bundle.load(answer.document, host).on_host(host))
        except ParseError as error:
            reason = answer.problem or str(error).removeprefix(f"{host}: ")
            parts.append(Snapshot(blind=(f"{host}: {reason}",), missing=(host,)))
    joined = join_snapshots(parts)
    if not joined.processes and not joined.missing:
        raise NoProcessError(f"none of {len(parts)} hosts has such a process: {'; '.join(joined.notes)}")
    return joined
