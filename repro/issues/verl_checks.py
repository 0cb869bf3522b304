"""Reproduce refusals by unmodified verl's own checks of configuration, reward names and prompt lengths."""

from __future__ import annotations

from functools import partial

from repro.drivers import calls

_repro = partial(calls.repro, needs=("verl",))


@_repro("CFG019", modules=("verl.workers.config.actor",), raises="AssertionError: Please set at least one of")
def cfg019_none_set(mitigation: str | None) -> None:
    """Configure verl's actor without a micro-batch size."""
    from verl.workers.config.actor import FSDPActorConfig

    size = 4 if mitigation == "per_gpu" else None
    FSDPActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=size, use_dynamic_bsz=False)


@_repro(
    "REW003",
    modules=("verl.utils.reward_score",),
    raises="NotImplementedError: Reward function is not implemented",
)
def rew003_data_source(mitigation: str | None) -> None:
    """Compute a reward for a dataset whose data_source verl does not have."""
    from verl.utils.reward_score import default_compute_score

    source = "openai/gsm8k" if mitigation == "name" else "/data/my_own_set"
    default_compute_score(source, "so it is #### 4", "4")


@_repro(
    "TOK017",
    modules=("verl.utils.torch_functional",),
    raises="NotImplementedError: is larger than max_length",
    simulated=("verl's data set around it: a row of ours",),
)
def tok017_nine_of_four(mitigation: str | None) -> None:
    """Pad a prompt of nine tokens to a maximum of four, without truncation."""
    import torch
    from verl.utils.torch_functional import postprocess_data

    row = torch.ones(1, 9).long()
    length = 16 if mitigation == "room" else 4
    truncation = "left" if mitigation == "cut" else "error"
    postprocess_data(row, row, max_length=length, pad_token_id=0, truncation=truncation)
