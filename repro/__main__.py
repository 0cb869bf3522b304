"""`python -m repro`: reproduce known issues on the installed packages, test mitigations, and fuzz a scheduler.

The commands are `list`, `run`, `imports` and `fuzz`. The result goes to standard output, as text or JSON, with control
characters escaped. Progress, errors and all output of libraries go to standard error. Secrets are masked if
`diagnostics` can be imported; in a cell it cannot, and the matrix masks them.
"""

import sys

# The version is checked before imports that fail on an older Python with another message.
if tuple(sys.version_info) < (3, 10):
    sys.exit(print(f"repro: needs Python 3.10 or newer; this is {sys.executable}", file=sys.stderr) or 2)

import argparse
import contextlib
import difflib
import importlib
import json
import math
import os
import platform
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo_core.console_text import escape
from repro import render, runner, upstream
from repro.drivers import imports
from repro.fuzz import search, stories
from repro.registry import AttemptOutcome, Repro
from repro.render import Repros, Results

FINE, FINDINGS, USAGE, UNFINISHED, INTERRUPTED = 0, 1, 2, 3, 130
_EXIT_CODES = """exit codes:
  0 everything went as recorded; nothing fails
  1 a result differs from the recorded one, repetitions disagree, upstream's files are modified, or a failure was found
  2 wrong usage, or a fault of the program
  3 incomplete: a repro or an import gave no result, and nothing above applies"""


class UsageError(Exception):
    """Raised for a command line that cannot be carried out; the message says how to correct it."""


