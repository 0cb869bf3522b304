"""Repros of failures in verl's own checks."""

from __future__ import annotations

from repro.drivers import calls


@calls.repro(
    "CFG019",
    needs=("verl",),
    modules=("verl.workers.config.actor",),
    trigger="none_set",
    failure=(
        "AssertionError",
        "assert not (self.ppo_micro_batch_size is None and self.ppo_micro_batch_size_per_gpu is None)",
        "__post_init__",
    ),
    changes={"per_gpu": "ppo_micro_batch_size_per_gpu=4"},
)
def cfg019_none_set(mitigation: str | None) -> None:
    """Verl's actor configuration refuses a run that names no micro-batch size."""
    from verl.workers.config.actor import FSDPActorConfig

    size = 4 if mitigation == "per_gpu" else None
    FSDPActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=size, use_dynamic_bsz=False)


@calls.repro(
    "REW003",
    needs=("verl",),
    modules=("verl.utils.reward_score",),
    trigger="data_source",
    failure=(
        "NotImplementedError",
        'raise NotImplementedError(f"Reward function is not implemented for {data_source=}")',
        "default_compute_score",
    ),
    changes={"name": "a data_source that verl knows"},
    untried={"weights": "it is about reward_weights, of which there are none here"},
)
def rew003_data_source(mitigation: str | None) -> None:
    """Verl looks for a reward by the data set's data_source, and has none of that name."""
    from verl.utils.reward_score import default_compute_score

    source = "openai/gsm8k" if mitigation == "name" else "/data/my_own_set"
    default_compute_score(source, "so it is #### 4", "4")


@calls.repro(
    "TOK017",
    needs=("verl",),
    modules=("verl.utils.torch_functional",),
    trigger="nine_of_four",
    failure=(
        "NotImplementedError",
        'raise NotImplementedError(f"{sequence_length=} is larger than {max_length=}")',
        "postprocess_data",
    ),
    changes={"room": "max_length=16", "cut": 'truncation="left"'},
    simulated=("verl's data set around it: a row of ours",),
)
def tok017_nine_of_four(mitigation: str | None) -> None:
    """Verl refuses a too long prompt, unless truncation is configured."""
    import torch
    from verl.utils.torch_functional import postprocess_data

    postprocess_data(
        torch.ones(1, 9).long(),
        torch.ones(1, 9).long(),
        max_length=16 if mitigation == "room" else 4,
        pad_token_id=0,
        truncation="left" if mitigation == "cut" else "error",
    )
