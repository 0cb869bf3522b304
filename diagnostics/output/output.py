"""What doctor, lint and triage have in common: the formats, which findings are shown, and what fails the command."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import door
from diagnostics.output import clean
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from diagnostics.output.findings import Report

FORMATS = ("terminal", "json", "jsonl", "sarif", "junit", "github", "markdown")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--format`, `--fail-on`, `--select`, `--ignore` and `--baseline`, which mean the same in every command."""
    parser.add_argument("--format", choices=FORMATS, default="terminal")
    parser.add_argument(
        "--verbose", action="store_true", help="in the terminal: everything that is known of each finding"
    )
    parser.add_argument(
        "--fail-on", choices=[severity.word for severity in Severity], default="error",
        help="exit 1 from here on (default: error)",
    )  # fmt: skip
    for option, which in (("--select", "only"), ("--ignore", "not")):
        parser.add_argument(
            option, action="extend", type=_codes, default=[], metavar="CODE[,CODE]",
            help=f"{which} these codes or families, in upper or lower case",
        )  # fmt: skip
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="an earlier --format json: only what is new"
    )


def _codes(text: str) -> list[str]:
    """The codes or families of an option's value; argparse refuses one that no finding can have."""
    # Not at the top: a run that selects nothing needs none of it.
    from diagnostics.output import filters

    try:
        return filters.codes(text)
    except filters.UnknownCodeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def fail_on(options: argparse.Namespace) -> Severity:
    """From which severity on the command fails."""
    return Severity[options.fail_on.upper()]


def filtered(report: Report, options: argparse.Namespace) -> Report:
    """The report with the findings that `--select`, `--ignore` and `--baseline` leave.

    Raises:
        BaselineError: The baseline is no report of this command.
    """
    from diagnostics.output import filters

    report = filters.select(report, options.select, options.ignore)
    return report if options.baseline is None else filters.without_known(report, options.baseline)


def write(report: Report, options: argparse.Namespace) -> None:
    """Writes a report to standard output, cleaned; a format is loaded only where it is asked for."""
    form = options.format
    report = clean.own(report)
    if form != "terminal":
        report = clean.shareable(report, places=form not in {"github", "sarif"})
    if form == "terminal":
        name = "triage" if report.tool == "triage" else "terminal"
        import_module(f"diagnostics.output.formats.{name}").render(
            report, sys.stdout, verbose=options.verbose
        )
    elif form == "junit":
        from diagnostics.output.formats import junit

        print(junit.render(report, fail_on(options)))
    else:
        module = {"json": "json_report"}.get(form, form)
        text: str = import_module(f"diagnostics.output.formats.{module}").render(report)
        # The one format whose lines are meant for a CI runner; what stands in them is escaped there.
        (door.write_commands if form == "github" else print)(text)
