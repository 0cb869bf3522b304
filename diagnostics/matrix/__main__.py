"""`python -m diagnostics.matrix`: run the matrix, build a cell's environment, make locks, publish."""

from __future__ import annotations

from diagnostics import interrupts

if __name__ == "__main__":
    interrupts.untaken()

import argparse
import errno
import math
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from diagnostics import door, programs
from diagnostics.matrix import commands, usage
from diagnostics.matrix.build.paths import ROOT
from diagnostics.matrix.build.sources import WheelError
from diagnostics.matrix.build.uv import UvMissingError
from diagnostics.matrix.records.store import StoreError
from diagnostics.matrix.report import ci
from diagnostics.matrix.run.cluster.dispatch import DispatchError
from diagnostics.matrix.sweep import command as sweeps
from diagnostics.tables import TableError

if TYPE_CHECKING:
    from types import FrameType


class _Parser(argparse.ArgumentParser):
    """Refuses bad usage in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see --help\n")


class Stopped(KeyboardInterrupt):
    """Raised by SIGTERM, so that it ends a run as Ctrl-C does."""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    with door.opened():
        return _run(arguments)


def _run(arguments: list[str] | None) -> int:
    """One command, its words on the way through the door."""
    options = _parser().parse_args(arguments)
    try:
        with interrupts.Taken():
            before = signal.signal(signal.SIGTERM, _stop)
            try:
                code: int = options.command(options)
            finally:
                signal.signal(signal.SIGTERM, before)
    except (TableError, StoreError, UvMissingError, WheelError, DispatchError) as error:
        print(f"matrix: {error}", file=sys.stderr)
        code = 2
    except Stopped:
        code = 128 + signal.SIGTERM
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 - the one place for what nobody foresaw
        line = _of_the_machine(error) if isinstance(error, OSError) else None
        if line is None:
            return programs.failed(error, "matrix")
        print(f"matrix: {line}: what was finished is kept, the next run goes on from here", file=sys.stderr)
        code = 2
    return code


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Stopped


def _of_the_machine(error: OSError) -> str | None:
    """Says in one line which file could not be written; None for what is no fault of disk or rights."""
    if isinstance(error, shutil.Error):  # of a folder's copy: (source, target, reason) each
        _source, target, reason = error.args[0][0]
        return f"{target}: {str(reason).partition(': ')[0].rpartition('] ')[2]}"
    if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}:
        return None
    return f"{error.filename or 'a file'}: {error.strerror}"


def _count(text: str) -> int:
    """Reads a number of things, at least one."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on where {text!r} stands")
    return int(text)


