"""The options of `triage`; apart from what it does, so that a help loads none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.output import output

if TYPE_CHECKING:
    import argparse


def add(commands: Any) -> None:
    """Adds the command to a parser's commands."""
    triage: argparse.ArgumentParser = commands.add_parser(
        "triage",
        help="the known issue behind a failed run's logs",
    )
    triage.add_argument(
        "logs", nargs="+", metavar="LOG", help="logs of one run, packed too; a folder of them; - for stdin"
    )
    output.add_options(triage)
    triage.add_argument(
        "--group", action="store_true", help="each log is a run of its own: group those that failed alike"
    )
    triage.add_argument(
        "--excerpt", action="store_true", help="these are parts of logs: no end of the run is to be expected"
    )
    triage.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from diagnostics.triage import command

    return command.run(options)
