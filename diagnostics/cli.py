"""Define the command line `grpo-doctor`: its commands, their help, sanitized output, exit codes and error messages.

COMMANDS are imported when they are used. PROGRAMS (`repro`, `matrix`, `train`) run another package in this process and
return its exit code. Their output is not sanitized here. `matrix` without arguments runs `versions`. `main` runs the
command line, `run_command` a single command. Modules of commands use `Command` and `seconds_option`.

Exit codes: 0 nothing to report, 1 findings, 2 wrong usage or a fault of the tool, 3 incomplete, 130 interrupted. An
error is printed on standard error without its traceback, which GRPO_DOCTOR_DEBUG=1 adds.
"""

import contextlib
import errno
import importlib
import importlib.util
import io
import math
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import click

from diagnostics import UserError, called_as, version
from diagnostics.cpu_limit import CpuLimitError
from diagnostics.findings import INCOMPLETE, INTERRUPTED, USAGE
from diagnostics.memory_limit import limit_memory
from diagnostics.missing_packages import install_hint
from diagnostics.output import sanitize
from diagnostics.output.redact import forget_secrets, mask, truncate

PROGRAM = "grpo-doctor"
_HELP_OPTIONS = ["-h", "--help"]
DEBUG = "GRPO_DOCTOR_DEBUG"
EXIT_CODES = {
    0: "nothing to report", 1: "findings", 2: "wrong usage, or a fault of the tool",
    3: "incomplete: some input could not be checked",
}  # fmt: skip
# Commands of this package: the module that defines the `command`, one line of help.
COMMANDS = {
    "doctor": ("diagnostics.doctor.command", "Check an environment and its machine by reading files."),
    "lint": ("diagnostics.lint.command", "Check a config, script or command before it starts."),
    "triage": ("diagnostics.triage.command", "Find the known issue behind the logs of a failed run."),
    "hang": ("diagnostics.hang.command", "Find the process that blocks a hung job."),
    "audit": (
        "diagnostics.audit.command",
        "Detect silent faults in a rollout server or in a run's recorded data.",
    ),
    "versions": ("diagnostics.commands.versions", "Show which package versions work together."),
    "explain": ("diagnostics.commands.explain", "Explain a code, a log line or an error in words."),
    "catalog": ("diagnostics.commands.catalog", "List all codes, or check the entries behind them."),
}
ALIASES = {"catalogue": "catalog"}
# Commands that run another program: its module, arguments before the user's, one line of help.
PROGRAMS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "repro": ("repro", (), "Reproduce known issues on the installed packages."),
    "matrix": ("diagnostics.matrix", (), "Run the compatibility matrix (needs a checkout)."),
    "train": ("grpo_core", ("train",), "Run the reference trainer (needs the extra 'train')."),
}
SITUATIONS = (
    ("the log of a failed run", "triage run.log"),
    ("a script or config", "lint train.sh"),
    ("an environment", "doctor --prefix ENV"),
    ("a hung job", "hang"),
    ("a run that learns nothing", "audit RUN"),
    ("versions to choose", "versions"),
    ("a code or an error message", "explain SCH001"),
)


class Seconds(click.FloatRange):
    """Seconds of an option: at most a million, above 0 unless `zero` allows 0."""

    def __init__(self, *, zero: bool = False) -> None:
        super().__init__(min=0, max=1e6, min_open=not zero)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse NaN, too, which compares false with both bounds."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("nan is not a number of seconds", param, ctx)
        return number


def seconds_option(*names: str, default: float, help: str) -> Callable[..., Any]:  # noqa: A002 - as click's
    """Return a click option for a number of seconds, whose help shows the default."""
    return click.option(
        *names, type=Seconds(), default=default, show_default=True, metavar="SECONDS", help=help
    )


