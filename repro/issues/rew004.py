"""REW004: a task that is never solved: every group has one reward, and no step learns."""

from __future__ import annotations

from typing import Any

from repro.drivers import calls, tiny_updates


def _never(completions: list[str], **_: Any) -> list[float]:
    """No completion of letters has the number that is asked for."""
    return [float("42" in text) for text in completions]


def _sometimes(completions: list[str], **_: Any) -> list[float]:
    return [float("a" in text or "b" in text) for text in completions]


def _learns(mitigation: str | None) -> str | None:
    farthest, sampled = tiny_updates.moved(_sometimes if mitigation == "task" else _never)
    return None if farthest else f"no weight moved in {tiny_updates.STEPS} steps on {sampled} completions"


REPRO = calls.repro(
    "REW004",
    "No group has rewards that differ",
    needs=("trl", "transformers", "torch"),
    modules=("torch", "transformers", "datasets", "tokenizers", "trl.trainer.grpo_trainer"),
    trigger=("never_solved", "a reward function that is 0 for each completion of every group"),
    call=_learns,
    failure=("", "", ""),
    helps={"task": "a task that some completions solve"},
    untried={"again": calls.SEARCHES},
    silent=True,
)
