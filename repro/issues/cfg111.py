"""CFG111: TRL's configuration refuses two options of which one may be set."""

from __future__ import annotations

from repro.drivers import calls


def _configure(mitigation: str | None) -> None:
    both = {"generation_batch_size": 8, "steps_per_generation": 2}
    if mitigation == "one_of_them":
        del both["steps_per_generation"]
    calls.trl_config(**both)


REPRO = calls.repro(
    "CFG111",
    "Options that exclude each other",
    needs=("trl",),
    modules=("trl",),
    trigger=("both", "GRPOConfig(generation_batch_size=8, steps_per_generation=2)"),
    call=_configure,
    failure=("ValueError", "raise ValueError(", "__post_init__"),
    says="can not be both configured",
    helps={"one_of_them": "generation_batch_size alone"},
)
