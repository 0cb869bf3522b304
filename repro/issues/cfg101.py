"""CFG101: TRL's configuration refuses a generation that does not hold whole groups."""

from __future__ import annotations

from repro.drivers import calls


def _configure(mitigation: str | None) -> None:
    group = 3 if mitigation == "group_divides" else 8
    calls.trl_config(num_generations=group, per_device_train_batch_size=3)


REPRO = calls.repro(
    "CFG101",
    "A generation does not hold whole groups",
    needs=("trl",),
    modules=("trl",),
    trigger=("sizes", "GRPOConfig: groups of 8, 3 completions a generation"),
    call=_configure,
    failure=("ValueError", "raise ValueError(", "__post_init__"),
    says="must be divisible by num_generations",
    helps={"group_divides": "groups of 3"},
)
