"""`python -m repro`: makes known failures happen on the code that is installed, and tries each mitigation."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

from repro.base import Attempt, Repro

# Until `main` takes it, Ctrl-C ends the process as the signal does: out of an import nobody needs a traceback.
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import sys

# Asked before anything that an older one refuses in words of its own.
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
import shutil
import time
import traceback
from pathlib import Path
from typing import Any

from repro import render, repeat, runner, upstream, usage, waiting
from repro.base import INCOMPLETE
from repro.drivers import imports

FINE, FINDINGS, USAGE, UNFINISHED, INTERRUPTED = 0, 1, 2, 3, 130


class UsageError(Exception):
    """Raised when a command can't be carried out as it was given; the text says what would do."""


def main(arguments: Sequence[str] | None = None, *, registry: str = "repro.issues") -> int:
    """Runs a command and writes its answer to standard output.

    Args:
        arguments: of the command line; those of this process if None.
        registry: module with the repros by code.

    Returns:
        0: everything went as recorded. 1: something did not, or upstream's files are modified. 2: wrong usage.
        3: something gave no answer, and nothing worse. 130: interrupted.
    """
    options = _parser().parse_args(arguments)
    # Before standard output is kept: whoever looks at the answer looks at that.
    options.width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    answer = _keep_stdout()
    try:
        with _interruptible(), waiting.waits():
            repros: Mapping[str, Repro] = importlib.import_module(registry).REPROS
            text, code = options.command(options, repros, registry)
    except UsageError as error:
        _say(f"repro: {error}")
        return USAGE
    except KeyboardInterrupt:
        print("repro: interrupted; the processes it started are gone", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the one place for what nobody foresaw: nobody's finding
        if os.environ.get("GRPO_DOCTOR_DEBUG"):
            traceback.print_exception(error)
        said = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        _say(f"repro: failed, which is a fault of its own: {said} (GRPO_DOCTOR_DEBUG=1 shows where)")
        return USAGE
    # Whoever read it may be gone: `| head -1`.
    with contextlib.suppress(BrokenPipeError), os.fdopen(answer, "w", encoding="utf-8") as out:
        out.write(render.visible(text) + "\n")
    return int(code)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """In it Ctrl-C is KeyboardInterrupt; after it, as before, it ends the process as the signal does."""
    untaken = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    if untaken:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if untaken:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


class _Parser(argparse.ArgumentParser):
    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(render.visible(message), file)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m repro", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="the failures, their triggers and mitigations")
    listing.set_defaults(command=_list)
    run = commands.add_parser("run", help="make failures happen in this environment")
    run.set_defaults(command=_run)
    again = commands.add_parser(
        "repeat", help="the same many times over: does the same come of it each time?"
    )
    again.set_defaults(command=_repeat)
    again.add_argument("--times", type=int, default=50, metavar="N", help="of each attempt (default: 50)")
    for attempts in (run, again):
        _attempts_arguments(attempts)
    imported = commands.add_parser("imports", help="import modules, each in a process of its own")
    imported.set_defaults(command=_imports)
    imported.add_argument("modules", nargs="+", metavar="MODULE")
    imported.add_argument(
        "--timeout", type=float, default=240.0, metavar="S", help="seconds for one (default: 240)"
    )
    for short, what in (
        (listing, "triggers and mitigations, too"),
        (run, "each attempt, and what is simulated"),
    ):
        short.add_argument("--verbose", action="store_true", help=what)
    searched = _fuzz_parser(commands)
    for command in (listing, run, again, imported, searched):
        command.add_argument("--json", action="store_true", help="one JSON document on standard output")
    for name, command in commands.choices.items():
        usage.put(command, name, parser.prog)
    return parser


def _attempts_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what says which attempts are to be made."""
    parser.add_argument("codes", nargs="+", metavar="CODE", help="as `list` names them")
    parser.add_argument("--trigger", default="all", metavar="NAME", help="one trigger, or all (default)")
    parser.add_argument(
        "--mitigation", default="all", metavar="NAME", help="one mitigation, none, or all (default)"
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds for one attempt (default: 60)"
    )


def _fuzz_parser(commands: Any) -> argparse.ArgumentParser:
    searched: argparse.ArgumentParser = commands.add_parser(
        "fuzz", help="look for stories in which a scheduler fails, or play one"
    )
    searched.set_defaults(command=_fuzz)
    searched.add_argument("--engine", choices=("v0", "v1"), help="whose scheduler")
    searched.add_argument("--seeds", type=int, default=1, metavar="N", help="searches to make (default: 1)")
    searched.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="CPU seconds for each (default: 60)"
    )
    searched.add_argument(
        "--until",
        nargs="*",
        default=[],
        metavar="CODE",
        help="a search ends when it has found all of these; without them it uses its time up",
    )
    searched.add_argument("--save", type=Path, metavar="DIR", help="write every story found there")
    searched.add_argument(
        "--replay", type=Path, metavar="FILE", help="play a saved story; needs no Hypothesis"
    )
    return searched


def _keep_stdout() -> int:
    """Keeps standard output for the answer; whatever else is printed there, by anybody, goes to standard error."""
    sys.stdout.flush()
    answer = os.dup(1)
    os.dup2(2, 1)
    return answer


def _list(options: argparse.Namespace, repros: Mapping[str, Repro], _registry: str) -> tuple[str, int]:
    if options.json:
        return _json(render.list_document(repros)), FINE
    return "\n".join((render.listing if options.verbose else render.codes)(repros)), FINE


def _run(options: argparse.Namespace, repros: Mapping[str, Repro], registry: str) -> tuple[str, int]:
    limit_s, plans, proof = _asked(options, repros)
    results = runner.run(repros, plans, limit_s=limit_s, say=_say, registry=registry)
    if options.json:
        text = _json(render.document(repros, results, proof))
    elif options.verbose:
        text = "\n".join(render.text(repros, results, proof))
    else:
        text = "\n".join(render.short(repros, results, proof, options.width))
    return text, exit_code([attempt for attempts in results.values() for attempt in attempts], proof)


def _repeat(options: argparse.Namespace, repros: Mapping[str, Repro], registry: str) -> tuple[str, int]:
    if options.times < 1:
        raise UsageError(f"--times {options.times}: expected at least 1")
    limit_s, once, proof = _asked(options, repros)
    plans = {code: plan * options.times for code, plan in once.items()}
    started = time.monotonic()
    results = runner.run(repros, plans, limit_s=limit_s, say=_say, registry=registry)
    seconds = time.monotonic() - started
    if options.json:
        text = _json(repeat.document(results, proof, seconds))
    else:
        text = "\n".join(repeat.text(results, proof, seconds))
    return text, FINDINGS if proof.modified else repeat.exit_code(results)


def _asked(
    options: argparse.Namespace, repros: Mapping[str, Repro]
) -> tuple[float, dict[str, list[tuple[str, str | None]]], upstream.WheelProof]:
    """Returns an attempt's limit, what to try of each code, and the proof that upstream's files are its wheel's."""
    limit_s = _limit(options.timeout)
    codes = [_pick("code", code, list(repros)) for code in dict.fromkeys(options.codes)]
    plans = {code: _plan(repros[code], options.trigger, options.mitigation) for code in codes}
    needed = _distributions(repros, codes)
    # What needs nothing but Python rests on no wheel: there is nothing of upstream's to be compared.
    distribution = upstream.installed(needed) if needed else None
    if needed and distribution is None:
        wanted = " or ".join(_distributions(repros, codes))
        raise UsageError(
            f"{wanted} is needed for {', '.join(codes)}, and {sys.executable} does not have it: "
            "run it with the Python of a cell"
        )
    if distribution is None:
        return limit_s, plans, upstream.WheelProof("Python", platform.python_version(), 0, ())
    return limit_s, plans, upstream.compare(distribution)


def _distributions(repros: Mapping[str, Repro], codes: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for code in codes for name in repros[code].distributions))