def main(arguments: Sequence[str] | None = None, *, registry: str = "repro.issues") -> int:
    """Run a command, write its result to standard output, and return the exit code.

    Args:
        arguments: Arguments of the command line; None for those of this process.
        registry: Name of the module that has the repros by code in `REPROS`.
    """
    options = _parser().parse_args(arguments)
    # Standard output is for the result alone; libraries that print there write to standard error.
    sys.stdout.flush()
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            text, code = options.command(options, importlib.import_module(registry).REPROS)
    except (UsageError, search.SearchError, stories.StoryError) as error:
        render.print_to_stderr(f"repro: {error}")
        return USAGE
    except KeyboardInterrupt:
        print("repro: interrupted; the processes it started are gone", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - faults of the program itself
        if os.environ.get("GRPO_DOCTOR_DEBUG"):
            render.print_to_stderr(traceback.format_exc())
        message = render.without_secrets(f"{type(error).__name__}: {error}", shared=False)
        message = " ".join(message.split())[:400]
        render.print_to_stderr(f"repro: fault of its own: {message} (GRPO_DOCTOR_DEBUG=1 shows where)")
        return USAGE
    # The reader may be gone: `| head -1`.
    with contextlib.suppress(BrokenPipeError), os.fdopen(answer, "w", encoding="utf-8") as out:
        out.write(escape(render.without_secrets(text, shared=options.json)) + "\n")
    return int(code)


class _Parser(argparse.ArgumentParser):
    """Parser that escapes control characters in its messages."""

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(escape(message), file)


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = _Parser(prog="python -m repro", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[..., tuple[str, int]], summary: str) -> Callable[..., Any]:
        """Add a command; return the `add_argument` of its parser."""
        built = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=_EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        built.set_defaults(command=command)
        built.add_argument("--json", action="store_true", help="one JSON document on standard output")
        return built.add_argument

    add("list", _list, "list the failures; --json adds triggers, mitigations, and what each one helps with")
    option = add("run", _run, "reproduce failures in this environment, without and with each mitigation")
    option("codes", nargs="+", metavar="CODE", help="a code that `list` prints")
    option("--trigger", default="all", metavar="NAME", help="one trigger, or all (default)")
    option("--mitigation", default="all", metavar="NAME", help="one mitigation, none, or all (default)")
    option("--times", type=int, default=1, metavar="N", help="repetitions of each attempt (default: 1)")
    limit = "time limit of one attempt in seconds (default: 60)"
    option("--timeout", type=float, default=60.0, metavar="S", help=limit)
    option("--verbose", action="store_true", help="print each attempt, and what is simulated")
    option = add("imports", _imports, "import each module in a separate process, and report failed imports")
    option("modules", nargs="+", metavar="MODULE")
    limit = "time limit of one import in seconds (default: 240)"
    option("--timeout", type=float, default=240.0, metavar="S", help=limit)
    option = add("fuzz", _fuzz, "search for call sequences that make a scheduler fail, or replay a saved one")
    option("--engine", choices=("v1",), help="engine whose scheduler is tested")
    option("--seeds", type=int, default=1, metavar="N", help="number of searches (default: 1)")
    limit = "CPU seconds of each search (default: 60)"
    option("--seconds", type=float, default=60.0, metavar="S", help=limit)
    option("--save", type=Path, metavar="DIR", help="save each failing sequence in this folder")
    option("--replay", type=Path, metavar="FILE", help="replay a saved sequence; does not need Hypothesis")
    return parser


def _list(options: argparse.Namespace, repros: Repros) -> tuple[str, int]:
    """Return the list of repros, and exit code 0."""
    if options.json:
        return _json(render.list_document(repros)), FINE
    return "\n".join(f"{code}  {repro.title}" for code, repro in repros.items()), FINE


def _run(options: argparse.Namespace, repros: Repros) -> tuple[str, int]:
    """Run the attempts, and return their report and the exit code."""
    if options.times < 1:
        raise UsageError(f"--times {options.times}: expected at least 1")
    comparison, plans = _plans(options, repros)
    results = runner.run(repros, plans, limit_s=options.timeout, report_line=render.print_to_stderr)
    if options.json:
        text = _json(render.run_document(repros, results, comparison))
    else:
        text = "\n".join(render.report_lines(repros, results, comparison, verbose=options.verbose))
    return text, exit_code(results, comparison)


def _plans(options: argparse.Namespace, repros: Repros) -> tuple[upstream.WheelComparison, dict[str, Any]]:
    """Return the comparison of upstream's files with their wheel, and the attempts to run for each code.

    Raises:
        UsageError: An option is invalid, or none of the required distributions is installed.
    """
    _check_seconds(options.timeout)
    codes = [_pick("code", code, list(repros)) for code in dict.fromkeys(options.codes)]
    plans = {code: _plan(repros[code], options.trigger, options.mitigation) * options.times for code in codes}
    needed = tuple(dict.fromkeys(name for code in codes for name in repros[code].distributions))
    if not needed:  # nothing of upstream's is compared
        return upstream.WheelComparison("Python", platform.python_version(), 0, ()), plans
    distribution = upstream.first_installed(needed)
    if distribution is None:
        raise UsageError(
            f"{' or '.join(needed)} is needed for {', '.join(codes)}, and {sys.executable} does not have it: "
            "run it with the Python of a cell"
        )
    return upstream.compare_with_wheel(distribution), plans


def _plan(repro: Repro, trigger: str, mitigation: str) -> list[tuple[str, str | None]]:
    """Return the pairs (trigger, mitigation) to try; each trigger is also tried without a mitigation, to compare."""
    triggers = [item.name for item in repro.triggers]
    if trigger != "all":
        triggers = [_pick(f"trigger of {repro.code}", trigger, triggers)]
    names = [item.name for item in repro.mitigations]
    if mitigation not in {"all", "none"}:
        names = [_pick(f"mitigation of {repro.code}", mitigation, names)]
    tried: list[str | None] = [None, *(names if mitigation != "none" else [])]
    return [(name, item) for name in triggers for item in tried]


def exit_code(results: Results, comparison: upstream.WheelComparison) -> int:
    """Return 1 if files are modified, or outcomes vary or differ from the record; 3 for an error or timeout; else 0."""
    attempts = [attempt for of_code in results.values() for attempt in of_code]
    if comparison.modified or any(attempt.as_recorded is False for attempt in attempts):
        return FINDINGS
    if any(map(render.count_varying, results.values())):
        return FINDINGS
    incomplete = {AttemptOutcome.ERROR, AttemptOutcome.TIMEOUT}
    return UNFINISHED if any(attempt.outcome in incomplete for attempt in attempts) else FINE


def _imports(options: argparse.Namespace, _repros: Repros) -> tuple[str, int]:
    """Import the modules, and return the results and the exit code."""
    _check_seconds(options.timeout)
    results = {module: imports.try_import(module, options.timeout) for module in options.modules}
    timed_out = [result["timed_out"] for result in results.values() if not result["ok"]]
    code = FINE if not timed_out else UNFINISHED if all(timed_out) else FINDINGS
    if options.json:
        return _json({"schema": imports.SCHEMA, "modules": results}), code
    return "\n".join(imports.describe_import(module, result) for module, result in results.items()), code


def _replay(options: argparse.Namespace) -> tuple[str, int]:
    """Replay a saved story (calls of a scheduler); return its lines, and exit code 0 if it ends as saved, else 1."""
    story = stories.load(options.replay)
    if story.engine != "v1":
        raise UsageError(f"{options.replay} is a story of the engine {story.engine!r}; v1 is supported")
    lines, same = search.play_lines(search.load_actions(), story)
    text = "\n".join([*lines, "it ends as it was saved" if same else "it does not end as it was saved"])
    if options.json:
        result = {"schema": search.REPLAY_SCHEMA, "versions": upstream.versions()}
        text = _json({**result, "lines": lines, "as_saved": same})
    return text, FINE if same else FINDINGS


def _fuzz(options: argparse.Namespace, _repros: Repros) -> tuple[str, int]:
    """Run the searches, with --save keep failing sequences, or replay one; return the report and the exit code."""
    if options.replay:
        return _replay(options)
    if options.engine is None:
        raise UsageError("fuzz needs --engine v1, or --replay FILE")
    if options.seeds < 1:
        raise UsageError(f"--seeds {options.seeds}: expected at least 1")
    _check_seconds(options.seconds, "--seconds")
    search.check_needs()
    results = []
    for seed in range(options.seeds):
        results.append(search.search_isolated(seed, options.seconds))
        render.print_to_stderr(search.finding_lines(results[-1])[-1])
    if options.save:
        for path in search.save_stories(results, options.save):
            render.print_to_stderr(f"saved {path}")
    code = FINDINGS if any(result["found"] for result in results) else FINE
    if options.json:
        return _json(search.search_document(results)), code
    return "\n".join(search.describe_search(results)), code


def _pick(kind: str, name: str, known: Sequence[str]) -> str:
    """Return a known name, also for a code in lower case; raise UsageError with similar names for any other."""
    if name in known:
        return name
    if name.upper() in known:  # users may type codes in lower case
        return name.upper()
    close = difflib.get_close_matches(name.upper() if kind == "code" else name, known, n=2, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"expected one of {', '.join(known)}"
    raise UsageError(f"unknown {kind} {name!r}: {hint}")


def _check_seconds(seconds: float, option: str = "--timeout") -> None:
    if not 0 < seconds < math.inf:
        raise UsageError(f"{option} {seconds:g}: expected seconds above zero")


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1)


if __name__ == "__main__":
    sys.exit(main())
