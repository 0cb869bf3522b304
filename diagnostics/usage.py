"""What `--help` of a command says before its options: a sentence, examples, exit codes; of each command the same way.

Loaded where help is asked for, and nowhere else.
"""

from __future__ import annotations

import argparse

_CODES = {0: "nothing to report", 1: "findings", 2: "wrong usage, or a fault of the tool", 3: "not judged"}
# What somebody has, and what to run then.
_SITUATIONS = (
    ("a log of a dead run", "triage run.log"),
    ("a script or config", "lint train.sh"),
    ("an environment", "doctor --prefix ENV"),
    ("a job that stands still", "hang"),
    ("a run that learns nothing", "audit RUN"),
    ("versions to choose", "versions"),
    ("a code, or an error's words", "explain SCH001"),
    ("a wish to see GRPO done right", "train"),
)
# Of each command: its sentence; three examples, each with what it is for; exit codes that mean more than usual.
COMMANDS: dict[str, tuple[str, tuple[tuple[str, str], ...], dict[int, str]]] = {
    "doctor": (
        "Judges an environment and its machine from its files, without importing anything of it.",
        (
            ("doctor", "the environment that it runs in"),
            ("doctor --python ENV/bin/python --tier probe", "another, and import what a run imports"),
            ("doctor --prefix ENV --fix-plan", "one ordered plan out of all findings"),
        ),
        {
            1: "findings at or above --fail-on",
            3: "something could not be looked at, and nothing worse was found",
        },
    ),
    "lint": (
        "Judges a config, a script or a command before anything is started; runs nothing.",
        (
            ("lint train.sh", "a file, or a folder of them"),
            ("lint config.yaml --vllm 0.10.2", "for another release than the one that is installed"),
            ("lint -- trl vllm-serve --model Qwen/Qwen3-0.6B", "a command line"),
        ),
        {
            1: "findings at or above --fail-on",
            3: "what decides could not be read, or nothing there was to judge",
        },
    ),
    "triage": (
        "Names the known issue behind a failed run's logs, and what helps against it.",
        (
            ("triage run.log", "one log, packed too"),
            ("triage logs/", "all ranks of one run"),
            ("triage --group runs/", "each log a run of its own: which failed alike"),
        ),
        {
            0: "no failure, and the run says that it ended",
            1: "a known failure",
            3: "not judged: a failure that no entry describes, a log without an end, or one that was not read",
        },
    ),
    "hang": (
        "Says who holds up a job that stands still, over all its processes; stops and changes nothing.",
        (
            ("hang", "all of yours that look like a job"),
            ("hang --pid 4711", "this process and all below it"),
            ("hang --from stacks.txt", "dumps that were taken before"),
        ),
        {
            0: "nothing hangs; with --beats always",
            1: "something does; with --watch the command's own code, and 1 where --end ended it",
            3: "it could not be told",
        },
    ),
    "audit": (
        "Looks for the fault that nothing reports, in a server that runs or in what a run left behind.",
        (
            ("audit runs/mine", "what a run left behind"),
            ("audit --server http://127.0.0.1:8000 --checkpoint DIR", "does it hold these weights?"),
            ("audit runs/mine --format json", "for a program"),
        ),
        {0: "clean as far as asked", 1: "a fault", 3: "it could not be told"},
    ),
    "versions": (
        "Says which releases of vLLM and TRL ran together and which to take, out of the published table.",
        (
            ("versions", "which to take, and what was seen of six pairs"),
            ("versions --vllm 0.10", "what to take beside the vLLM that you have"),
            ("versions --trl 1.16.0 --format json", "for a program"),
        ),
        {0: "a pair of these ran", 1: "(never)", 3: "none of these was run"},
    ),
    "explain": (
        "Says what a code means, why it happens and what helps; or finds the code by a log line or by words.",
        (
            ("explain SCH001 SCH002", "codes"),
            ("explain 'assert len(self._async_stopped) == 0'", "a line of a log"),
            ("explain stale weights", "words; all codes: explain --list --kind silent"),
        ),
        {0: "it was explained", 1: "(never)", 2: "no such code, or nothing near", 3: "(never)"},
    ),
    "catalogue": (
        "Lists the known issues, and checks the entries.",
        (
            ("catalogue", "codes, kinds, titles"),
            ("catalogue --check", "every entry and its samples"),
            ("catalogue --check SCH001", "and all that concerns a code"),
        ),
        {1: "(never)", 2: "an entry that can't be used", 3: "(never)"},
    ),
    "completion": (
        "Prints the script by which a shell completes commands, options, codes and formats.",
        (
            ("completion bash", "to be put into ~/.local/share/bash-completion/completions/grpo-doctor"),
            ("completion zsh", "to be read by ~/.zshrc"),
            ("completion fish", "to be put into ~/.config/fish/completions/grpo-doctor.fish"),
        ),
        {0: "it was printed", 1: "(never)", 3: "(never)"},
    ),
}


def situations(program: str) -> str:
    """What is told whoever asks for nothing: by what they have, the command."""
    wide = max(len(have) for have, _ in _SITUATIONS)
    rows = [f"  {have:<{wide}}  {program} {run}" for have, run in _SITUATIONS]
    return "\n".join(["What do you have?", *rows, f"All commands: {program} --help"])


def put(parser: argparse.ArgumentParser, name: str, program: str) -> None:
    """Gives a command's parser its sentence, examples and exit codes.

    Args:
        parser: The command's.
        name: Of the command.
        program: What the user typed to start us.
    """
    sentence, examples, meant = COMMANDS[name]
    wide = max(len(example) for example, _ in examples) + len(program) + 1
    told = [f"  {f'{program} {example}':<{wide}}  {what}" for example, what in examples]
    codes = [f"{code} {word}" for code, word in (_CODES | meant).items() if word != "(never)"]
    parser.description = sentence
    parser.epilog = "\n".join(["examples:", *told, "", "exit codes:", *(f"  {line}" for line in codes)])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
