"""The command line: `python -m grpo_core train | serve | probe | replay`; `--help` shows what each takes.

Exit codes: 0 fine; 1 the run failed by a named error (an engine died, weights did not arrive, a reward function is
broken), or a replay differs; 2 wrong usage, or this program failed;
3 an engine gave no answer in time; 130 interrupted.
"""

from __future__ import annotations

import signal

# Until `main` takes it, Ctrl-C ends the process as the signal does: out of an import nobody needs a traceback.
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import sys

# Asked before anything that an older one refuses in words of its own.
if tuple(sys.version_info) < (3, 10):
    sys.exit(print(f"grpo_core: needs Python 3.10 or newer; this is {sys.executable}", file=sys.stderr) or 2)

import contextlib
import json
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError, RecordError
from grpo_core.show.errors import escape, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grpo_core.config import Config

_SERVE_FLAGS = ("--exit-with-stdin", "--allow-unauthenticated")
_FLAGS = ("--json", "--resume", "--help", "-h", *_SERVE_FLAGS)


def main(arguments: list[str]) -> int:
    """Runs a command and returns the exit code."""
    flags = {argument for argument in arguments if argument in _FLAGS}
    rest = [argument for argument in arguments if argument not in _FLAGS]
    if flags & {"--help", "-h"} or "--help-settings" in rest:
        from grpo_core.show.help_texts import help_text

        with _stdout_for_the_answer() as answer:
            answer(help_text(rest))
        return 0
    with _stdout_for_the_answer() as answer:
        try:
            with _interruptible():
                if rest[:1] == ["replay"]:
                    return _replay(rest[1:], flags, answer)
                command, config = _understood(rest)
                return command(config, flags, answer)
        except (ConfigError, RecordError) as error:
            code, outcome, text = 2, "error", str(error)
        except KeyboardInterrupt:
            code, outcome, text = 130, "interrupted", "interrupted (SIGINT)"
        except Exception as error:  # noqa: BLE001 - a fault of this program: shown whole, and exit code 2
            code, outcome, text = 2, "error", explain(error)
            if not text:
                print(escape(traceback.format_exc()), file=sys.stderr)
                text = f"{type(error).__name__}: {error}"
        print(f"grpo_core: {escape(text)}", file=sys.stderr)
        if "--json" in flags:
            answer(json.dumps({"outcome": outcome, "error": text}))
        return code


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


def _replay(arguments: list[str], flags: set[str], answer: Callable[[str], None]) -> int:
    """`replay RUN STEP [--policy PATH] [--section.key VALUE ...]`."""
    from grpo_core.records.replay import replay

    if len(arguments) < 2 or not arguments[1].isdecimal():
        raise ConfigError(
            "command line: expected replay RUN STEP, a run's folder and a step that it recorded"
        )
    rest, policy = arguments[2:], None
    if "--policy" in rest:
        place = rest.index("--policy")
        policy = Path(rest[place + 1]) if place + 1 < len(rest) else None
        del rest[place : place + 2]
    document = replay(Path(arguments[0]), int(arguments[1]), policy, rest)
    answer(json.dumps(document) if "--json" in flags else "\n".join(f"{k}: {v}" for k, v in document.items()))
    # Other settings are expected to give other numbers.
    return 0 if rest or document["outcome"] == "equal" else 1


def _train(config: Config, flags: set[str], answer: Callable[[str], None]) -> int:
    from grpo_core import run
    from grpo_core.show.progress import StepProgress

    progress = StepProgress(config.train.steps)
    with progress.watched():
        document = run.train(config, progress, resume="--resume" in flags)
    if document["error"]:
        print(f"grpo_core: {escape(document['error'])}", file=sys.stderr)
    if document["rank"] == 0:  # under torchrun one process speaks for all
        answer(json.dumps(document) if "--json" in flags else _in_words(document))
    return {"ok": 0, "failed": 1, "timeout": 3, "interrupted": 130}[document["outcome"]]


def _probe(config: Config, flags: set[str], answer: Callable[[str], None]) -> int:
    from grpo_core.probe import probe

    document = probe(config)
    answer(json.dumps(document) if "--json" in flags else "\n".join(f"{k}: {v}" for k, v in document.items()))
    return 0 if document["outcome"] == "ok" else 1


def _serve(config: Config, flags: set[str], answer: Callable[[str], None]) -> int:
    from grpo_core.rollout.engine import EngineError
    from grpo_core.rollout.server.process import serve

    try:
        serve(config, answer, **{name[2:].replace("-", "_"): name in flags for name in _SERVE_FLAGS})
    except EngineError as error:
        print(f"grpo_core: {escape(str(error))}", file=sys.stderr)
        return 1
    return 0


if TYPE_CHECKING:
    Command = Callable[[Config, set[str], Callable[[str], None]], int]

_COMMANDS: dict[str, Command] = {"train": _train, "serve": _serve, "probe": _probe}


def _understood(arguments: list[str]) -> tuple[Command, Config]:
    from grpo_core.rules import check_folders
    from grpo_core.settings import load

    name, *rest = arguments or [""]
    if name == "check":
        raise ConfigError("command line: `check` was removed; use: grpo-doctor audit DUMP")
    if name not in _COMMANDS:
        known = ", ".join([*_COMMANDS, "replay"])
        raise ConfigError(f"command line: {name!r}: expected a command: {known} (see --help)")
    path = Path(rest.pop(0)) if rest and not rest[0].startswith("--") else None

    def warn(note: str) -> None:
        # What has no effect is said of training; a server takes its few keys from any file.
        if name != "serve":
            print(f"grpo_core: {note}", file=sys.stderr)

    config = load(path, rest, warn)
    if name != "serve":  # which looks at its address first
        check_folders(config)
    return _COMMANDS[name], config


@contextlib.contextmanager
def _stdout_for_the_answer() -> Iterator[Callable[[str], None]]:
    """Keeps stdout for the answer alone: what libraries or children print goes to stderr meanwhile."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)

    def answer(text: str) -> None:
        # Whoever read it may be gone: `| head -1`.
        with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(kept), "wb") as out:
            out.write((escape(text) + "\n").encode())

    try:
        yield answer
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _in_words(document: dict[str, Any]) -> str:
    from grpo_core.show.progress import sparkline

    lines = Path(document["metrics"]).read_text(encoding="utf-8").splitlines()
    curve = [json.loads(line)["reward/mean"] for line in lines]
    return "\n".join(
        [
            f"{document['mode']}, engine {document['engine']}: {document['outcome']} after {document['steps']} "
            f"steps, {document['seconds']:.0f} s",
            f"reward {document['reward_first']:.3f} -> {document['reward_last']:.3f} "
            f"(first and last tenth of the steps)  {sparkline(curve, 40)}",
            f"weight syncs proven: {document['syncs_proven']} of {document['syncs']}",
            f"metrics     {document['metrics']}",
            f"completions {document['completions']}",
        ]
    )


def _leave(code: int) -> None:
    """Ends the process; under torchrun at once, as the threads of its process group can hang or abort at exit."""
    if code == 130:  # who asks again gets no traceback of what PyTorch does at an interpreter's end
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    _leave(main(sys.argv[1:]))
