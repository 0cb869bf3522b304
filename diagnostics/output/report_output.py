"""Define the options shared by commands that report findings; filter a report and write it in the chosen format.

A report is masked for the terminal, and redacted for the other formats.
How a command uses this module:

    @click.command(cls=Command, examples=..., exit_codes=...)
    @click.argument("files", nargs=-1)
    @report_options
    def command(files, output):
        return write_report(check(files), output)
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from diagnostics.findings import Report, Severity
from diagnostics.output import finding_filters, sanitize, text_filters

FORMATS = {
    "terminal": "terminal:render", "json": "json_output:render", "jsonl": "json_output:render_lines",
    "sarif": "sarif:render", "junit": "junit:render", "github": "github:render", "markdown": "markdown:render",
}  # fmt: skip
"""Output formats and the function of each, imported on use."""
# Formats with a field for a file, which they fill with a redacted path themselves.
_WITH_FILE_FIELD = {"github", "sarif"}


@dataclass(frozen=True)
class ReportOptions:
    """Values of the shared options."""

    format: str = "terminal"
    verbose: bool = False
    fail_on: Severity = Severity.ERROR
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    baseline: Path | None = None


class CodesType(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """Codes or families, separated by commas."""

    name = "CODE[,CODE]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the option's text to a list of codes; any other value is returned as it is."""
        try:
            return finding_filters.parse_codes(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def report_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options; the command receives them as `output: ReportOptions`."""

    @wraps(function)
    def wrapper(**values: Any) -> Any:
        chosen = {field.name: values.pop(field.name) for field in fields(ReportOptions)}
        chosen["fail_on"] = Severity[chosen["fail_on"].upper()]
        for name in ("select", "ignore"):
            chosen[name] = tuple(code for codes in chosen[name] for code in codes)
        return function(output=ReportOptions(**chosen), **values)

    options = (
        click.option("--format", type=click.Choice(list(FORMATS)), default="terminal", help="Output format."),
        click.option("--verbose", is_flag=True, help="Print all details of each finding."),
        click.option(
            "--fail-on", type=click.Choice([item.word for item in Severity]), default="error", show_default=True,
            help="Lowest severity that gives exit code 1.",
        ),
        click.option("--select", type=CodesType(), multiple=True, help="Report only these codes or families."),
        click.option("--ignore", type=CodesType(), multiple=True, help="Do not report these codes or families."),
        click.option(
            "--baseline", type=click.Path(path_type=Path), metavar="FILE",
            help="Report only findings that are not in this earlier report (--format json).",
        ),
    )  # fmt: skip
    for option in reversed(options):
        wrapper = option(wrapper)
    return wrapper


def filter_report(report: Report, options: ReportOptions) -> Report:
    """Keep the findings that --select, --ignore and --baseline let through."""
    report = finding_filters.select(report, options.select, options.ignore)
    if options.baseline is None:
        return report
    return finding_filters.without_baseline_findings(report, options.baseline)


def write_report(report: Report, options: ReportOptions) -> int:
    """Filter a report, write it to standard output, and return the exit code for the findings that remain."""
    report = filter_report(report, options)
    print_report(report, options)
    return report.exit_code(options.fail_on)


def print_report(report: Report, options: ReportOptions) -> None:
    """Write a report to standard output: masked for the terminal, redacted for all other formats."""
    form = options.format
    module, _, name = FORMATS[form].partition(":")
    render = getattr(import_module(f"diagnostics.output.{module}"), name)
    if form == "terminal":
        render(text_filters.mask_for_screen(report), verbose=options.verbose)
        return
    report = text_filters.redact_for_sharing(report, locations=form not in _WITH_FILE_FIELD)
    text = render(report, options.fail_on) if form == "junit" else render(report)
    (sanitize.write_ci_commands if form == "github" else print)(text)
