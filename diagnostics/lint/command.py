"""Define the command `lint`: check a config, script or command before it is started, or compare two releases for it.

Without --from and --to, `steps.run_lint` checks the rules. With both, `migration.py` compares the two releases; --diff
prints a patch in place of the report. A file that could not be read or has nothing to check makes the exit code
3 if it would be 0.
"""

import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from diagnostics import UserError
from diagnostics.cli import Command
from diagnostics.cpu_limit import cpu_limit
from diagnostics.findings import FINE, INCOMPLETE, Finding, Report
from diagnostics.fixes import join_some
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.lint import option_index
from diagnostics.lint.migration import compare_releases, make_patch
from diagnostics.lint.steps import LintRun, run_lint
from diagnostics.lint.versions import collect_versions
from diagnostics.output import progress
from diagnostics.output.report_output import ReportOptions, filter_report, report_options, write_report

_COMPARE_S = 120.0
# Frameworks with releases: each has an option such as --trl.
_WITH_RELEASES = tuple(
    name for name, item in FRAMEWORKS.items() if item.packages or option_index.is_indexed(name)
)


def _release_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--FRAMEWORK VERSION` of each framework with releases."""
    for name in reversed(_WITH_RELEASES):
        function = click.option(f"--{name}", metavar="VERSION", help=f"Release of {name} to check for.")(
            function
        )
    return function


@click.command(
    cls=Command,
    examples=(
        ("lint train.sh", "a script, a YAML, TOML or Python file, or a notebook"),
        ("lint configs/", "all runs in a folder and its subfolders"),
        ("lint --trl 1.16.0 -- trl grpo --num_generations 8", "a command"),
        ("lint train.sh --from trl==0.17 --to trl==1.16", "what an upgrade changes for this run"),
    ),
    exit_codes={1: "findings at or above --fail-on", 3: "incomplete: an unchecked input could hide an error"},
)
@click.argument("files", nargs=-1, metavar="FILE... | -- COMMAND...")
@click.option(
    "--framework",
    type=click.Choice(tuple(FRAMEWORKS)),
    help="Framework of the run, if the file does not show it.",
)
@_release_options
@click.option("--from", "old", metavar="X==1", help="The release to migrate from; --to names the new one.")
@click.option(
    "--to", "new", metavar="X==2", help="With --from: report what the new release changes for this run."
)
@click.option(
    "--diff", is_flag=True, help="With --from and --to: print only a patch, with the edits that are certain."
)
@report_options
def command(
    files: tuple[str, ...],
    framework: str | None,
    old: str | None,
    new: str | None,
    diff: bool,
    output: ReportOptions,
    **releases: str | None,
) -> int:
    """Check a config, script or command before it is started. It is read, never run.

    Without an option such as --trl, the releases are those of the project, else the installed ones.
    """
    paths, words = _split_command(files)
    if not paths and not words:
        raise click.UsageError("expected a FILE, or `--` and a command")
    for path in paths:
        _require_file(path)
    if bool(old) != bool(new) or (diff and not old):
        raise click.UsageError("expected --from and --to together, as --from trl==0.17 --to trl==1.16")
    versions = collect_versions({name: releases[name.replace("-", "_")] for name in _WITH_RELEASES})
    run = LintRun(paths, versions, framework or "", words)
    with progress.show_spinner("lint"):
        if old and new:
            with cpu_limit("comparing the releases", _COMPARE_S):
                report, migrations = compare_releases(run, old, new)
                patch = make_patch(migrations) if diff else ""
        else:
            report = run_lint(run)
    if diff:
        sys.stdout.write(patch)
        code = filter_report(report, output).exit_code(output.fail_on)
    else:
        # The filters compare the settings as JSON reports have them.
        code = write_report(_with_messages_first(filter_report(report, output), output), output)
    # If a file could not be read or has nothing to check, the report is incomplete.
    has_unread = any(check.reads for check in report.checks)
    return INCOMPLETE if code == FINE and has_unread else code


def _with_messages_first(report: Report, output: ReportOptions) -> Report:
    """In the short terminal report, show the first sentence of the detail as title, and the settings in one line."""
    if output.format != "terminal" or output.verbose:
        return report

    def with_message(finding: Finding) -> Finding:
        title = finding.detail.split(". ")[0].rstrip(".")
        texts = [*dict.fromkeys(item.text for item in finding.evidence)]
        first = finding.evidence[: 1 if len(texts) > 1 else None]
        settings = tuple(replace(item, text=join_some(texts, 4, "; ")) for item in first)
        return replace(finding, title=f"{title}." if title else finding.title, evidence=settings)

    checks = [replace(check, findings=tuple(map(with_message, check.findings))) for check in report.checks]
    return replace(report, checks=tuple(checks))


def _require_file(path: Path) -> None:
    """Raise UserError if a path is no regular file or folder (a read of a pipe would block); `-` is standard input."""
    if str(path) == "-":
        return
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else getattr(error, "strerror", None)
        raise UserError(f"{path}: {reason or error}") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UserError(f"{path}: no regular file")


def _split_command(words: tuple[str, ...]) -> tuple[list[Path], list[str]]:
    """Separate the files from the command after `--`, which click has already removed from the words."""
    number = len(sys.argv) - sys.argv.index("--") - 1 if "--" in sys.argv else 0
    return [Path(word) for word in words[: len(words) - number]], list(words[len(words) - number :])
