"""CFG110: TRL's configuration refuses a group of one completion."""

from __future__ import annotations

from repro.drivers import calls


def _configure(mitigation: str | None) -> None:
    group = 8 if mitigation == "a_group" else 1
    calls.trl_config(num_generations=group, per_device_train_batch_size=8)


REPRO = calls.repro(
    "CFG110",
    "A group of one completion",
    needs=("trl",),
    modules=("trl",),
    trigger=("one", "GRPOConfig(num_generations=1)"),
    call=_configure,
    failure=("ValueError", "raise ValueError(", "__post_init__"),
    says="at least 2 generations",
    helps={"a_group": "num_generations=8"},
)
