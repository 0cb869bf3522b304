"""The command line: `python -P -m grpo_core train | serve | replay`; `--help` describes each.

Standard output has only the command's answer: text, or with `--json` one JSON document. `serve` prints its address as a
JSON document in both cases. Messages, and output of libraries and child processes, go to standard error. Answers and
messages are escaped.

Exit codes:

- 0: success
- 1: the run failed by a named error (an engine died, weights did not arrive, a reward function failed), the engine of
  `serve` failed, or a replay with the recorded settings differs
- 2: wrong usage, an unusable record, a checkpoint that can't be saved, a missing package, or a bug of this program
- 3: an engine did not answer `train` in time
- 130: interrupted
"""

from __future__ import annotations

import signal

# Until `main` handles it, Ctrl-C ends the process as the signal does: no traceback out of an import.
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import sys

# Checked before anything that an older Python can't parse or import.
if tuple(sys.version_info) < (3, 10):
    sys.exit(print(f"grpo_core: needs Python 3.10 or newer; this is {sys.executable}", file=sys.stderr) or 2)

import contextlib
import inspect
import json
import os
import traceback
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from grpo_core.config import Config, ConfigError, RecordError
from grpo_core.console_text import describe_missing_module, escape

Answer = Callable[[str], None]
_PROGRAM = "python -P -m grpo_core"
_SERVE_FLAGS = ("--exit-with-stdin", "--allow-unauthenticated")
_FLAGS = ("--json", "--resume", "--help", "-h", *_SERVE_FLAGS)


def main(arguments: list[str]) -> int:
    """Run a command and return the exit code."""
    flags = {argument for argument in arguments if argument in _FLAGS}
    name, *rest = [argument for argument in arguments if argument not in _FLAGS] or [""]
    with _stdout_for_the_answer() as answer:
        if flags & {"--help", "-h"} or "--help-settings" in (name, *rest):
            answer(_help_text([name, *rest]))
            return 0
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # from here on Ctrl-C is an outcome
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return _command(name)(rest, flags, answer)
        except (ConfigError, RecordError) as error:
            code, outcome, text = 2, "error", str(error)
        except KeyboardInterrupt:
            code, outcome, text = 130, "interrupted", "interrupted (SIGINT)"
        except Exception as error:  # noqa: BLE001 - a bug of this program: its traceback, and exit code 2
            code, outcome, text = 2, "error", describe_missing_module(error)
            if not text:
                print(escape(traceback.format_exc()), file=sys.stderr)
                text = f"{type(error).__name__}: {error}"
        _print_error(text)
        if "--json" in flags:
            answer(json.dumps({"outcome": outcome, "error": text}))
        return code


def _train(arguments: list[str], flags: set[str], answer: Answer) -> int:
    """Train a model. Without CONFIG: the shipped tiny task, which takes half a minute on a laptop.

    usage: train [CONFIG.toml] [--section.key VALUE ...] [--resume] [--json]

    Examples:
      python -P -m grpo_core train
      python -P -m grpo_core train examples/async.toml --train.steps 100
      python -P -m grpo_core train mine.toml --output.name mine --resume

    exit codes: 0 success, 1 a named error, 2 wrong usage or a bug of the program, 3 no answer in time, 130 interrupted
    """
    config = _load(arguments)
    from grpo_core import run
    from grpo_core.run_files import StepProgress

    document = run.train(config, StepProgress(config.train.steps), resume="--resume" in flags)
    if document["error"]:
        _print_error(document["error"])
    if document["rank"] == 0:  # under torchrun one process prints for all
        answer(json.dumps(document) if "--json" in flags else _summary(document))
    return {"ok": 0, "failed": 1, "timeout": 3, "interrupted": 130}[document["outcome"]]


def _serve(arguments: list[str], flags: set[str], answer: Answer) -> int:
    """Serve a model's engine over HTTP, for train --rollout.mode server.

    usage: serve [CONFIG.toml] --model.path FOLDER [--section.key VALUE ...] [--allow-unauthenticated]

    Examples:
      python -P -m grpo_core serve --model.path MODEL --rollout.port 8500
      python -P -m grpo_core serve --model.path MODEL --rollout.port 8500 --rollout.engine vllm
      python -P -m grpo_core train --rollout.mode server --rollout.port 8500 --model.path MODEL

    exit codes: 0 the server was stopped, 1 its engine failed, 2 wrong usage or a bug of the program, 130 interrupted
    """
    config = _load(arguments, serving=True)
    from grpo_core.rollout.engine import EngineError
    from grpo_core.rollout.server.process import serve

    try:
        serve(config, answer, **{name[2:].replace("-", "_"): name in flags for name in _SERVE_FLAGS})
    except EngineError as error:
        _print_error(str(error))
        return 1
    return 0


