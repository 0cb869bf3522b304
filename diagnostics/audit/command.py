"""Run the command `audit`: find silent faults in a run's files, in a live server, or in growing metrics files.

The workflow is `_check_usage`, then one of `audit_run`, `audit_server` and `_watch_files`, then `write_audit`, whose
exit code the command returns. An input that cannot be audited now gives one line on standard error and exit code 3.
With --server and --against, positional paths are further --against folders, so that `--against A B` works. With --watch
they are further files to watch.
"""

import sys
from pathlib import Path
from typing import Any

import click

from diagnostics.audit.finding_tracker import Change
from diagnostics.audit.live.probe_inputs import DEFAULT_TOKENS, MAX_TOKENS, MIN_TOKENS
from diagnostics.audit.live.server_audit import audit_server
from diagnostics.audit.recorded.run_audit import audit_run
from diagnostics.audit.report import FORMATS, write_audit
from diagnostics.audit.results import Audit, NotAvailableError
from diagnostics.audit.watch import Watch
from diagnostics.cli import Command, Seconds, seconds_option
from diagnostics.findings import INCOMPLETE
from diagnostics.output import json_output, progress, text_filters

_PATH = click.Path(path_type=Path)
_TOKENS = click.IntRange(MIN_TOKENS, MAX_TOKENS)


@click.command(
    cls=Command,
    examples=(
        ("audit RUN", "a run's output directory, or one file in it"),
        ("audit --server URL --checkpoint DIR", "a live server"),
        ("audit --watch metrics.jsonl", "metrics of a run that still trains"),
    ),
    exit_codes={1: "a fault", 3: "incomplete: a decisive check could not run"},
)
@click.argument("paths", nargs=-1, metavar="[RUN]", type=_PATH)
@click.option("--reward", default="", metavar="MODULE:FUNCTION", help="Run the code of this reward function.")
@click.option("--server", default="", metavar="URL", help="Audit this server (a few thousand tokens).")
@click.option("--model", default="", metavar="NAME", help="Model or adapter to audit (default: the first).")
@click.option("--checkpoint", type=_PATH, metavar="DIR", help="Weights that the server should hold.")
@click.option("--against", type=_PATH, multiple=True, metavar="DIR", help="Compare with these weights, too.")
@click.option(
    "--trainer-config", "trainer", type=_PATH, metavar="FILE", help="Trainer settings (JSON, TOML)."
)
@click.option("--watch", type=_PATH, multiple=True, metavar="FILE", help="Check files while they grow.")
@click.option("--idle", type=Seconds(zero=True), metavar="S", help="With --watch: end after S quiet seconds.")
@click.option(
    "--tokens",
    type=_TOKENS,
    default=DEFAULT_TOKENS,
    show_default=True,
    help="Most tokens to use on the server.",
)
@seconds_option("--timeout", "timeout_s", default=60.0, help="Time limit of one call to the server.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="terminal", help="Output format.")
@click.option("--verbose", is_flag=True, help="Print all details of each result.")
def command(paths: tuple[Path, ...], form: str, *, verbose: bool, **options: Any) -> int:
    """Detect silent faults in a rollout server or in a run's recorded data."""
    _check_usage(paths, options)
    server, reward, watch, idle = (options.pop(name) for name in ("server", "reward", "watch", "idle"))
    try:
        if watch:
            audit = _watch_files((*watch, *paths), idle, form)
        else:
            with progress.show_spinner("audit"):
                options["against"] += paths
                audit = audit_server(server, **options) if server else audit_run(paths[0], reward)
    except NotAvailableError as error:
        _print_to_stderr(str(error))
        return INCOMPLETE
    return write_audit(audit, form, verbose=verbose)


def _check_usage(paths: tuple[Path, ...], options: dict[str, Any]) -> None:
    """Raise UsageError for options that do not fit together."""
    server, watch = options["server"], options["watch"]
    names = {"against": "against", "model": "model", "checkpoint": "checkpoint", "trainer": "trainer-config"}
    live_only = [f"--{option}" for name, option in names.items() if options[name]]
    no_checkpoint = "--server: expected --checkpoint DIR too: the weights that it should hold"
    problems = {
        "--watch and --server: give one of them": watch and server,
        "expected a RUN, or --server URL --checkpoint DIR": not (paths or server or watch),
        "--idle: only with --watch": options["idle"] is not None and not watch,
        no_checkpoint: server and not options["checkpoint"],
        "RUN and --server: give one of them": server and paths and not options["against"],
        "expected one RUN": len(paths) > 1 and not (server or watch),
        "--reward: only with a RUN": options["reward"] and (server or watch),
        f"{' and '.join(live_only)}: only with --server": live_only and not server,
    }
    for message, is_wrong in problems.items():
        if is_wrong:
            raise click.UsageError(message)


def _watch_files(paths: tuple[Path, ...], idle_s: float | None, form: str) -> Audit:
    """Watch files until Ctrl-C or `idle_s` seconds without a change (None: no limit); return the audit.

    Each change is printed at once: to standard output, or to standard error if the result is one document.
    """

    def report(change: Change) -> None:
        if form == "jsonl":
            document = text_filters.redact_for_sharing(change.to_json())
            print(json_output.dump(document, None), flush=True)
        elif form == "terminal":
            print(text_filters.mask_for_screen(change.log_line), flush=True)
        else:
            _print_to_stderr(change.log_line)

    return Watch(paths, -1.0 if idle_s is None else idle_s, report, _print_to_stderr).run()


def _print_to_stderr(text: str) -> None:
    print(text_filters.mask_for_screen(f"diagnostics: audit: {text}"), file=sys.stderr)
