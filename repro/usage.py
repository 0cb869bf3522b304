"""What `--help` of a command of `repro` says before its options: examples and exit codes."""

from __future__ import annotations

import argparse

_RUN = (
    "0 everything went as recorded",
    "1 something did not, or upstream's files are modified",
    "2 wrong usage, or a fault of the program",
    "3 something gave no answer, and nothing worse",
)
_CODES = {
    "list": ("0 listed", _RUN[2]),
    "run": _RUN,
    "repeat": _RUN,
    "imports": ("0 each can be imported", "1 one can't", _RUN[2], "3 one took too long, and no other failed"),
    "fuzz": (
        "0 no story was found in which it fails, or one ends as it was saved",
        "1 one was found, or a saved one ends in another way",
        _RUN[2],
    ),
}
# Of each command: its sentence, and three examples.
COMMANDS: dict[str, tuple[str, tuple[str, str, str]]] = {
    "list": (
        "Lists the failures; their triggers and mitigations, too, with what each helps against.",
        ("list", "list --verbose", "list | grep SCH"),
    ),
    "run": (
        "Makes failures happen in this environment, as it is and with each mitigation.",
        ("run SCH001", "run SCH002 --trigger min_tokens --mitigation none", "run SCH001 SCH002 --json"),
    ),
    "repeat": (
        "Makes the same attempts many times over, and says whether the same comes of it each time.",
        ("repeat SCH001", "repeat SCH002 --times 200 --mitigation none", "repeat SCH001 --trigger lost_step --json"),
    ),
    "imports": (
        "Imports modules, each in a process of its own, and says which can't be.",
        ("imports vllm", "imports vllm trl.trainer.grpo_trainer", "imports torch --timeout 60 --json"),
    ),
    "fuzz": (
        "Looks for stories in which a scheduler fails, or plays one that was saved.",
        ("fuzz --engine v0", "fuzz --engine v1 --seeds 4 --save stories", "fuzz --replay stories/one.json"),
    ),
}  # fmt: skip


def put(parser: argparse.ArgumentParser, name: str, program: str) -> None:
    """Gives a command's parser its sentence, examples and exit codes."""
    sentence, examples = COMMANDS[name]
    told = ["examples:", *(f"  {program} {each}" for each in examples)]
    parser.description = sentence
    parser.epilog = "\n".join([*told, "", "exit codes:", *(f"  {code}" for code in _CODES[name])])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
