"""`grpo-doctor`, or `python -m diagnostics`: each command by its name, loaded where it is asked for."""

from __future__ import annotations

import sys

# `-m` puts the working folder first, where a user's random.py or logging.py would be imported for Python's own.
if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    sys.path[:1] = [folder for folder in sys.path[:1] if __file__.startswith(f"{folder}/diagnostics/")]

from diagnostics import interrupts

if __name__ == "__main__" or sys.argv[0].endswith("grpo-doctor"):
    interrupts.untaken()

import argparse
import importlib
import os
from typing import TYPE_CHECKING, Any

from diagnostics import door, programs, version

if TYPE_CHECKING:
    from collections.abc import Sequence

FINE, USAGE, INTERRUPTED = 0, 2, 130
# The oldest Python that has what we use; an installer heeds it, a checkout is started by any.
OLDEST = (3, 11)
# Each command: the module whose `add` makes its parser, loaded where it is asked for, and its line of help.
COMMANDS = {
    "doctor": (
        "diagnostics.doctor.command",
        "judge an environment and its machine from their files",
    ),
    "lint": ("diagnostics.lint.command", "judge a config, script or command before it is started"),
    "triage": ("diagnostics.triage.options", "the known issue behind a failed run's logs"),
    "hang": ("diagnostics.hang.command", "who holds up a job that stands still, over all its processes"),
    "audit": (
        "diagnostics.audit.command",
        "the fault that nothing reports, in a server or a run's files",
    ),
    "versions": ("diagnostics.choosing", "which versions of vLLM and TRL ran together, offline"),
    "explain": ("diagnostics.explaining", "what a code means, why it happens, what helps"),
    "catalogue": ("diagnostics.listing", "the known issues"),
    "completion": ("diagnostics.completion", "a shell's completion of this program"),
}


# Those that may take longer than somebody waits without a sign of life.
_LONG = {"doctor", "lint", "triage", "hang", "audit"}


class _Formatter(argparse.HelpFormatter):
    """The usual one; left to itself it loads four modules of archives to learn how wide the terminal is."""

    def __init__(self, prog: str) -> None:
        try:
            wide = int(os.environ.get("COLUMNS", "")) or os.get_terminal_size(1).columns
        except (ValueError, OSError):
            wide = 0
        super().__init__(prog, width=(wide or 80) - 2)
        # argparse leaves a command's own indent out when it looks how long names are.
        self._action_max_length = 16


class _Command(argparse.ArgumentParser):
    """The parser of one command."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _Formatter, **options})


class _Version(argparse.Action):
    """Prints the release, which is looked up where it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """As argparse calls it."""
        print(f"{programs.NAME} {version()}")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code."""
    if sys.version_info[:2] < OLDEST:
        here, needed = (".".join(map(str, each)) for each in (sys.version_info[:2], OLDEST))
        print(
            f"diagnostics: needs Python {needed} or newer; this is {here}, {sys.executable}", file=sys.stderr
        )
        return USAGE
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["matrix"]:
        # Who asks it nothing wants to know which versions work: that needs no checkout.
        arguments = ["versions"]
    if arguments and arguments[0] in programs.PROGRAMS:
        return programs.start(arguments[0], arguments[1:])
    with door.opened():
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    """One command, its words on the way through the door."""
    if not arguments:
        from diagnostics import usage

        print(usage.situations(programs.called()), file=sys.stderr)
        return USAGE
    try:
        with interrupts.Taken():
            options = _parser(arguments).parse_args(arguments)
            code: int = _carried_out(options, arguments)
    except KeyboardInterrupt:
        print("diagnostics: interrupted", file=sys.stderr)
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the one place for what nobody foresaw
        line = _refusal(error)
        if line:
            print(f"diagnostics: {line}", file=sys.stderr)
        code = USAGE if line else programs.failed(error, "diagnostics")
    return code


def _carried_out(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Runs a command; of one that may take long, somebody says now and then that it is at work."""
    name = next((word for word in arguments if word in COMMANDS), "")
    # What these pass on is another program's, and none of ours may stand in it.
    passes_on = name == "hang" and (options.watch or options.beats)
    # And who types what is to be read is not to be drawn over.
    typed = "-" in arguments and sys.stdin is not None and sys.stdin.isatty()
    if name not in _LONG or passes_on or typed:
        return int(options.command(options))
    from diagnostics.output import pulse

    with pulse.beating(name):
        return int(options.command(options))


def _refusal(error: Exception) -> str:
    """What was given and can't be used, in words for the user; empty for any other error."""
    # Late: what an answer without a refusal needs none of.
    from diagnostics.catalog.loader import CatalogueError
    from diagnostics.collect.names import NoEnvironmentError
    from diagnostics.collect.secrets import mask
    from diagnostics.output.filters import BaselineError

    if not isinstance(error, (BaselineError, CatalogueError, NoEnvironmentError)):
        return ""
    # An entry's problems are a line each; a file's name is one, whatever stands in it.
    shown = door.visible if isinstance(error, CatalogueError) else door.line
    return shown(mask(str(error)))


def _parser(arguments: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser of all commands; given arguments, those that they don't name are there by their names alone."""
    program = programs.called()
    parser = argparse.ArgumentParser(
        prog=program, description="Diagnosis of GRPO runs on vLLM.", formatter_class=_Formatter
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="the installed release")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Command)
    asked = None if arguments is None else next((word for word in arguments if word in COMMANDS), "")
    for name, (module, text) in COMMANDS.items():
        if asked not in {None, name}:
            commands.add_parser(name, help=text, add_help=False)
            continue
        importlib.import_module(module).add(commands)
        if arguments is None or {"-h", "--help"} & set(arguments):
            from diagnostics import usage

            usage.put(commands.choices[name], name, program)
    for name, (_module, _before, text) in programs.PROGRAMS.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


if __name__ == "__main__":
    sys.exit(main())
