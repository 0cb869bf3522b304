"""The command `lint`: check a config, script or command before it is started."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.frameworks import CONFIGURED, FRAMEWORKS
from diagnostics.lint.engine import LintRun, build_report, check_rules, make_plans, read_inputs
from diagnostics.lint.versions import VersionError, collect_versions
from diagnostics.output import clean, filters, output
from diagnostics.output.findings import FINE, INCOMPLETE, USAGE

if TYPE_CHECKING:
    import argparse

# From files to a report: each step takes the run and adds to it.
WORKFLOW = (
    read_inputs,  # files, folders and a command line to settings
    make_plans,  # settings to run plans, for the releases at hand
    check_rules,  # every rule on every plan; what could not be checked
    build_report,  # findings, identical ones merged
)

# Frameworks in a registry have releases.
_WITH_RELEASES = tuple(each.name for each in FRAMEWORKS.values() if each.packages)


def add(commands: Any) -> None:
    """Add the command to a parser's commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "lint",
        help="check a config, script or command before it is started",
        usage="%(prog)s [options] FILE...  |  %(prog)s [options] -- COMMAND...",
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE",
        help="YAML, JSON, TOML, Python, shell, a notebook, a Dockerfile, a Makefile; a folder; - for standard input",
    )  # fmt: skip
    parser.add_argument(
        "--framework", choices=CONFIGURED, default="", help="the framework of a file that does not show it"
    )
    for name in _WITH_RELEASES:
        help_text = f"check for this {name} (default: the project's, else the installed release)"
        parser.add_argument(f"--{name}", metavar="VERSION", help=help_text)
    output.add_options(parser)
    parser.set_defaults(command=run_lint)


def run_lint(options: argparse.Namespace) -> int:
    """Run the workflow on the command line's request; return the exit code."""
    files, command = _split_command(options.files)
    if not files and not command:
        return _refuse("expected a FILE, or `--` and a command")
    unusable = next((reason for path in files if str(path) != "-" and (reason := _unusable(path))), "")
    if unusable:
        return _refuse(unusable)
    try:
        versions = collect_versions({name: getattr(options, name.replace("-", "_")) for name in _WITH_RELEASES})
    except VersionError as error:
        return _refuse(str(error))
    run = LintRun(files, versions, options.framework, command)
    for step in WORKFLOW:
        step(run)
    assert run.report is not None
    try:
        report = output.filtered(run.report, options)
    except filters.BaselineError as error:
        return _refuse(str(error))
    output.write(report, options)
    code = report.exit_code(output.fail_on(options))
    # A file with nothing to check is not a file without faults.
    nothing_read = any(check.reads for check in report.checks)
    return INCOMPLETE if code == FINE and nothing_read else code


def _refuse(message: str) -> int:
    print(f"diagnostics: lint: {clean.own(message)}", file=sys.stderr)
    return USAGE


def _unusable(path: Path) -> str:
    """Return why a path is no file or folder to read; empty if it is one. Reading a pipe would block."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return f"{path}: {'no such file' if isinstance(error, FileNotFoundError) else why}"
    return "" if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else f"{path}: no regular file"


def _split_command(words: list[str]) -> tuple[list[Path], list[str]]:
    """Separate files from a command after `--`; argparse has already removed the dashes."""
    try:
        dashes = sys.argv.index("--")
    except ValueError:
        return [Path(word) for word in words], []
    command = sys.argv[dashes + 1 :]
    return [Path(word) for word in words[: len(words) - len(command)]], command