def _plan(repro: Repro, trigger: str, mitigation: str) -> list[tuple[str, str | None]]:
    """Returns the pairs to try; a mitigation is always tried beside the bare trigger, or it would prove nothing."""
    triggers = [item.name for item in repro.triggers]
    if trigger != "all":
        triggers = [_pick(f"trigger of {repro.code}", trigger, triggers)]
    names = [item.name for item in repro.mitigations]
    if mitigation not in {"all", "none"}:
        names = [_pick(f"mitigation of {repro.code}", mitigation, names)]
    tried: list[str | None] = [None, *(names if mitigation != "none" else [])]
    return [(name, other) for name in triggers for other in tried]


def exit_code(attempts: Sequence[Attempt], proof: upstream.WheelProof | None = None) -> int:
    """Returns 1 for anything that is not as recorded, 3 where something gave no answer, else 0."""
    if (proof and proof.modified) or any(attempt.as_recorded is False for attempt in attempts):
        return FINDINGS
    return UNFINISHED if any(attempt.outcome in INCOMPLETE for attempt in attempts) else FINE


def _imports(options: argparse.Namespace, _repros: Mapping[str, Repro], _registry: str) -> tuple[str, int]:
    limit_s = _limit(options.timeout)
    results = {module: imports.try_import(module, limit_s) for module in options.modules}
    code = FINE if all(result["ok"] for result in results.values()) else FINDINGS
    if code == FINDINGS and all(result["ok"] or result["timed_out"] for result in results.values()):
        code = UNFINISHED
    if options.json:
        return _json({"schema": imports.SCHEMA, "modules": results}), code
    return "\n".join(imports.line(module, result) for module, result in results.items()), code


