"""Texts of `--help` and `--help-settings`."""

from __future__ import annotations

import ast
from pathlib import Path

from grpo_core import config
from grpo_core.settings import allowed, fields, sections

# Command -> its arguments, a sentence, examples, exit codes.
COMMANDS = {
    "train": (
        "[CONFIG.toml] [--section.key VALUE ...] [--resume] [--json]",
        "Trains; without CONFIG the shipped tiny task, half a minute on a laptop.",
        ("train", "train examples/async.toml --train.steps 100", "train mine.toml --output.name mine --resume"),
        "0 fine, 1 a named error, 2 wrong usage or a fault of the program, 3 no answer in time, 130 interrupted",
    ),
    "serve": (
        "[CONFIG.toml] --model.path FOLDER [--section.key VALUE ...] [--allow-unauthenticated]",
        "Serves a model's engine over HTTP, for train --rollout.mode server.",
        (
            "serve --model.path MODEL --rollout.port 8500",
            "serve --model.path MODEL --rollout.port 8500 --rollout.engine vllm",
            "train --rollout.mode server --rollout.port 8500 --model.path MODEL",
        ),
        "0 it was ended, 1 its engine failed, 2 wrong usage or a fault of the program, 130 interrupted",
    ),
    "probe": (
        "[CONFIG.toml] [--section.key VALUE ...] [--json]",
        "Compares an engine's log-probs with the trainer's, before and after a weight update.",
        ("probe", "probe --rollout.engine vllm", "probe --rollout.mode server --json"),
        "0 they agree, 1 they do not, 2 wrong usage or a fault of the program, 3 no answer in time",
    ),
    "replay": (
        "RUN STEP [--policy PATH] [--section.key VALUE ...] [--json]",
        "Computes a recorded step of RUN again (output.record_every), to the last bit, or with other settings.",
        ("replay runs/mine 1", "replay runs/mine 3 --policy runs/mine/checkpoints/step-00000002/policy.safetensors",
         "replay runs/mine 1 --loss.dialect verl"),
        "0 the same bits, or other settings were given; 1 another number; 2 wrong usage, or no such record",
    ),
}  # fmt: skip
_PROGRAM = "python -m grpo_core"


def help_text(words: list[str]) -> str:
    """Return the settings that match the word after `--help-settings`, or the help of a command."""
    if "--help-settings" in words:
        return settings_text(" ".join(words[words.index("--help-settings") + 1 :][:1]))
    return usage_text(next(iter(words), ""))


def usage_text(name: str) -> str:
    """Return the help of a command, or of all."""
    if name not in COMMANDS:
        lines = [
            f"usage: {_PROGRAM} COMMAND ...",
            "",
            *(f"{each:<7} {said}" for each, (_, said, *_) in COMMANDS.items()),
        ]
        return "\n".join(
            [*lines, "", "COMMAND --help shows more; --help-settings [WORD] lists the settings."]
        )
    line, said, examples, codes = COMMANDS[name]
    shown = "\n".join(f"  {_PROGRAM} {example}" for example in examples)
    return (
        f"usage: {_PROGRAM} {name} {line}\n\n{said}\n\nexamples:\n{shown}\n\nexit codes: {codes}\n\n"
        f"Settings, {len(fields())} of them with their defaults: {_PROGRAM} {name} --help-settings [WORD]"
    )


def settings_text(word: str) -> str:
    """Return the settings whose name or documentation contains a word; all without one."""
    lines = documented_settings().splitlines()
    pairs = [lines[place : place + 2] for place in range(0, len(lines), 2)]
    found = [pair for pair in pairs if word.lower() in " ".join(pair).lower()]
    if not found:
        return f"No setting has {word!r} in its name or meaning; --help-settings alone shows all."
    return "\n".join(["Settings and their defaults:", *(line for pair in found for line in pair)])


def documented_settings() -> str:
    """Return every setting with its default and its documentation, which stands below it in config.py."""
    nodes = ast.parse(Path(str(config.__file__)).read_text(encoding="utf-8")).body
    documented: dict[str, dict[str, str]] = {}
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            # A string below a field is its documentation.
            documented[node.name] = {
                field.target.id: " ".join(str(text.value.value).split())
                for field, text in zip(node.body, node.body[1:])  # noqa: B905 - pairs of neighbours, on 3.10
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            }
    lines = []
    kinds = sections()
    for dotted, (_, field) in fields().items():
        section, key = dotted.split(".")
        choices = allowed(field)
        shown = f" [{', '.join(map(str, choices))}]" if choices else ""
        lines.append(f"  --{dotted} {field.default!r}{shown}")
        lines.append(f"      {documented[kinds[section].__name__][key]}")
    return "\n".join(lines)
