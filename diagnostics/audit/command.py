"""`python -m diagnostics audit`: its options, and what it does with them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import door
from diagnostics.audit.live.budget import LEAST
from diagnostics.output.findings import INCOMPLETE, USAGE
from diagnostics.quantity import seconds

if TYPE_CHECKING:
    from typing import Any

    from diagnostics.audit.model import Audit
    from diagnostics.audit.running.watcher import Change

FORMATS = ("terminal", "json", "jsonl", "markdown", "html")


def add(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "audit",
        help="the fault that nothing reports, in a server or a run's files",
    )
    parser.add_argument(
        "run",
        nargs="?",
        type=Path,
        metavar="RUN",
        help="what a run left behind: its folder, or one file of it",
    )
    left = parser.add_argument_group("what a run left behind")
    left.add_argument(
        "--reward",
        default="",
        metavar="MODULE:FUNCTION",
        help="call this reward function again, also file.py:function; runs its code",
    )
    live = parser.add_argument_group("a server that runs")
    live.add_argument(
        "--server", default="", metavar="URL", help="ask it; a few thousand tokens, nothing is changed"
    )
    live.add_argument(
        "--model",
        default="",
        metavar="NAME",
        help="of several that it serves, as an adapter (default: the first)",
    )
    live.add_argument("--checkpoint", type=Path, metavar="DIR", help="the weights that it should hold")
    live.add_argument(
        "--against",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="other weights that it may hold (default: the checkpoints beside it)",
    )
    live.add_argument(
        "--trainer-config",
        type=Path,
        metavar="FILE",
        help="JSON of what the trainer samples and computes with",
    )
    live.add_argument(
        "--replica", action="append", default=[], metavar="URL", help="another server that should be the same"
    )
    going = parser.add_argument_group("a run that goes on")
    going.add_argument(
        "--watch", type=Path, nargs="+", default=[], metavar="FILE",
        help="look at metrics.jsonl, logs, event files, completions.jsonl as they grow; Ctrl-C ends it",
    )  # fmt: skip
    going.add_argument(
        "--idle", type=_seconds_or_none, default=-1.0, metavar="S",
        help="end when nothing has grown for so long; 0: read what is there (default: never)",
    )  # fmt: skip
    going.add_argument(
        "--every", type=_steps, default=100, metavar="N",
        help="with --server: audit it every so many steps (default: 100)",
    )  # fmt: skip
    how = parser.add_argument_group("how")
    how.add_argument(
        "--tokens", type=_count, default=4000, metavar="N", help="at most so many in all (default: 4000)"
    )
    how.add_argument("--timeout", type=seconds, default=60.0, metavar="S", help="of one call (default: 60)")
    how.add_argument("--format", choices=FORMATS, default="terminal")
    how.add_argument(
        "--verbose", action="store_true", help="in the terminal: all that is known of each answer"
    )
    parser.set_defaults(command=run)


def _count(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    if not 64 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of tokens from 64 to 1000000")
    return value


def _seconds_or_none(text: str) -> float:
    return 0.0 if text in ("0", "0.0") else seconds(text)


def _steps(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of steps from 1 on")
    return value


def run(options: argparse.Namespace) -> int:
    """Asks or reads, judges, shows."""
    if problem := _misused(options):
        print(f"diagnostics: audit: {problem}", file=sys.stderr)
        return USAGE
    from diagnostics.audit.errors import AuditError, NotAskedError

    try:
        found = _asked(options)
    except NotAskedError as error:
        # It is there, and could not be asked now: that is no wrong usage, and not fine either.
        print(f"diagnostics: audit: {error}", file=sys.stderr)
        return INCOMPLETE
    except AuditError as error:
        print(f"diagnostics: audit: {error}", file=sys.stderr)
        return USAGE
    return write(found, options.format, verbose=options.verbose)


def _asked(options: argparse.Namespace) -> Audit:
    if options.watch:
        return _watched(options)
    if options.run is not None:
        from diagnostics.audit.live import trainer
        from diagnostics.audit.recorded import audit_run

        return audit_run(
            options.run,
            checkpoint=options.checkpoint,
            tokens=max(options.tokens, 4096),
            reward=options.reward,
            asked=trainer.read(options.trainer_config).request if options.trainer_config else None,
        )
    from diagnostics.audit.live.asked import Asked, audit_server

    return audit_server(
        Asked(
            options.server,
            options.checkpoint,
            tuple(options.against),
            options.trainer_config,
            tuple(options.replica),
            options.tokens,
            options.timeout,
            options.model,
        )
    )


def _watched(options: argparse.Namespace) -> Audit:
    """Each change as a line when it comes; on stdout where that is no one document."""
    from diagnostics.audit.running.probing import Probe
    from diagnostics.audit.running.watching import Watch, Watched
    from diagnostics.output.audits import running

    def told(change: Change) -> None:
        if options.format == "jsonl":
            print(json.dumps(running.entry(change), ensure_ascii=False), flush=True)
        elif options.format == "terminal":
            print(running.line(change), flush=True)
        else:
            print(f"diagnostics: audit: {running.line(change)}", file=sys.stderr)
        if door.Door.unread:
            raise KeyboardInterrupt  # nobody looks any more: the usual end

    probe = None
    if options.server:
        probe = Probe(options.server, options.checkpoint, options.trainer_config, options.tokens)
    return Watch(Watched(tuple(options.watch), options.idle, probe, options.every), told).run()


def _misused(options: argparse.Namespace) -> str:
    live = [
        name
        for name, value in (
            ("--replica", options.replica),
            ("--against", options.against),
            ("--model", options.model),
        )
        if value
    ]
    told = (
        ("expected a RUN, or --server URL --checkpoint DIR",
         options.run is None and not options.server and not options.watch),
        (f"{options.run}: one thing at a time: a RUN, or --server", options.run is not None and options.server),
        (f"{options.run}: one thing at a time: a RUN, or --watch", options.run is not None and options.watch),
        ("--idle: of --watch alone", options.idle >= 0 and not options.watch),
        ("--server: expected --checkpoint DIR, too: the weights that it should hold",
         options.server and options.checkpoint is None),
        (f"--tokens {options.tokens}: an audit of a server takes {LEAST} at least",
         options.server and options.tokens < LEAST),
        ("--reward: of a RUN alone", options.reward and options.run is None),
        (f"{' and '.join(live)}: of a server alone", options.run is not None and live),
    )  # fmt: skip
    return next((problem for problem, holds in told if holds), "")


def write(found: Audit, form: str, *, verbose: bool = False) -> int:
    """Prints it; returns the exit code."""
    from diagnostics.audit import document
    from diagnostics.output.audits import markdown, page, terminal

    made = document.document(found)
    if form == "json":
        print(json.dumps(made, indent=1, ensure_ascii=False))
    elif form == "jsonl":
        for line in document.lines(made):
            print(json.dumps(line, ensure_ascii=False))
    elif form == "markdown":
        print(markdown.text(made), end="")
    elif form == "html":
        print(page.text(made), end="")
    else:
        terminal.render(made, sys.stdout, document.findings(made), verbose=verbose)
    return document.exit_code(found.outcome)