def _fuzz(options: argparse.Namespace, repros: Mapping[str, Repro], _registry: str) -> tuple[str, int]:
    from repro.search import fuzz, stories  # nothing else that is asked here rests on the search

    try:
        return _replay(fuzz, stories, options) if options.replay else _search(fuzz, options, repros)
    except fuzz.SearchError as error:
        raise UsageError(str(error)) from error


def _replay(fuzz: ModuleType, stories: ModuleType, options: argparse.Namespace) -> tuple[str, int]:
    try:
        story = stories.load(options.replay)
    except stories.StoryError as error:
        raise UsageError(str(error)) from error
    if story.engine not in {"v0", "v1"} or options.engine not in {None, story.engine}:
        raise UsageError(f"{options.replay} is a story of the engine {story.engine!r}")
    lines, same = fuzz.tell(fuzz.actions(story.engine), story)
    ended = "it ends as it was saved" if same else "it does not end as it was saved"
    if options.json:
        document = {
            "schema": fuzz.REPLAY_SCHEMA,
            "versions": upstream.versions(),
            "lines": lines,
            "as_saved": same,
        }
        return _json(document), FINE if same else FINDINGS
    return "\n".join([*lines, ended]), FINE if same else FINDINGS


def _search(fuzz: ModuleType, options: argparse.Namespace, repros: Mapping[str, Repro]) -> tuple[str, int]:
    if options.engine is None:
        raise UsageError("fuzz needs --engine v0 or --engine v1, or --replay FILE")
    if options.seeds < 1:
        raise UsageError(f"--seeds {options.seeds}: expected at least 1")
    cpu_s = _limit(options.seconds, "--seconds")
    sought = tuple(_pick("code", code, list(repros)) for code in options.until)
    fuzz.needs(options.engine)
    results = []
    for seed in range(options.seeds):
        results.append(fuzz.search_apart(fuzz.Search(options.engine, seed, cpu_s, sought)))
        _say(list(fuzz.table(results[-1:]))[-1])
    if options.save:
        for path in fuzz.keep(results, options.save):
            _say(f"saved {path}")
    code = FINDINGS if any(result["found"] for result in results) else FINE
    if options.json:
        return _json(fuzz.document(options.engine, results)), code
    return "\n".join(fuzz.text(options.engine, results)), code


def _pick(kind: str, name: str, known: Sequence[str]) -> str:
    if name in known:
        return name
    if name.upper() in known:  # codes are written in capitals, and typed as they come
        return name.upper()
    close = difflib.get_close_matches(name.upper() if kind == "code" else name, known, n=2, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"expected one of {', '.join(known)}"
    raise UsageError(f"unknown {kind} {name!r}: {hint}")


def _limit(seconds: float, option: str = "--timeout") -> float:
    if not 0 < seconds < math.inf:
        raise UsageError(f"{option} {seconds:g}: expected seconds above zero")
    return seconds


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1)


def _say(line: str) -> None:
    waiting.spoke(line)
    print(render.visible(line), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