def _replay(arguments: list[str], flags: set[str], answer: Answer) -> int:
    """Recompute a recorded step of RUN bit for bit, or with other settings. output.record_every records steps.

    usage: replay RUN STEP [--policy PATH] [--section.key VALUE ...] [--json]

    Examples:
      python -P -m grpo_core replay runs/mine 1
      python -P -m grpo_core replay runs/mine 3 --policy runs/mine/checkpoints/step-00000002/policy.safetensors
      python -P -m grpo_core replay runs/mine 1 --loss.dialect verl-0.9.1/grpo

    exit codes: 0 the same bits, or other settings were given; 1 a number differs; 2 wrong usage, or an unusable record
    """
    if len(arguments) < 2 or not arguments[1].isdecimal():
        raise ConfigError("command line: expected replay RUN STEP: a run's folder and a recorded step")
    rest, policy = arguments[2:], None
    if "--policy" in rest[:-1]:
        index = rest.index("--policy")
        policy = Path(rest.pop(index + 1))
        rest.pop(index)
    from grpo_core.records.replay import replay

    document = replay(Path(arguments[0]), int(arguments[1]), policy, rest)
    text = "\n".join(f"{key}: {value}" for key, value in document.items())
    answer(json.dumps(document) if "--json" in flags else text)
    # Other settings are expected to give other numbers.
    return 0 if rest or document["outcome"] == "equal" else 1


COMMANDS = {"train": _train, "serve": _serve, "replay": _replay}


def _command(name: str) -> Callable[[list[str], set[str], Answer], int]:
    """Return the function of a command; raises ConfigError for an unknown name."""
    if name not in COMMANDS:
        raise ConfigError(f"command line: {name!r}: expected a command: {', '.join(COMMANDS)} (see --help)")
    return COMMANDS[name]


def _load(arguments: list[str], *, serving: bool = False) -> Config:
    """Read the settings; unless `serving`, print warnings and raise an error if the model or a package is missing."""
    from grpo_core.config_checks import check_model_folder
    from grpo_core.settings import load

    has_file = bool(arguments) and not arguments[0].startswith("--")
    path, overrides = (Path(arguments[0]), arguments[1:]) if has_file else (None, arguments)
    config = load(path, overrides, (lambda _: None) if serving else _print_error)
    if not serving:
        check_model_folder(config)
        modules = ("torch", "transformers", "safetensors")  # to import torch alone takes seconds
        for missing in (name for name in modules if find_spec(name) is None):
            raise ModuleNotFoundError(name=missing)
    return config


def _help_text(words: list[str]) -> str:
    """Return the settings that match the word after `--help-settings`, else a command's help, else the command list."""
    from grpo_core.settings import describe_settings, fields

    if "--help-settings" in words:
        return describe_settings(" ".join(words[words.index("--help-settings") + 1 :][:1]))
    helps = {command: inspect.getdoc(function) or "" for command, function in COMMANDS.items()}
    if words[0] in helps:
        summary, usage, *rest = helps[words[0]].split("\n\n")
        usage = usage.replace("usage:", f"usage: {_PROGRAM}")
        search = f"settings with their defaults: {_PROGRAM} {words[0]} --help-settings [WORD]"
        return "\n\n".join([usage, summary, *rest, f"All {len(fields())} {search}"])
    commands = [f"{command:<7} {text.partition(chr(10))[0]}" for command, text in helps.items()]
    end = "COMMAND --help shows more; --help-settings [WORD] lists the settings."
    return "\n".join([f"usage: {_PROGRAM} COMMAND ...", "", *commands, "", end])


def _print_error(text: str) -> None:
    print(f"grpo_core: {escape(text)}", file=sys.stderr)


def _summary(document: dict[str, Any]) -> str:
    """Return a run's summary for people."""
    return """{mode}, engine {engine}: {outcome} after {steps} steps, {seconds:.0f} s
reward {reward_first:.3f} -> {reward_last:.3f} (first and last tenth of the steps)
weight syncs proven: {syncs_proven} of {syncs}
metrics     {metrics}
completions {completions}""".format(**document)


@contextlib.contextmanager
def _stdout_for_the_answer() -> Iterator[Answer]:
    """Reserve stdout for the answer: output of libraries and child processes goes to stderr."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)

    def write_answer(text: str) -> None:
        # The reader may have closed the pipe: `| head -1`.
        with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(stdout), "wb") as out:
            out.write((escape(text) + "\n").encode())

    try:
        yield write_answer
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def _leave(code: int) -> None:
    """End the process; under torchrun at once, as the threads of its process group can hang or abort at exit."""
    # A late Ctrl-C must not print a traceback from PyTorch's cleanup.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    _leave(main(sys.argv[1:]))
