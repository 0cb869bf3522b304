"""The command line: `python -m grpo_core train | serve | probe | replay | check`; `--help` shows what each takes.

Exit codes: 0 fine; 1 the run failed by a named error (an engine died, weights did not arrive, a reward function is
broken), a replay differs, a dump's advantages are not what its rewards make; 2 wrong usage, or this program failed;
3 an engine gave no answer in time; 130 interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError, RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grpo_core.config import Config

# What the extra of that name brings.
_TRAIN = frozenset({"fastapi", "safetensors", "torch", "transformers", "uvicorn"})
_CPU = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
_SERVE_FLAGS = ("--exit-with-stdin", "--allow-unauthenticated")
_FLAGS = ("--json", "--resume", "--help", "-h", *_SERVE_FLAGS)


def main(arguments: list[str]) -> int:
    """Runs a command and returns the exit code."""
    flags = {argument for argument in arguments if argument in _FLAGS}
    rest = [argument for argument in arguments if argument not in _FLAGS]
    if flags & {"--help", "-h"} or "--help-settings" in rest:
        from grpo_core.show.helps import help_of

        with _stdout_for_the_answer() as answer:
            answer(_visible(help_of(rest)))
        return 0
    with _stdout_for_the_answer() as answer:
        try:
            if rest[:1] in (["replay"], ["check"]):
                from grpo_core.records.commands import check_command, replay_command

                told = {"replay": replay_command, "check": check_command}[rest[0]]
                return told(rest[1:], flags, lambda text: answer(_visible(text)))
            command, config = _understood(rest)
            return command(config, flags, answer)
        except (ConfigError, RecordError) as error:
            code, outcome, text = 2, "error", str(error)
        except KeyboardInterrupt:
            code, outcome, text = 130, "interrupted", "interrupted (SIGINT)"
        except Exception as error:  # noqa: BLE001 - a fault of this program: shown whole, and exit code 2
            code, outcome, text = 2, "error", _not_installed(error)
            if not text:
                print(_visible(traceback.format_exc()), file=sys.stderr)
                text = f"{type(error).__name__}: {error}"
        print(f"grpo_core: {_visible(text)}", file=sys.stderr)
        if "--json" in flags:
            answer(json.dumps({"outcome": outcome, "error": text}))
        return code


def _visible(text: str) -> str:
    from grpo_core.show.visible import visible

    return visible(text)


def _not_installed(error: Exception) -> str:
    """Says what to install where a module is missing; empty for any other error, and for a module of ours."""
    found: BaseException | None = error
    # Transformers leaves the name to its error's cause.
    while isinstance(found, ModuleNotFoundError) and not found.name:
        found = found.__cause__
    module = (found.name or "").partition(".")[0] if isinstance(found, ModuleNotFoundError) else ""
    if module in {"", "grpo_core"}:
        return ""
    wanted = "'grpo-doctor[train]'" if module in _TRAIN else module
    # What comes with it unasked is said before it comes.
    more = f" (with CUDA: gigabytes; the CPU's comes by {_CPU} first)" if module == "torch" else ""
    return f"{module} is not installed here: pip install {wanted}{more}"


def _train(config: Config, flags: set[str], answer: Callable[[str], None]) -> int:
    from grpo_core import run
    from grpo_core.show.terminal import StepProgress

    progress = StepProgress(config.train.steps)
    with progress.watched():
        document = run.train(config, progress, resume="--resume" in flags)
    if document["error"]:
        print(f"grpo_core: {_visible(document['error'])}", file=sys.stderr)
    if document["rank"] == 0:  # under torchrun one process speaks for all
        answer(json.dumps(document) if "--json" in flags else _in_words(document))
    return run.EXIT_CODES[document["outcome"]]


def _probe(config: Config, flags: set[str], answer: Callable[[str], None]) -> int:
    from grpo_core.probe import probe

    document = probe(config)
    if "--json" in flags:
        answer(json.dumps(document))
    else:
        answer("\n".join(f"{key}: {value}" for key, value in document.items()))
    return 0 if document["outcome"] == "ok" else 1


def _serve(config: Config, flags: set[str], answer: Callable[[str], None]) -> int:
    from grpo_core.rollout.engine import EngineError
    from grpo_core.rollout.serve.run import serve

    try:
        serve(config, answer, **{name[2:].replace("-", "_"): name in flags for name in _SERVE_FLAGS})
    except EngineError as error:
        print(f"grpo_core: {_visible(str(error))}", file=sys.stderr)
        return 1
    return 0


if TYPE_CHECKING:
    Command = Callable[[Config, set[str], Callable[[str], None]], int]

_COMMANDS: dict[str, Command] = {"train": _train, "serve": _serve, "probe": _probe}


def _understood(arguments: list[str]) -> tuple[Command, Config]:
    from grpo_core.rules import check_folders
    from grpo_core.settings import load

    name, *rest = arguments or [""]
    if name not in _COMMANDS:
        known = ", ".join([*_COMMANDS, "replay", "check"])
        raise ConfigError(f"command line: {name!r}: expected a command: {known} (see --help)")
    path = None
    if rest and not rest[0].startswith("--"):
        path = Path(rest.pop(0))

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
            out.write((text + "\n").encode())

    try:
        yield answer
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _in_words(document: dict[str, Any]) -> str:
    from grpo_core.show.curves import terminal_curve

    lines = Path(document["metrics"]).read_text(encoding="utf-8").splitlines()
    curve = [json.loads(line)["reward/mean"] for line in lines]
    colour = os.isatty(1) and not os.environ.get("NO_COLOR")
    drawn = terminal_curve(curve, width=min(shutil.get_terminal_size().columns, 110), colour=colour)
    return "\n".join(
        [
            drawn,
            f"{document['mode']}, engine {document['engine']}: {document['outcome']} after {document['steps']} "
            f"steps, {document['seconds']:.0f} s",
            f"reward {document['reward_first']:.3f} -> {document['reward_last']:.3f} "
            "(first and last tenth of the steps)",
            f"weight syncs proven: {document['syncs_proven']} of {document['syncs']}",
            f"metrics     {document['metrics']}",
            f"completions {document['completions']}",
        ]
    )


def _leave(code: int) -> None:
    """Ends the process; under torchrun at once, as the threads of its process group can hang or abort at exit."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    _leave(main(sys.argv[1:]))
