"""Compare verl's `ppo_loss` and `core_algos` with grpo_core's loss and advantages on the same tensors.

verl's workers call `ppo_loss` for each micro-batch. It finds the policy loss by name, adds the KL, and weighs both by
the totals of the whole batch. verl's code is unchanged.
"""

import functools
import itertools

import numpy as np
import torch
from peer_comparison import (
    LENGTHS,
    LONGEST,
    PARTS,
    SEEDS,
    LargestDifferences,
    compare_dialects,
    our_advantages,
    our_loss,
    per_token_advantages,
    print_results,
    random_step,
    reward_groups,
)
from tensordict import TensorDict
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.utils import tensordict_utils
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

CAP, FLOOR = 1.6, 0.5
AGGREGATIONS = {
    "token-mean": "token",
    "seq-mean-token-mean": "sequence",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "constant",
}
# verl's policy losses, as loss settings of grpo_core.
LOSSES = {
    "vanilla": {"dual_clip": 3.0, "log_ratio_limit": 20.0},
    "gspo": {"ratio": "sequence_token", "log_ratio_limit": 10.0},
    "sapo": {"surrogate": "sapo", "log_ratio_limit": 20.0},
    "cispo": {"surrogate": "cispo", "log_ratio_limit": 20.0},
    "gpg": {"surrogate": "cispo", "clip_high": 0.0},
}
KLS = {None: {}, "kl": {"kl_estimator": "k1"}, "mse": {"kl_estimator": "k2"}, "low_var_kl": {}}
CORRECTIONS = {
    None: {"correction": "none"},
    "truncate": {"correction": "truncate", "correction_cap": CAP},
    "mask": {"correction": "mask", "correction_cap": CAP, "correction_floor": FLOOR},
}


# Clips that the comparison sets; the dialects are compared with the defaults of verl, whose CISPO has a lower bound.
CLIPS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}


def verl_loss(data, *, loss, aggregation="token-mean", kl=None, correction=None, level="token", clips=CLIPS):
    """Return verl's loss and its gradient with respect to the log-probs."""
    current = data.current.clone().requires_grad_()
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=3,
        ppo_micro_batch_size_per_gpu=3,
        **clips,
        policy_loss=PolicyLossConfig(loss_mode=loss),
        loss_agg_mode=aggregation,
        loss_scale_factor=LONGEST,
        use_kl_loss=kl is not None,
        kl_loss_coef=0.04,
        kl_loss_type=kl or "low_var_kl",
    )
    positions = torch.arange(data.mask.shape[1])[None] < torch.tensor(LENGTHS)[:, None]
    fields = {
        "prompts": torch.zeros(len(LENGTHS), 1, dtype=torch.long),
        "responses": torch.zeros(data.mask.shape, dtype=torch.long),
        "attention_mask": torch.nn.functional.pad(positions.long(), (1, 0), value=1),
        "response_mask": data.mask.long(),
        "old_log_probs": data.proximal,
        "ref_log_prob": data.reference,
        "advantages": per_token_advantages(data),
    }
    if correction:
        threshold = CAP if correction == "truncate" else f"{FLOOR}_{CAP}"
        fields["rollout_is_weights"], _ = compute_rollout_correction_weights(
            data.proximal - data.behaviour, data.mask.long(), level, threshold
        )
    total = torch.zeros(())
    for rows in PARTS:
        batch = TensorDict(
            {name: field[rows] for name, field in fields.items()}, batch_size=rows.stop - rows.start
        )
        tensordict_utils.assign_non_tensor(
            batch, dp_size=1, batch_num_tokens=int(data.mask.sum()), global_batch_size=len(LENGTHS)
        )
        # The model output has no padding; each position has the log-prob of the next token.
        flat = torch.cat(
            [
                torch.cat([line[:length], torch.zeros(1)])
                for line, length in zip(current[rows], LENGTHS[rows], strict=True)
            ]
        )
        part, _ = ppo_loss(config, {"log_probs": flat}, batch)
        part.backward()
        total = total + part.detach()
    return total, current.grad


