"""CFG128: a learning rate of 0, which TRL takes without a word: rewards are logged, and nothing is learned."""

from __future__ import annotations

from typing import Any

from repro.drivers import calls, tiny_updates


def _lengths(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text) % 7) for text in completions]


def _learns(mitigation: str | None) -> str | None:
    farthest, sampled = tiny_updates.moved(_lengths, learning_rate=0.1 if mitigation == "rate" else 0.0)
    return None if farthest else f"no weight moved in {tiny_updates.STEPS} steps on {sampled} completions"


REPRO = calls.repro(
    "CFG128",
    "Weights that do not move",
    needs=("trl", "transformers", "torch"),
    modules=("torch", "transformers", "datasets", "tokenizers", "trl.trainer.grpo_trainer"),
    trigger=("rate_zero", "GRPOConfig(learning_rate=0.0), and rewards that differ"),
    call=_learns,
    failure=("", "", ""),
    helps={"rate": "learning_rate=0.1"},
    untried={"trained": calls.SEARCHES},
    silent=True,
)
