"""Compare ms-swift's loss and `compute_advantages` with grpo_core's on the same tensors.

The loss is ms-swift's unchanged `GRPOTrainer._compute_loss_and_metrics`. The trainer is created without `__init__`, and
its forward pass is replaced by prepared log-probs.
"""

import itertools
from types import SimpleNamespace

import torch
from peer_comparison import (
    LENGTHS,
    LONGEST,
    PARTS,
    SEEDS,
    Accelerator,
    LargestDifferences,
    compare_dialects,
    our_advantages,
    our_loss,
    print_results,
    random_step,
    reward_groups,
)

CAP = 1.6
# ms-swift's loss types, as loss settings of grpo_core.
LOSSES = {
    "grpo": {"aggregation": "sequence"},
    "bnpo": {"aggregation": "token"},
    "dr_grpo": {"aggregation": "constant"},
    "dapo": {"aggregation": "token"},
    "cispo": {"aggregation": "token", "surrogate": "cispo", "clip_low": 1.0, "clip_high": 1.0},
    "sapo": {"aggregation": "sequence", "surrogate": "sapo"},
}


def swift_loss(data, *, loss, level="token", beta=0.04, delta=None, correction=None, clip_high=None):
    """Return ms-swift's loss and its gradient with respect to the log-probs."""
    from swift.rl_core.data import GRPOBatch
    from swift.rlhf_trainers.grpo_trainer import GRPOTrainer

    trainer = GRPOTrainer.__new__(GRPOTrainer)
    trainer.__dict__.update(
        _has_teacher=False,
        _metrics={"train": {}},
        accelerator=Accelerator(),
        args=SimpleNamespace(delta=delta, gradient_accumulation_steps=len(PARTS)),
        beta=beta,
        chord_sft_iterator=None,
        compute_entropy=False,
        compute_loss_func=None,
        disable_rollout_importance_sampling=False,
        epsilon_low=0.2,
        epsilon_high=clip_high or (2.0 if loss == "cispo" else 0.28),
        importance_sampling_level=level,
        kl_in_reward=False,
        log_rollout_offpolicy_metrics=False,
        loss_type=loss,
        max_completion_length=LONGEST,
        model=SimpleNamespace(training=True),
        model_accepts_loss_kwargs=False,
        off_policy_sequence_mask_delta=None,
        overlong_filter=False,
        rollout_importance_sampling_mode=correction,
        rollout_importance_sampling_threshold=CAP,
        sdar_loss_coef=0.0,
        tau_pos=1.0,
        tau_neg=1.05,
    )
    current = data.current.clone().requires_grad_()
    # A loss type that normalises per micro-batch gets the whole step as one micro-batch.
    parts = PARTS if loss in ("dapo", "cispo") else (slice(0, len(LENGTHS)),)
    trainer.current_gradient_accumulation_steps = len(parts)
    total = torch.zeros(())
    for rows in parts:
        mask = data.mask[rows]
        trainer._get_per_token_logps_and_entropies = lambda *_, rows=rows, **__: (current[rows], None)
        batch = GRPOBatch(
            completion_mask=mask,
            truncated_mask=torch.zeros(len(mask), dtype=torch.bool),
            seq_lengths=mask.sum(1),
            old_per_token_logps=data.proximal[rows],
            ref_per_token_logps=data.reference[rows],
            rollout_per_token_logps=data.behaviour[rows],
            advantages=data.advantages[rows, None].expand(mask.shape),
            num_items_in_batch=data.mask.sum(),
        )
        part, _ = trainer._compute_loss_and_metrics(None, {}, batch)
        part = part / len(parts)  # transformers' share of a micro-batch
        part.backward()
        total = total + part.detach()
    return total, current.grad


def loss_differences():
    """Return the largest difference per loss type."""
    worst = LargestDifferences()
    for loss, level, beta, delta, correction in itertools.product(
        LOSSES,
        ("token", "sequence", "sequence_token"),
        (0.0, 0.04),
        (None, 1.5),
        (None, "token_truncate", "token_mask"),
    ):
        if beta and correction:  # ms-swift's correction also weighs the KL
            continue
        settings = {
            "ratio": level,
            "clip_high": 0.28,
            "ratio_cap": delta or 0.0,
            "kl_coefficient": beta,
            "correction": (correction or "token_none").removeprefix("token_"),
            "correction_cap": CAP,
            **LOSSES[loss],
        }
        for seed in SEEDS:
            data = random_step(seed)
            their = swift_loss(data, loss=loss, level=level, beta=beta, delta=delta, correction=correction)
            worst.add(loss, *zip(our_loss(data, settings), their, strict=True))
    return worst


def advantage_differences():
    """Return the largest difference per advantage estimator."""
    from swift.rl_core.advantage import compute_advantages

    worst = LargestDifferences()
    for seed in SEEDS:
        groups = reward_groups(seed)
        rewards = torch.tensor(groups).flatten()[:, None]
        centred = our_advantages(groups, scale="none")
        differences = our_advantages(groups, baseline="leave_one_out", scale="none")
        for name, our, options in (
            ("grpo", our_advantages(groups), {}),
            ("grpo no std", centred, {"scale_rewards": "none"}),
            ("rloo", differences, {"advantage_estimator": "rloo", "scale_rewards": "none"}),
        ):
            worst.add(name, (our, compute_advantages(rewards, torch.ones(1), 3, **options)[0]))
    return worst


def default_dialect_differences():
    """Return the differences between grpo_core's ms-swift dialects and ms-swift's defaults; CISPO's cap is set to 5."""
    from swift.rl_core.advantage import compute_advantages

    return compare_dialects(
        "ms-swift-4.6.0",
        lambda data, form: swift_loss(data, loss=form, clip_high=5.0 if form == "cispo" else 0.2),
        lambda groups: compute_advantages(torch.tensor(groups).flatten()[:, None], torch.ones(1), 3)[0],
    )


if __name__ == "__main__":
    print_results("ms-swift", loss_differences, advantage_differences, default_dialect_differences)