def _size(text: str) -> float:
    """Reads a size in GB, above zero."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"expected GB above zero where {text!r} stands")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m diagnostics.matrix", description=__doc__)
    common = _Parser(add_help=False)
    common.add_argument(
        "--file", type=Path, default=ROOT / "matrix.toml", help="the matrix file (default: the project's)"
    )
    common.add_argument(
        "--store",
        type=Path,
        default=None,
        help="folder of verdicts, environments and logs (default: .matrix beside the matrix file)",
    )
    common.add_argument(
        "--programs",
        type=Path,
        default=ROOT,
        metavar="DIR",
        help="folder of grpo_core and repro, which run in the cells (default: the project)",
    )
    common.add_argument(
        "--cells",
        action="append",
        default=[],
        metavar="GLOB",
        help="only these cells; may be given several times",
    )
    chosen = _Parser(add_help=False, parents=[common])
    chosen.add_argument(
        "--profile",
        default=None,
        help="cells of this profile: quick (default), full, or the generated ones of breadth; "
        "where --cells is given, it chooses among the generated ones for breadth, else among all written ones",
    )
    commands_ = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    _asking(commands_, common, chosen)
    _managing(commands_, common, chosen)
    _reporting(commands_, common, chosen)
    _sweeping(commands_, common)
    for choice in commands_._choices_actions:  # noqa: SLF001 - argparse has no other way to a command's line of help
        command = commands_.choices[choice.dest]
        command.description = f"{str(choice.help)[:1].upper()}{str(choice.help)[1:]}."
        usage.put(command, choice.dest, parser.prog)
    return parser


def _asking(commands_: Any, common: _Parser, chosen: _Parser) -> None:
    """Adds what asks questions: run, bisect, add."""
    run = commands_.add_parser("run", parents=[chosen], help="ask what is due, print the table")
    run.add_argument(
        "--layers", action="append", default=[], metavar="LIST", help="only these layers, separated by commas"
    )
    run.add_argument("--fresh", action="store_true", help="ask again what is answered already")
    run.add_argument(
        "--only-failed",
        action="store_true",
        help="ask again what was asked and is not as expected (timeouts and faults of the machine too), nothing else",
    )
    run.add_argument(
        "--since",
        default=None,
        metavar="DAY",
        help="ask again what was answered before this day (UTC), as 2026-11-20",
    )
    run.add_argument(
        "--disk-gb",
        type=_size,
        default=None,
        metavar="GB",
        help="what all environments may take together; the oldest go first (default: what the disk has)",
    )
    run.add_argument(
        "--report",
        type=Path,
        default=None,
        metavar="DIR",
        help="folder for the page, Markdown and JSON (default: report/ in the store)",
    )
    run.add_argument(
        "--jobs",
        type=_count,
        default=None,
        metavar="N",
        help="ask so many questions that need no environment at a time (default: 1; for breadth 4 per core)",
    )
    run.add_argument(
        "--ray",
        default=None,
        metavar="ADDRESS",
        help="ask on the nodes of a running Ray cluster: HOST:PORT or auto; see docs/ci.md",
    )
    keep = run.add_mutually_exclusive_group()
    keep.add_argument(
        "--keep-environments",
        dest="keep",
        action="store_const",
        const="always",
        default="auto",
        help="never remove an environment (default: the oldest goes when disk runs short)",
    )
    keep.add_argument(
        "--drop",
        dest="keep",
        action="store_const",
        const="never",
        help="remove each environment after the cell's last layer",
    )
    run.add_argument("--list", action="store_true", help="print cells and layers, run nothing")
    run.add_argument(
        "--verbose", action="store_true", help="the whole table, also on a screen that it does not fit on"
    )
    run.add_argument("--dry-run", action="store_true", help="print what would be asked and why, run nothing")
    run.set_defaults(command=commands.run)

    bisect = commands_.add_parser(
        "bisect", parents=[common], help="name the first vLLM at which a layer's verdict changes"
    )
    bisect.add_argument("--trl", required=True, help="a release of TRL, or newest")
    bisect.add_argument("--vllm", required=True, metavar="A..B", help="the releases to search, ends included")
    bisect.add_argument("--layer", required=True, help="the layer whose verdict is compared")
    bisect.add_argument(
        "--recipe", default=None, help="builds the environments, for a layer that runs in one"
    )
    bisect.set_defaults(command=commands.bisect)

    add = commands_.add_parser(
        "add", parents=[common], help="try a new vLLM: resolve and read it beside TRL, print the cell"
    )
    add.add_argument("release", metavar="vllm==VERSION", help="vllm==newest for the newest known")
    add.add_argument("--trl", default="newest", help="a release of TRL (default: the newest known)")
    add.add_argument("--write", action="store_true", help="write the cell into the matrix file, and its lock")
    add.set_defaults(command=commands.add)


def _managing(commands_: Any, common: _Parser, chosen: _Parser) -> None:
    """Adds what looks after environments, locks, releases and stores."""
    environment = commands_.add_parser(
        "env", parents=[common], help="build a cell's environment if it isn't there, print its path"
    )
    environment.add_argument("cell", help="a cell's id")
    environment.set_defaults(command=commands.environment)

    lock = commands_.add_parser(
        "lock", parents=[chosen], help="resolve the cells' locks again, each at its date cut"
    )
    lock.add_argument(
        "--keep", action="store_true", help="keep the versions of the locks there are, look up their hashes"
    )
    lock.add_argument(
        "--into", type=Path, default=None, metavar="DIR", help="write them there (default: locks/)"
    )
    lock.set_defaults(command=commands.lock)

    check = commands_.add_parser(
        "check", parents=[common], help="say which locks and workflow are missing or stale, ask nothing"
    )
    check.set_defaults(command=commands.check)

    merge = commands_.add_parser("merge", parents=[common], help="take in the verdicts of other stores")
    stores = "folders of other stores; files that a kit for a GPU box wrote"
    merge.add_argument("stores", nargs="+", type=Path, metavar="STORE", help=stores)
    merge.set_defaults(command=commands.merge)

    releases = commands_.add_parser(
        "releases", parents=[common], help="ask the index which releases there are, write locks/releases.json"
    )
    releases.set_defaults(command=commands.releases)


def _reporting(commands_: Any, common: _Parser, chosen: _Parser) -> None:
    """Adds what shows the store's verdicts and asks nothing: report, confusion, workflow, publish."""
    report = commands_.add_parser(
        "report", parents=[common], help="write the page and the other reports from the store, ask nothing"
    )
    report.add_argument(
        "--report", type=Path, default=None, metavar="DIR", help="default: report/ in the store"
    )
    report.add_argument(
        "--profile", default=None, help="breadth for the generated cells (default: the written ones)"
    )
    report.set_defaults(command=commands.report)

    found = commands_.add_parser(
        "findings", parents=[common], help="write what metadata, source and runs disagree on as a document"
    )
    found.add_argument(
        "--output",
        type=Path,
        default=ROOT / "docs" / "results" / "findings-matrix.md",
        help="default: docs/results/findings-matrix.md",
    )
    found.set_defaults(command=commands.found)

    confusion = commands_.add_parser(
        "confusion",
        parents=[common],
        help="print what doctor said of the cells against what was seen, from the store; ask nothing",
    )
    confusion.set_defaults(command=commands.confusion)

    workflow = commands_.add_parser(
        "workflow", parents=[chosen], help="print the GitHub Actions workflow made from the matrix file"
    )
    workflow.add_argument("--release", action="store_true", help="that of a release, which has no cells")
    workflow.add_argument(
        "--suite", action="store_true", help="that of the tests for a GPU, which asks no cell"
    )
    workflow.add_argument("--cpu", default=ci.CPU, metavar="LABEL", help="runner of the cells")
    workflow.add_argument(
        "--gpu", default=ci.GPU, metavar="LABELS", help="of the runner with a GPU; '' for none"
    )
    workflow.add_argument(
        "--output", type=Path, default=None, metavar="FILE", help="default: standard output"
    )
    workflow.set_defaults(command=commands.workflow)

    publish = commands_.add_parser(
        "publish",
        parents=[common],
        help="bring compat.json up to date from the store; loses no verdict unasked",
    )
    publish.add_argument("--output", type=Path, default=ROOT / "diagnostics" / "data" / "compat.json")
    publish.add_argument(
        "--drop", action="store_true", help="leave out what is published and asked by no cell any more"
    )
    publish.add_argument("--dry-run", action="store_true", help="print which verdicts change, write nothing")
    publish.set_defaults(command=commands.publish)


def _sweeping(commands_: Any, common: _Parser) -> None:
    """Adds what asks every release of a package."""
    sweep = commands_.add_parser(
        "sweep",
        parents=[common],
        help="ask every release of a package for known failures, print what helps where",
    )
    sweep.add_argument(
        "--sweep",
        action="append",
        choices=sweeps.NAMES,
        help="one of them (default: all that make known failures happen, which leaves out swift)",
    )
    sweep.add_argument(
        "--releases", action="append", default=[], metavar="GLOB", help="only these, as '0.6.*'"
    )
    sweep.add_argument(
        "--jobs", type=_count, default=os.cpu_count() or 1, help="releases at a time (default: cores)"
    )
    sweep.add_argument("--fresh", action="store_true", help="ask again what is answered already")
    sweep.add_argument(
        "--every", action="store_true", help="of swift: every release, not the newest of each minor"
    )
    sweep.add_argument(
        "--publish",
        action="store_true",
        help="write diagnostics/data/sweep.json and its picture, or swift.json",
    )
    sweep.add_argument(
        "--lock", action="store_true", help="resolve again what runs beside the releases, run nothing"
    )
    sweep.set_defaults(command=commands.sweep)


if __name__ == "__main__":
    sys.exit(main())
