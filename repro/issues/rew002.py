"""REW002: TRL calls a reward function by keyword, and the function takes completions alone."""

from __future__ import annotations

from typing import Any

from repro.drivers import calls, tiny_trl


def _narrow(completions: list[Any]) -> list[float]:
    return [0.0] * len(completions)


def _wide(completions: list[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)


def _train(mitigation: str | None) -> None:
    calls.trl_step(_wide if mitigation == "kwargs" else _narrow)


REPRO = calls.repro(
    "REW002",
    "A reward function is called with other arguments than it takes",
    needs=("trl",),
    modules=tiny_trl.MODULES,
    trigger=("narrow", "a step of GRPOTrainer with `def reward(completions)`"),
    call=_train,
    failure=("TypeError", "output_reward_func = reward_func(", ""),
    says="got an unexpected keyword argument",
    helps={"kwargs": "def reward(completions, **kwargs)"},
    untried={"columns": "no column is missing here"},
)
