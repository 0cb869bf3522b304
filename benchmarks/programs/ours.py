"""Train the tiny model with our trainer, one step a turn: `ours.py FOLDER [--section.key=VALUE ...]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import Turns
from grpo_core.run import train
from grpo_core.settings import load

folder, overrides = Path(sys.argv[1]), sys.argv[2:]
settings = {
    "model.path": folder / "model", "model.max_length": 512,
    "data.path": folder / "prompts.jsonl", "data.shuffle": "false",
    "reward.functions": f"{Path(__file__).parent / 'tiny.py'}:even_words",
    "train.steps": 10_000, "train.prompts_per_step": 2, "sampling.group_size": 8, "sampling.max_tokens": 64,
    "checkpoint.every": 0, "output.completions_every": 0,
    "output.dir": folder, "output.name": "ours",
}  # fmt: skip
turns = Turns()


def report(entry: dict[str, Any]) -> None:
    """Report the step's tokens and times, and wait for the next request."""
    times = {key: value for key, value in entry.items() if key.startswith("time/")}
    turns.end_turn(tokens=entry["completions/tokens"], **times)


turns.begin()
document = train(load(None, [f"--{key}={value}" for key, value in settings.items()] + overrides), report)
sys.exit(str(document["error"]))
