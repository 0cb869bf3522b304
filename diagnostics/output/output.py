"""Old, argparse form of `diagnostics.output.report_output`; to be removed."""

from __future__ import annotations

import argparse
from pathlib import Path

from diagnostics.findings import Report, Severity
from diagnostics.output import filters, report_output

FORMATS = tuple(report_output.FORMATS)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the shared options."""
    parser.add_argument("--format", choices=FORMATS, default="terminal")
    parser.add_argument("--verbose", action="store_true", help="print everything known of each finding")
    parser.add_argument(
        "--fail-on", choices=[each.word for each in Severity], default="error",
        help="lowest severity that exits with 1 (default: error)",
    )  # fmt: skip
    for option, which in (("--select", "report only"), ("--ignore", "do not report")):
        parser.add_argument(
            option, action="extend", type=_codes, default=[], metavar="CODE[,CODE]",
            help=f"{which} these codes or families",
        )  # fmt: skip
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="an earlier --format json: report only what is new"
    )


def _codes(text: str) -> list[str]:
    try:
        return filters.parse_codes(text)
    except filters.UnknownCodeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def fail_on(options: argparse.Namespace) -> Severity:
    """Return the severity at which the command fails."""
    return Severity[options.fail_on.upper()]


def _typed(options: argparse.Namespace) -> report_output.ReportOptions:
    return report_output.ReportOptions(
        options.format,
        options.verbose,
        fail_on(options),
        tuple(options.select),
        tuple(options.ignore),
        options.baseline,
    )


def filtered(report: Report, options: argparse.Namespace) -> Report:
    """Return the report with the findings that the filters leave."""
    return report_output.filter_report(report, _typed(options))


def write(report: Report, options: argparse.Namespace) -> None:
    """Write a report to standard output."""
    report_output.print_report(report, _typed(options))
