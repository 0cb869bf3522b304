"""The command `lint`: its options, and what it prints."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.findings import FINE, INCOMPLETE, USAGE, Severity

if TYPE_CHECKING:
    import argparse

    from diagnostics.findings import Report

FORMATS = ("terminal", "json", "jsonl", "sarif", "junit", "github", "markdown")
_FRAMEWORKS = ("trl", "ms-swift", "verl", "easyr1", "openrlhf", "vllm", "own")
_RELEASES = ("vllm", "trl", "ms-swift", "verl", "openrlhf")


def add(commands: Any) -> None:
    """Adds the command to a parser's commands."""
    lint: argparse.ArgumentParser = commands.add_parser(
        "lint",
        help="judge a config, a script or a command before anything is started",
        usage="%(prog)s [options] FILE...  |  %(prog)s [options] -- COMMAND...",
    )
    lint.add_argument("files", nargs="*", metavar="FILE", help="YAML, JSON, TOML, Python or shell")
    lint.add_argument("--framework", choices=_FRAMEWORKS, default="", help="of a file that does not show it")
    for name in _RELEASES:
        lint.add_argument(f"--{name}", metavar="VERSION", help=f"judge for this {name} (default: installed)")
    lint.add_argument("--format", choices=FORMATS, default="terminal")
    lint.add_argument(
        "--fail-on", choices=[severity.word for severity in Severity], default="error",
        help="exit 1 from here on (default: error)",
    )  # fmt: skip
    lint.add_argument(
        "--select", action="append", default=[], metavar="CODE", help="only these codes or families"
    )
    lint.add_argument(
        "--ignore", action="append", default=[], metavar="CODE", help="not these codes or families"
    )
    lint.add_argument(
        "--baseline", type=Path, metavar="FILE", help="an earlier --format json: only what is new"
    )
    lint.set_defaults(command=_lint)


def _lint(options: argparse.Namespace) -> int:
    from diagnostics import filters
    from diagnostics.lint import judge, versions

    files, command = _split(options.files)
    if not files and not command:
        print("diagnostics: lint: expected a FILE, or `--` and a command", file=sys.stderr)
        return USAGE
    missing = next((path for path in files if not path.is_file()), None)
    if missing is not None:
        print(f"diagnostics: lint: {missing}: no such file", file=sys.stderr)
        return USAGE
    given = {name: getattr(options, name.replace("-", "_")) for name in _RELEASES}
    try:
        releases = versions.collect(given)
    except versions.VersionError as error:
        print(f"diagnostics: lint: {error}", file=sys.stderr)
        return USAGE
    report = judge.lint(files, releases, framework=options.framework, command=command)
    report = filters.select(report, options.select, options.ignore)
    if options.baseline is not None:
        try:
            report = filters.without_known(report, options.baseline)
        except filters.BaselineError as error:
            print(f"diagnostics: lint: {error}", file=sys.stderr)
            return USAGE
    _print(report, options.format, Severity[options.fail_on.upper()])
    code = report.exit_code(Severity[options.fail_on.upper()])
    # A file in which nothing was found to judge is not a file that is fine.
    unread = any(check.check.startswith("reading ") for check in report.checks)
    return INCOMPLETE if code == FINE and unread else code


def _print(report: Report, form: str, fail_on: Severity) -> None:
    """Writes a report to standard output; a format is loaded only where it is asked for."""
    if form == "terminal":
        from diagnostics.render import terminal

        terminal.render(report, sys.stdout)
    elif form == "junit":
        from diagnostics.render import junit

        print(junit.render(report, fail_on))
    else:
        module = {"json": "json_report"}.get(form, form)
        text: str = import_module(f"diagnostics.render.{module}").render(report)
        print(text)


def _split(words: list[str]) -> tuple[list[Path], list[str]]:
    """Tells files from a command that follows `--`: argparse has taken the dashes away by then."""
    try:
        dashes = sys.argv.index("--")
    except ValueError:
        return [Path(word) for word in words], []
    command = sys.argv[dashes + 1 :]
    return [Path(word) for word in words[: len(words) - len(command)]], command