class Command(click.Command):
    """A command whose help ends with examples and exit codes.

    Args:
        examples: Pairs of a command line without the program, and its purpose.
        exit_codes: Meanings that differ from those in EXIT_CODES; None for a code that never occurs.
    """

    def __init__(
        self,
        *args: Any,
        examples: Sequence[tuple[str, str]] = (),
        exit_codes: dict[int, str | None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._examples, self._exit_codes = tuple(examples), {**EXIT_CODES, **(exit_codes or {})}

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write examples and exit codes."""
        del ctx
        if self._examples:
            with formatter.section("Examples"):
                formatter.write_dl([(f"{called_as()} {line}", about) for line, about in self._examples])
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), about) for code, about in self._exit_codes.items() if about])


class _Application(click.Group):
    """The group of all commands; it imports the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return [*COMMANDS, *PROGRAMS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        name = ALIASES.get(cmd_name, cmd_name)
        if name in PROGRAMS:
            return _ProgramCommand(name, help=PROGRAMS[name][2])
        return load_command(name) if name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their help, without importing them."""
        del ctx
        helps = [(name, text) for name, (_, text) in COMMANDS.items()]
        with formatter.section("Commands"):
            formatter.write_dl(helps + [(name, text) for name, (_, _, text) in PROGRAMS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command; without arguments `matrix` shows the published table."""
        return super().resolve_command(ctx, ["versions"] if args == ["matrix"] else args)


def load_command(name: str) -> click.Command:
    """Import a command's module and return the command."""
    command: click.Command = importlib.import_module(COMMANDS[name][0]).command
    return command


class _ProgramCommand(click.Command):
    """A command of another program, which parses all arguments and prints on the original streams, unsanitized."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, add_help_option=False, **options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Pass all arguments through without parsing."""
        ctx.args = list(args)
        return ctx.args

    def invoke(self, ctx: click.Context) -> int:
        """Run the command's module and return its exit code; UserError if the package is not installed."""
        module, before, _ = PROGRAMS[str(self.name)]
        if importlib.util.find_spec(module) is None:
            raise UserError(f"{self.name} needs a checkout of the project; there: nox -s {self.name}")
        sys.argv = [module, *before, *ctx.args]
        sys.stdout, sys.stderr = map(sanitize.unwrap, (sys.stdout, sys.stderr))
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr)
                return USAGE
            return ended.code or 0
        return 0


@click.group(
    cls=_Application, invoke_without_command=True, context_settings={"help_option_names": _HELP_OPTIONS}
)
@click.version_option(version(), prog_name=PROGRAM, message="%(prog)s %(version)s")
@click.pass_context
def app(ctx: click.Context) -> int | None:
    """Diagnose GRPO runs on vLLM."""
    if ctx.invoked_subcommand is not None:
        if ctx.invoked_subcommand not in PROGRAMS:
            ctx.with_resource(limit_memory())
        return None
    width = max(len(have) for have, _ in SITUATIONS)
    rows = [f"  {have:<{width}}  {called_as()} {run}" for have, run in SITUATIONS]
    print("\n".join(["What do you have?", *rows, f"All commands: {called_as()} --help"]), file=sys.stderr)
    return USAGE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; characters that a stream cannot encode are escaped."""
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BytesIO())  # None if closed before we started
    for stream in (sys.stdout, sys.stderr):
        # A terminal without UTF-8 shows ✔ as \\u2714.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return run_command(app, arguments, called_as())


def run_command(command: click.Command, arguments: Sequence[str] | None, program: str) -> int:
    """Run a command with sanitized output and masked secrets, print its error if it fails, and return the exit code."""
    words = None if arguments is None else list(arguments)
    forget_secrets()
    with sanitize.sanitize_stdio(mask):
        with contextlib.suppress(MemoryError):
            try:
                code = command.main(words, prog_name=program, standalone_mode=False)
                return code if isinstance(code, int) else 0
            except (KeyboardInterrupt, click.Abort):
                return INTERRUPTED
            except click.ClickException as error:
                error.show()
                return USAGE
            except CpuLimitError as error:
                print(f"{PROGRAM}: not checked: {error}", file=sys.stderr)
                return INCOMPLETE
            except Exception as error:  # noqa: BLE001 - the one handler for unexpected errors
                # Python's `re` raises SystemError if memory is short, the system an OSError.
                if isinstance(error, MemoryError | SystemError) or getattr(error, "errno", 0) == errno.ENOMEM:
                    raise MemoryError from None
                return report_error(error)
        # The error, which held the memory of the failed work, is gone. Masking would need memory for its patterns.
        reason = "three quarters of the memory that was available are not enough"
        print(f"{PROGRAM}: not checked: {reason}", file=sanitize.unwrap(sys.stderr))
        return INCOMPLETE


def report_error(error: BaseException) -> int:
    """Print an error that is no usage error, and return exit code 2."""
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    if isinstance(error, UserError | CpuLimitError):
        line = str(error)  # standard error masks it, then escapes it
    elif isinstance(error, ModuleNotFoundError) and (hint := install_hint(error)):
        line = hint
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
        line = f"{error.strerror}: the output is incomplete"
    elif isinstance(error, OSError) and error.filename:
        line = f"{error.filename}: {error.strerror}"
    else:
        text = truncate(" ".join(f"{type(error).__name__}: {error}".split()), 400)
        line = f"internal error, please report it: {text} ({DEBUG}=1 shows where)"
    print(f"{PROGRAM}: {line}", file=sys.stderr)
    return USAGE
