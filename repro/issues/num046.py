"""NUM046: every completion is cut off, and TRL is told to mask what is cut off: rewards differ, no weight moves."""

from __future__ import annotations

from typing import Any

from repro.drivers import calls, tiny_updates

# Without its end token the tiny model writes on until the limit.
_ENDLESS = {"generation_kwargs": {"suppress_tokens": [2]}}


def _lengths(completions: list[str], **_: Any) -> list[float]:
    return [float(sum(map(ord, text)) % 7) for text in completions]


def _learns(mitigation: str | None) -> str | None:
    masked = mitigation != "unmasked"
    farthest, sampled = tiny_updates.moved(_lengths, mask_truncated_completions=masked, **_ENDLESS)
    return None if farthest else f"no weight moved in {tiny_updates.STEPS} steps on {sampled} completions"


REPRO = calls.repro(
    "NUM046",
    "Rewards differ, and the gradient is zero",
    needs=("trl", "transformers", "torch"),
    modules=("torch", "transformers", "datasets", "tokenizers", "trl.trainer.grpo_trainer"),
    trigger=("all_masked", "mask_truncated_completions=True where every completion reaches the limit"),
    call=_learns,
    failure=("", "", ""),
    helps={"unmasked": "mask_truncated_completions=False"},
    untried={"reach": calls.SEARCHES},
    silent=True,
)
