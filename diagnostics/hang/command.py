"""`python -m diagnostics hang`: its options, and what it does with them."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import door
from diagnostics.nodes import options as nodes
from diagnostics.output.findings import INCOMPLETE, USAGE
from diagnostics.quantity import seconds

if TYPE_CHECKING:
    from typing import Any

    from diagnostics.hang.snapshot import Snapshot

FORMATS = ("terminal", "json", "markdown", "html")


def add(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "hang",
        help="who holds up a job that stands still, over all its processes",
    )
    which = parser.add_argument_group("which processes (default: all of yours that look like a job)")
    which.add_argument(
        "--pid", type=int, action="append", default=[], metavar="P", help="these, and all below them"
    )
    which.add_argument(
        "--match", default="", metavar="PATTERN", help="whose command line matches, and all below them"
    )
    which.add_argument("--all", action="store_true", help="all of yours that look like parts of a job")
    which.add_argument(
        "--from",
        dest="files",
        nargs="+",
        default=[],
        metavar="FILE",
        help="dumps that were taken before, or - for standard input",
    )
    which.add_argument(
        "--watch",
        action="store_true",
        help="start the command after --, and look when it stands still; the exit code is the command's own",
    )
    nodes.add(
        parser,
        "look on these hosts over ssh, and join what they see",
        "look on the nodes of a running Ray cluster",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--seconds", type=seconds, default=1.5, metavar="S", help="watch them that long (default: 1.5)"
    )
    how.add_argument(
        "--samples", type=int, default=3, metavar="N", help="stacks to take in that time (default: 3)"
    )
    how.add_argument(
        "--patience",
        type=seconds,
        default=60.0,
        metavar="S",
        help="a wait is normal that long where nobody computes (default: 60)",
    )
    how.add_argument(
        "--busy-patience",
        type=seconds,
        default=600.0,
        metavar="S",
        help="and that long where who is waited for computes (default: 600)",
    )
    how.add_argument("--format", choices=FORMATS, default="terminal")
    how.add_argument("--verbose", action="store_true", help="in the terminal: everything that was seen")
    how.add_argument(
        "--stacks", action="store_true", help="in the terminal: the same, and the tree of all stacks"
    )
    how.add_argument(
        "--save", type=Path, metavar="FILE", help="keep what was seen, to be judged elsewhere by --from"
    )
    watch = parser.add_argument_group("with --watch or --beats")
    watch.add_argument(
        "--stall",
        type=seconds,
        default=300.0,
        metavar="S",
        help="look when nothing moved that long (default: 300)",
    )
    watch.add_argument(
        "--end", action="store_true", help="end the command when it hangs; the exit code is 1 then"
    )
    watch.add_argument(
        "--beats",
        action="store_true",
        help="with --pid: lines on standard input are its signs of life; look when none came for --stall seconds",
    )
    parser.add_argument("words", nargs="*", metavar="-- COMMAND", help=argparse.SUPPRESS)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Looks or reads, judges, shows."""
    words = [word for word in options.words if word != "--"] if options.watch else options.words
    if problem := _misused(options, words):
        print(f"diagnostics: hang: {problem}", file=sys.stderr)
        return USAGE
    if options.watch or options.beats:
        from diagnostics.hang import watch

        return watch.run(words, options, answer) if options.watch else watch.beats(options, answer)
    from diagnostics.hang.look import take
    from diagnostics.hang.read import ReadError

    try:
        snapshot = _seen(options)
    except KeyboardInterrupt:
        print("diagnostics: hang: interrupted; nothing was judged", file=sys.stderr)
        return 128 + signal.SIGINT
    except (ReadError, take.NoProcessError, ValueError) as error:
        print(f"diagnostics: hang: {door.line(error)}", file=sys.stderr)
        # That nothing was found to be looked at is no wrong usage, and not fine either.
        return USAGE if options.pid or options.files or options.hosts or options.ray else INCOMPLETE
    return answer(snapshot, options)


def _seen(options: argparse.Namespace) -> Snapshot:
    if options.files:
        from diagnostics.hang.read import files

        return files.read(options.files)
    if options.hosts or options.ray:
        from diagnostics.hang.look import hosts

        return hosts.take(options)
    return _look(options)


def _misused(options: argparse.Namespace, words: list[str]) -> str:
    far = (("--hosts", options.hosts), ("--ray", options.ray))
    named = (("--pid", options.pid), ("--match", options.match), ("--all", options.all), *far)
    given = [name for name, value in named if value]
    elsewhere = [name for name, value in far if value]
    told = (
        (
            f"--from reads dumps; {' and '.join(given) or '--watch'} would look at processes",
            options.files and (given or options.watch),
        ),
        (
            "--beats listens to one process: expected --pid P and nothing else to look at",
            options.beats and (len(options.pid) != 1 or given != ["--pid"] or options.watch or options.files),
        ),
        ("--watch: expected a command, as hang --watch -- python train.py", options.watch and not words),
        (f"--watch looks at what it started; without {' and '.join(given)}", options.watch and given),
        (
            f"{' '.join(words)!r}: expected nothing there (--watch -- COMMAND would start a command)",
            words and not options.watch,
        ),
        (
            f"--pid is a number of this host; with {' and '.join(elsewhere)} take --match",
            elsewhere and options.pid,
        ),
        (nodes.problem(options), True),
        (f"--samples {options.samples}: expected 1 to 50", not 1 <= options.samples <= 50),
    )
    try:
        re.compile(options.match)
    except re.error as error:
        return f"--match {options.match!r}: no pattern: {error}"
    return next((problem for problem, holds in told if problem and holds), "")


def _look(options: argparse.Namespace) -> Snapshot:
    from diagnostics.hang.look.take import Wanted, take

    return take(Wanted(tuple(options.pid), options.match, options.all, options.seconds, options.samples))


def answer(snapshot: Snapshot, options: argparse.Namespace) -> int:
    """Judges a snapshot and writes what came of it; keeps it where that was asked for."""
    from diagnostics.hang.judge import causes
    from diagnostics.hang.judge.decide import Patience, judge
    from diagnostics.hang.show import document

    if options.save:
        from diagnostics.hang.read import bundle

        try:
            bundle.write(snapshot, options.save)
        except OSError as error:
            print(f"diagnostics: hang: --save {options.save}: {error.strerror or error}", file=sys.stderr)
            return USAGE
    judged = causes.named(judge(snapshot, Patience(options.patience, options.busy_patience)))
    found = document.document(judged, causes.helps(judged.verdict.code))
    _write(found, options)
    return document.exit_code(judged.verdict.outcome)


def _write(found: dict[str, Any], options: argparse.Namespace) -> None:
    from diagnostics.hang.judge import causes
    from diagnostics.hang.show import markdown, page, terminal

    if options.format == "json":
        print(json.dumps(found, indent=1, ensure_ascii=False))
    elif options.format == "markdown":
        print(markdown.text(found), end="")
    elif options.format == "html":
        print(page.text(found), end="")
    else:
        # What was seen when it stood still can't be asked again.
        verbose = options.verbose or options.watch or options.beats
        terminal.render(found, sys.stdout, causes.finding(found), verbose=verbose, stacks=options.stacks)
