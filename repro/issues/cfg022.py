"""CFG022: a reward function returns one number for a batch of completions."""

from __future__ import annotations

from typing import Any

from repro.drivers import calls, tiny_trl


def _one(completions: list[Any], **_: Any) -> list[float]:
    return [0.0] if completions else []


def _each(completions: list[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)


def _train(mitigation: str | None) -> None:
    calls.trl_step(_each if mitigation == "one_each" else _one)


REPRO = calls.repro(
    "CFG022",
    "A reward function returns another number of rewards",
    needs=("trl",),
    modules=tiny_trl.MODULES,
    trigger=(
        "one_for_all",
        "a step of GRPOTrainer with a reward function that returns one reward for a batch",
    ),
    call=_train,
    failure=("ValueError", "raise ValueError(", ""),
    says="rewards, but",
    helps={"one_each": "one reward for each completion"},
)
