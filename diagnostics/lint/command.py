"""The command `lint`: its options, and what it prints."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.frameworks import CONFIGURED, FRAMEWORKS
from diagnostics.output import clean, output
from diagnostics.output.findings import FINE, INCOMPLETE, USAGE
from diagnostics.uncollected import uncollected

if TYPE_CHECKING:
    import argparse

# Those with releases; what is in no registry has none.
_RELEASES = tuple(each.name for each in FRAMEWORKS.values() if each.packages)


def add(commands: Any) -> None:
    """Adds the command to a parser's commands."""
    lint: argparse.ArgumentParser = commands.add_parser(
        "lint",
        help="judge a config, script or command before it is started",
        usage="%(prog)s [options] FILE...  |  %(prog)s [options] -- COMMAND...",
    )
    lint.add_argument(
        "files", nargs="*", metavar="FILE",
        help="YAML, JSON, TOML, Python, shell, a notebook, a Dockerfile, a Makefile; a folder; - for standard input",
    )  # fmt: skip
    lint.add_argument("--framework", choices=CONFIGURED, default="", help="of a file that does not show it")
    for name in _RELEASES:
        lint.add_argument(
            f"--{name}",
            metavar="VERSION",
            help=f"judge for this {name} (default: the project's, else what is installed)",
        )
    output.add_options(lint)
    lint.set_defaults(command=_lint)


@uncollected()
def _lint(options: argparse.Namespace) -> int:
    from diagnostics.lint import judge, versions
    from diagnostics.output import filters

    files, command = _split(options.files)
    if not files and not command:
        print("diagnostics: lint: expected a FILE, or `--` and a command", file=sys.stderr)
        return USAGE
    refused = next((problem for path in files if str(path) != "-" and (problem := _unusable(path))), "")
    if refused:
        print(f"diagnostics: lint: {clean.own(refused)}", file=sys.stderr)
        return USAGE
    given = {name: getattr(options, name.replace("-", "_")) for name in _RELEASES}
    try:
        releases = versions.collect(given)
    except versions.VersionError as error:
        print(f"diagnostics: lint: {clean.own(str(error))}", file=sys.stderr)
        return USAGE
    report = judge.lint(files, releases, framework=options.framework, command=command)
    try:
        report = output.filtered(report, options)
    except filters.BaselineError as error:
        print(f"diagnostics: lint: {clean.own(str(error))}", file=sys.stderr)
        return USAGE
    output.write(report, options)
    code = report.exit_code(output.fail_on(options))
    # A file in which nothing was found to judge is not a file that is fine.
    unread = any(check.reads for check in report.checks)
    return INCOMPLETE if code == FINE and unread else code


def _unusable(path: Path) -> str:
    """Why something that was named is no file to read; empty if it is one. A pipe would be waited for without end."""
    try:
        kind = path.stat().st_mode
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return f"{path}: {'no such file' if isinstance(error, FileNotFoundError) else why}"
    return "" if stat.S_ISREG(kind) or stat.S_ISDIR(kind) else f"{path}: no regular file"


def _split(words: list[str]) -> tuple[list[Path], list[str]]:
    """Tells files from a command that follows `--`: argparse has taken the dashes away by then."""
    try:
        dashes = sys.argv.index("--")
    except ValueError:
        return [Path(word) for word in words], []
    command = sys.argv[dashes + 1 :]
    return [Path(word) for word in words[: len(words) - len(command)]], command
