"""`python -m diagnostics audit`: audit a run's artifacts, a live server, or files that grow.

The workflow: `command` checks the options, one of `audit_run`, `audit_server` and `Watch` audits, `write_audit` prints.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from diagnostics.audit.live.probe_inputs import DEFAULT_TOKENS, MIN_TOKENS
from diagnostics.audit.live.probe_plan import LiveAudit, audit_server
from diagnostics.audit.live.server_settings import read_trainer_settings
from diagnostics.audit.model import Audit, NotAvailableError
from diagnostics.audit.recorded.run_audit import audit_run
from diagnostics.audit.report import FORMATS, write_audit
from diagnostics.audit.watch import Change, Watch
from diagnostics.cli import Command
from diagnostics.findings import INCOMPLETE
from diagnostics.output import prepare, progress

_FOLDER, _FILE = click.Path(path_type=Path), click.Path(path_type=Path)
_REMOVED = {
    "every": "--every was removed: run `audit --server URL --checkpoint DIR` after a checkpoint instead",
    "server": "--watch with --server was removed: run `audit --server URL --checkpoint DIR` after a checkpoint instead",
}


@click.command(
    cls=Command,
    examples=(
        ("audit RUN", "a run's output directory, or one file in it"),
        ("audit --server URL --checkpoint DIR", "a live server"),
        ("audit --watch metrics.jsonl", "metrics while they are written"),
    ),
    exit_codes={1: "a fault", 3: "incomplete: a decisive check could not run"},
)
@click.argument("paths", nargs=-1, metavar="[RUN]", type=_FILE)
@click.option(
    "--reward", default="", metavar="MODULE:FUNCTION", help="Call this reward function again; runs its code."
)
@click.option("--server", default="", metavar="URL", help="Audit this server; takes a few thousand tokens.")
@click.option(
    "--model", default="", metavar="NAME", help="Model or adapter to audit (default: the first served)."
)
@click.option("--checkpoint", type=_FOLDER, metavar="DIR", help="Weights that the server should hold.")
@click.option("--against", type=_FOLDER, multiple=True, metavar="DIR", help="Other weights that it may hold.")
@click.option(
    "--trainer-config", type=_FILE, metavar="FILE", help="Trainer settings as JSON or TOML (temperature, …)."
)
@click.option("--replica", multiple=True, metavar="URL", help="Another server that should be equal.")
@click.option(
    "--watch", type=_FILE, multiple=True, metavar="FILE", help="Check files as they grow; Ctrl-C ends it."
)
@click.option(
    "--idle",
    type=click.FloatRange(min=0),
    metavar="S",
    help="With --watch: end after S seconds without growth.",
)
@click.option("--every", type=int, hidden=True)
@click.option(
    "--tokens",
    type=click.IntRange(64, 1_000_000),
    default=DEFAULT_TOKENS,
    show_default=True,
    help="Tokens at most.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.001, 86400),
    default=60.0,
    show_default=True,
    help="Seconds for one call.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="terminal", help="Output format.")
@click.option("--verbose", is_flag=True, help="Print everything known of each result.")
def command(
    paths: tuple[Path, ...], server: str, checkpoint: Path | None, watch: tuple[Path, ...], form: str, *, verbose: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Detect silent faults in a rollout server or in a run's recorded data."""
    _check_usage(paths, server, checkpoint, watch, options)
    try:
        if watch:
            audit = _watch((*watch, *paths), options["idle"], form)
        else:
            with progress.running("audit"):
                audit = _audit(paths, server, checkpoint, options)
    except NotAvailableError as error:
        print(prepare.for_screen(f"diagnostics: audit: {error}"), file=sys.stderr)
        return INCOMPLETE
    return write_audit(audit, form, verbose=verbose)


def _audit(paths: tuple[Path, ...], server: str, checkpoint: Path | None, options: dict[str, Any]) -> Audit:
    if server and checkpoint is not None:
        live = LiveAudit(server, checkpoint, (*options["against"], *paths), options["trainer_config"],
            options["replica"],
                         options["tokens"], options["timeout"], options["model"])  # fmt: skip
        return audit_server(live)
    config = options["trainer_config"]
    return audit_run(
        paths[0], checkpoint=checkpoint, tokens=max(options["tokens"], 4096), reward=options["reward"],
        expected=read_trainer_settings(config).request if config else None,
    )  # fmt: skip


def _watch(paths: tuple[Path, ...], idle_s: float | None, form: str) -> Audit:
    """Watch files; each change is a line on standard output, unless that holds one document."""

    def remark(text: str) -> None:
        print(prepare.for_screen(f"diagnostics: audit: {text}"), file=sys.stderr)

    def report(change: Change) -> None:
        if form == "jsonl":
            entry = prepare.for_sharing(prepare.for_screen(change.to_json()))
            print(json.dumps(entry, ensure_ascii=False), flush=True)
        elif form == "terminal":
            print(prepare.for_screen(change.text), flush=True)
        else:
            remark(change.text)

    return Watch(paths, -1.0 if idle_s is None else idle_s, report, remark).run()


def _check_usage(
    paths: tuple[Path, ...],
    server: str,
    checkpoint: Path | None,
    watch: tuple[Path, ...],
    options: dict[str, Any],
) -> None:
    """Raise UsageError for options that do not fit together."""
    live_only = [f"--{name}" for name in ("replica", "against", "model") if options[name]]
    problems = (
        (_REMOVED["every"], options["every"] is not None),
        (_REMOVED["server"], bool(watch and server)),
        ("expected a RUN, or --server URL --checkpoint DIR", not paths and not server and not watch),
        ("--idle: only with --watch", options["idle"] is not None and not watch),
        ("--server: expected --checkpoint DIR too: the weights that it should hold",
        bool(server) and checkpoint is None),
        (f"--tokens {options['tokens']}: an audit of a server takes {MIN_TOKENS} at least",
         bool(server) and options["tokens"] < MIN_TOKENS),
        ("RUN and --server: give one of them", bool(server) and bool(paths) and not options["against"]),
        ("expected one RUN", len(paths) > 1 and not server and not watch),
        ("--reward: only with a RUN", bool(options["reward"]) and (bool(server) or bool(watch))),
        (f"{' and '.join(live_only)}: only with --server", bool(live_only) and not server),
    )  # fmt: skip
    for message, is_wrong in problems:
        if is_wrong:
            raise click.UsageError(message)
