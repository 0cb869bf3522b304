"""CFG127: a model that never says its end token, with truncated completions masked: the loss has no token."""

from __future__ import annotations

from typing import Any

from repro.drivers import calls, tiny_updates

END = 2  # the tiny tokenizer's end token


def _lengths(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text) % 7) for text in completions]


def _learns(mitigation: str | None) -> str | None:
    limit = 40 if mitigation == "longer" else 20
    mute = {} if mitigation == "end" else {"generation_kwargs": {"suppress_tokens": [END]}}
    farthest, sampled = tiny_updates.moved(
        _lengths, max_completion_length=limit, mask_truncated_completions=True, **mute
    )
    return None if farthest else f"no weight moved in {tiny_updates.STEPS} steps on {sampled} completions"


REPRO = calls.repro(
    "CFG127",
    "Every completion is cut off at the length limit",
    needs=("trl", "transformers", "torch"),
    modules=("torch", "transformers", "datasets", "tokenizers", "trl.trainer.grpo_trainer"),
    trigger=("never_ends", "generation without the end token, and mask_truncated_completions"),
    call=_learns,
    failure=("", "", ""),
    helps={"end": "generation that may say the end token"},
    fails={"longer": "twice the limit"},
    simulated=("a model that never ends: generation's suppress_tokens has the end token",),
    silent=True,
)
