"""CFG019: verl's actor configuration refuses a run that names no micro-batch size."""

from __future__ import annotations

from repro.drivers import calls


def _configure(mitigation: str | None) -> None:
    from verl.workers.config.actor import FSDPActorConfig

    size = 4 if mitigation == "per_gpu" else None
    FSDPActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=size, use_dynamic_bsz=False)


REPRO = calls.repro(
    "CFG019",
    "verl: no micro-batch size, or two of them",
    needs=("verl",),
    modules=("verl.workers.config.actor",),
    trigger=("none_set", "FSDPActorConfig without a micro-batch size"),
    call=_configure,
    failure=(
        "AssertionError",
        "assert not (self.ppo_micro_batch_size is None and self.ppo_micro_batch_size_per_gpu is None)",
        "__post_init__",
    ),
    helps={"per_gpu": "ppo_micro_batch_size_per_gpu=4"},
)
