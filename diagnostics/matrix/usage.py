"""What `--help` of a command of the matrix says before its options: examples and exit codes."""

from __future__ import annotations

import argparse

_CODES = {0: "as expected", 1: "something is not as expected", 2: "wrong usage, or it could not go on"}
_OPEN = {3: "something gave no answer, and nothing worse"}
_DONE = {0: "done", 1: "(never)"}
_SOME = _DONE | {3: "some of it could not be had"}
# Of each command: three examples, or as many as it has uses; exit codes that mean more than usual.
COMMANDS: dict[str, tuple[tuple[str, ...], dict[int, str]]] = {
    "run": (
        ("run", "run --cells 'vllm-0.10*' --layers import,engine", "run --profile full --dry-run"),
        _OPEN,
    ),
    "bisect": (
        (
            "bisect --trl 0.25.1 --vllm 0.10.0..0.12.0 --layer contract",
            "bisect --trl newest --vllm 0.30.0..0.32.0 --layer resolve",
            "bisect --trl 0.16.1 --vllm 0.7.0..0.8.5 --layer import --recipe NAME",
        ),
        _OPEN,
    ),
    "add": (("add vllm==newest", "add vllm==0.32.0 --trl 1.16.0", "add vllm==0.32.0 --write"), _OPEN),
    "env": (
        (
            "env vllm-0.10.2+trl-0.25.1",
            "env vllm-0.7.3+trl-0.16.1 --store /scratch/matrix",
            "env vllm-0.7.3+trl-0.16.1 --file other.toml",
        ),
        {0: "it is there", 1: "it can't be built", 3: "disk, index or tools failed"},
    ),
    "lock": (("lock", "lock --cells 'vllm-0.32*'", "lock --keep --into new"), _SOME),
    "check": (
        ("check", "check --file other.toml", "check --store /scratch/matrix"),
        {0: "all is up to date"},
    ),
    "merge": (("merge other/.matrix", "merge one two", "merge gpu.jsonl --store .matrix"), _DONE),
    "releases": (("releases", "releases --file other.toml", "releases --store /scratch/matrix"), _DONE),
    "report": (("report", "report --report page", "report --profile breadth"), _DONE),
    "findings": (("findings", "findings --output findings.md", "findings --store other"), _DONE),
    "confusion": (
        ("confusion", "confusion --cells 'vllm-0.10*'", "confusion --store other"),
        _DONE | {3: "doctor has looked at none of these cells"},
    ),
    "workflow": (
        ("workflow", "workflow --output .github/workflows/matrix.yml", "workflow --release"),
        _DONE,
    ),
    "publish": (
        ("publish --dry-run", "publish", "publish --output compat.json"),
        {0: "done", 1: "a verdict would be lost", 3: "something has no answer"},
    ),
    "sweep": (("sweep", "sweep --releases '0.6.*'", "sweep --fresh --jobs 1"), _OPEN),
}


def put(parser: argparse.ArgumentParser, name: str, program: str) -> None:
    """Gives a command's parser its examples and exit codes."""
    examples, meant = COMMANDS[name]
    codes = [f"  {code} {word}" for code, word in (_CODES | meant).items() if word != "(never)"]
    told = ["examples:", *(f"  {program} {each}" for each in examples), "", "exit codes:", *codes]
    parser.epilog = "\n".join(told)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
