"""REW005: a reward function that draws: TRL trains on numbers that it does not give again."""

from __future__ import annotations

import random
from typing import Any

from repro.drivers import calls


def _by_chance(completions: list[str], **_: Any) -> list[float]:
    return [random.random() for _ in completions]


def _steady(completions: list[str], **_: Any) -> list[float]:
    return [float(sum(map(ord, text)) % 7) for text in completions]


def _again(mitigation: str | None) -> str | None:
    function = _steady if mitigation == "steady" else _by_chance
    told: list[tuple[list[str], list[float]]] = []

    def recorded(completions: list[str], **more: Any) -> list[float]:
        rewards = function(completions=completions, **more)
        told.append((list(completions), list(rewards)))
        return rewards

    calls.trl_step(recorded)
    unlike = sum(function(completions=texts) != rewards for texts, rewards in told)
    return f"{unlike} of {len(told)} batches were worth something else when asked again" if unlike else None


REPRO = calls.repro(
    "REW005",
    "The recorded rewards are not what the reward function says",
    needs=("trl", "transformers", "torch"),
    modules=("torch", "transformers", "datasets", "tokenizers", "trl.trainer.grpo_trainer"),
    trigger=("chance", "a step of GRPOTrainer with a reward function that draws, and the function once more"),
    call=_again,
    failure=("", "", ""),
    helps={"steady": "a function of the completion alone"},
    untried={"column": "the function of this trigger reads no column"},
    silent=True,
)