def loss_differences():
    """Return the largest difference for each policy loss and aggregation, and beyond the clipping limits."""
    worst = LargestDifferences()
    for loss, aggregation, kl, correction, level in itertools.product(
        LOSSES, AGGREGATIONS, KLS, CORRECTIONS, ("token", "sequence")
    ):
        if loss == "sapo" and aggregation != "seq-mean-token-mean":
            continue
        settings = {
            "clip_high": 0.28,
            "aggregation": AGGREGATIONS[aggregation],
            "kl_coefficient": 0.04 if kl else 0.0,
            "correction_level": level,
            **KLS[kl],
            **CORRECTIONS[correction],
            **LOSSES[loss],
        }
        for seed in SEEDS:
            data = random_step(seed)
            their = verl_loss(
                data, loss=loss, aggregation=aggregation, kl=kl, correction=correction, level=level
            )
            if loss == "gpg":  # GPG has no ratio, which equals a proximal policy that is the current one
                if correction:
                    continue
                data.proximal = data.current
            our = our_loss(data, settings, length_epsilon=1e-8)
            worst.add(f"{loss} {aggregation}", *zip(our, their, strict=True))
    for seed in SEEDS:
        worst.add("vanilla far", *zip(*beyond_clipping_limits(seed), strict=True))
    return worst


def beyond_clipping_limits(seed):
    """Return grpo_core's and verl's losses of log-probs so far apart that verl clamps ratio, KL and its log-ratio."""
    data, generator = random_step(seed), torch.Generator().manual_seed(seed)
    data.proximal = data.current + 15 * torch.randn(data.current.shape, generator=generator)
    data.reference = data.current + 15 * torch.randn(data.current.shape, generator=generator)
    limits = {"log_ratio_limit": 20.0, "kl_log_ratio_limit": 20.0, "kl_limit": 10.0}
    settings = {"clip_high": 0.28, "dual_clip": 3.0, "correction": "none", "kl_coefficient": 0.04, **limits}
    return our_loss(data, settings), verl_loss(data, loss="vanilla", kl="low_var_kl")


def verl_advantages(groups, function, **options):
    """Return the advantages that verl's estimator computes."""
    tokens = torch.zeros(3 * len(groups), 4)
    tokens[:, 2] = torch.tensor(groups).flatten()
    index = np.repeat(np.arange(len(groups)), 3)
    return function(tokens, torch.ones(tokens.shape), index, **options)[0][:, 0]


def advantage_differences():
    """Return the largest difference per advantage estimator."""
    worst = LargestDifferences()
    for seed in SEEDS:
        groups = reward_groups(seed)
        verls = functools.partial(verl_advantages, groups)
        centred = our_advantages(groups, scale="none")
        differences = our_advantages(groups, baseline="leave_one_out", scale="none")
        for name in ("grpo", "grpo_vectorized"):
            estimate = core_algos.get_adv_estimator_fn(name)
            case = name.replace("_", " ")
            worst.add(case, (our_advantages(groups, epsilon=1e-6), verls(estimate)))
            worst.add(f"{case} no std", (centred, verls(estimate, norm_adv_by_std_in_grpo=False)))
        worst.add("rloo", (differences, verls(core_algos.compute_rloo_outcome_advantage)))
        worst.add(
            "rloo vectorized", (differences, verls(core_algos.compute_rloo_vectorized_outcome_advantage))
        )
    return worst


def default_dialect_differences():
    """Return the differences between grpo_core's verl dialects and verl's defaults."""
    return compare_dialects(
        "verl-0.9.1",
        lambda data, form: verl_loss(data, loss="vanilla" if form == "grpo" else form, clips={}),
        lambda groups: verl_advantages(groups, core_algos.get_adv_estimator_fn("grpo")),
        length_epsilon=1e-8,
    )


if __name__ == "__main__":
    print_results("verl", loss_differences, advantage_differences, default_dialect_differences)
