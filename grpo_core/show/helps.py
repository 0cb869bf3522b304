"""What `--help` says of each command: its line, a sentence, examples, exit codes; and a search of the settings."""

from __future__ import annotations

from grpo_core.settings import fields
from grpo_core.usage import help_text

# Of each command: its line, its sentence, three examples, exit codes.
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


def help_of(words: list[str]) -> str:
    """What was asked for: the settings with the word behind `--help-settings`, or all; or the help of a command."""
    if "--help-settings" in words:
        return settings(" ".join(words[words.index("--help-settings") + 1 :][:1]))
    return usage(next(iter(words), ""))


def usage(name: str) -> str:
    """What a command is for, or all of them; settings are shown by `--help-settings`."""
    if name not in COMMANDS:
        lines = [
            f"usage: {_PROGRAM} COMMAND ...",
            "",
            *(f"{each:<7} {said}" for each, (_, said, *_) in COMMANDS.items()),
        ]
        return "\n".join(
            [*lines, "", "COMMAND --help tells more of one; --help-settings [WORD] has the settings."]
        )
    line, said, examples, codes = COMMANDS[name]
    shown = "\n".join(f"  {_PROGRAM} {example}" for example in examples)
    return (
        f"usage: {_PROGRAM} {name} {line}\n\n{said}\n\nexamples:\n{shown}\n\nexit codes: {codes}\n\n"
        f"Settings, {len(fields())} of them with their defaults: {_PROGRAM} {name} --help-settings [WORD]"
    )


def settings(word: str) -> str:
    """The settings in whose name or meaning a word stands; all without one."""
    lines = help_text().splitlines()
    pairs = [lines[place : place + 2] for place in range(0, len(lines), 2)]
    found = [pair for pair in pairs if word.lower() in " ".join(pair).lower()]
    if not found:
        return f"No setting has {word!r} in its name or meaning; --help-settings alone shows all."
    return "\n".join(["Settings and their defaults:", *(line for pair in found for line in pair)])
