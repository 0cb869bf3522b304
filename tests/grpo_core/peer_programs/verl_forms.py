"""verl's other policy losses, its rejection masks, its entropy bonus and its other advantages, against ours.

clip_cov and kl_cov choose among the tokens of a micro-batch, and geo_mean divides by its samples: these are compared on
a step that is one micro-batch, which is what ours asks for, too. clip_cov draws by chance: verl is given the generator
that ours draws from, and nothing else of it is changed.
"""

from __future__ import annotations

import itertools
from importlib.metadata import version

import numpy as np
import torch
from common import LENGTHS, LONGEST, SEEDS, Worst, answer, of_tokens, ours, reward_groups, tensors
from used import note, note_advantages
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import (
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl_loss import AGGREGATIONS, CAP, CORRECTIONS, FLOOR, LOSSES
from verl_loss import theirs as theirs_of_loss

from grpo_core.config import LossConfig
from grpo_core.learn.advantages import step_advantages
from grpo_core.learn.losses import Streams, accepted_tokens, policy_loss, token_weights

WHOLE = (slice(0, len(LENGTHS)),)
LIMITED = {"log_ratio_limit": 20.0}
# With shares and bounds at which something is chosen among 32 tokens.
COVARIANCE = {
    "clip_cov_ratio": 0.1,
    "clip_cov_lb": 0.05,
    "clip_cov_ub": 0.3,
    "kl_cov_ratio": 0.1,
    "ppo_kl_coef": 0.7,
}
FORMS = {
    "dppo_tv": {**LIMITED, "clip_low": 0.05, "clip_high": 0.08, "ratio_cap": 1.5},
    "dppo_kl": {**LIMITED, "clip_low": 0.05, "clip_high": 0.08, "ratio_cap": 1.5},
    "dro": {"quadratic": 0.15},
    "clip_cov": {"cov_share": 0.1, "cov_low": 0.05, "cov_high": 0.3, "clip_high": 0.28},
    "kl_cov": {"cov_share": 0.1, "cov_kl": 0.7},
    "geo_mean": {"clip_low": 0.1, "clip_high": 0.2, "aggregation": "sequence"},
}
CLIPS = {
    "dppo_tv": (0.05, 0.08), "dppo_kl": (0.05, 0.08), "clip_cov": (0.2, 0.28), "geo_mean": (0.1, 0.2)
}  # fmt: skip


def actor(loss, **more):
    low, high = CLIPS.get(loss, (0.2, 0.2))
    return ActorConfig(
        strategy="fsdp", rollout_n=3, ppo_micro_batch_size_per_gpu=6, clip_ratio_low=low, clip_ratio_high=high,
        clip_ratio_c=1.5, policy_loss=PolicyLossConfig(loss_mode=loss, dro_beta=0.3, **COVARIANCE), **more,
    )  # fmt: skip


def weights_of(data, correction):
    if not correction:
        return None
    threshold = CAP if correction == "truncate" else f"{FLOOR}_{CAP}"
    weights, _ = compute_rollout_correction_weights(
        data.proximal - data.behaviour, data.mask.long(), "token", threshold
    )
    return weights


def theirs(data, loss, correction):
    """The registered loss, of a step that is one micro-batch."""
    current = data.current.clone().requires_grad_()
    config = actor(loss)
    config.global_batch_info.update(
        dp_size=1,
        batch_num_tokens=int(data.mask.sum()),
        global_batch_size=len(LENGTHS),
        loss_scale_factor=LONGEST,
    )
    permutation = torch.randperm
    torch.randperm = lambda count: permutation(count, generator=torch.Generator().manual_seed(count))
    try:
        value, _ = core_algos.get_policy_loss_fn(loss)(
            old_log_prob=data.proximal, log_prob=current, advantages=of_tokens(data),
            response_mask=data.mask.long(), loss_agg_mode="token-mean", config=config,
            rollout_is_weights=weights_of(data, correction),
        )  # fmt: skip
    finally:
        torch.randperm = permutation
    value.backward()
    return value.detach(), current.grad


def forms(worst):
    for form, correction, seed in itertools.product(FORMS, CORRECTIONS, SEEDS):
        data = tensors(seed)
        settings = {"surrogate": form, **CORRECTIONS[correction], **FORMS[form]}
        pairs = zip(ours(data, settings, parts=WHOLE), theirs(data, form, correction), strict=True)
        worst.add(f"{form} {correction}", *pairs)


def rejections(worst):
    """Which tokens stay: 1 where a single one differs; and the loss of those, with its gradient."""
    levels = [("token", (1, 2, 3)), ("seq_sum", (1, 2, 3)), ("seq_mean", (1, 2, 3)), ("seq_max", (2, 3))]
    for (level, estimators), seed in itertools.product(levels, SEEDS):
        for estimator in estimators:
            data, option = tensors(seed), f"{level}_k{estimator}"
            high, low = (1.3, 0.8) if estimator == 1 else (0.05 if level != "seq_sum" else 0.2, 0.8)
            spec = f"{low}_{high}" if estimator == 1 else f"{high}"
            their, _ = compute_rollout_rejection_mask(
                data.proximal - data.behaviour, data.mask.long(), option, spec
            )
            options = LossConfig(reject=option, reject_low=low, reject_high=high)
            our = accepted_tokens(data.proximal, data.behaviour, data.mask, options)
            assert 0 < int(our.sum()) < int(data.mask.sum()) or level != "token", option
            worst.add(f"reject {option}", (our.double(), their.double()))
            data.mask, settings = their.bool(), {"correction": "none", "clip_high": 0.28, **LOSSES["vanilla"]}
            by_verl = theirs_of_loss(data, loss="vanilla")
            data.mask = our
            worst.add(f"reject {option}", *zip(ours(data, settings), by_verl, strict=True))
            for name in ("reject", "reject_low", "reject_high"):
                note(name, getattr(options, name))


def entropies(worst):
    """`ppo_loss` takes entropy_coeff times the aggregated entropy off the loss."""
    for mode, seed in itertools.product(AGGREGATIONS, SEEDS):
        data = tensors(seed)
        entropy = data.reference.abs()
        mine, theirs = entropy.clone().requires_grad_(), entropy.clone().requires_grad_()
        options = LossConfig(aggregation=AGGREGATIONS[mode], entropy_coefficient=0.01, correction="none")
        weights = token_weights(data.mask, options.aggregation, LONGEST)
        if options.aggregation == "sequence":
            lengths = torch.tensor(LENGTHS)[:, None]
            weights = weights * (lengths / (lengths + 1e-8))
        streams = Streams(data.behaviour, data.proximal)
        nothing = torch.zeros(len(LENGTHS))
        our = policy_loss(data.current, streams, nothing, data.mask, weights, options, entropy_BT=mine).value
        batch = {
            "batch_num_tokens": sum(LENGTHS),
            "global_batch_size": len(LENGTHS),
            "loss_scale_factor": LONGEST,
        }
        their = -0.01 * core_algos.agg_loss(theirs, data.mask.long(), mode, **batch)
        our.backward()
        their.backward()
        worst.add(f"entropy {mode}", (our.detach(), their.detach()), (mine.grad, theirs.grad))
        note("entropy_coefficient", options.entropy_coefficient)


def losses():
    worst = Worst()
    forms(worst)
    rejections(worst)
    entropies(worst)
    return worst


def estimated(name, groups, lengths, **options):
    """Return verl's advantages [N, T] by an estimator's name; the reward is at the last token."""
    flat = torch.tensor(groups).flatten()
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    rewards = torch.zeros(mask.shape)
    rewards[torch.arange(len(flat)), torch.tensor(lengths) - 1] = flat
    index = np.repeat(np.arange(len(groups)), 3)
    config = {"gamma": 1.0, "norm_adv_by_std_in_grpo": options.pop("scaled", True)}
    estimate = core_algos.get_adv_estimator_fn(name)
    if name == "gdpo":
        options["norm_adv_by_std_in_grpo"] = True
        return estimate(rewards, mask.long(), index, **options)[0][:, 0]
    config = type("Config", (dict,), {"__getattr__": dict.get})(config)
    arguments = {"index": index} if name != "reinforce_plus_plus" else {}
    return estimate(rewards, mask.long(), config=config, **arguments)[0][:, 0]


def advantages():
    worst = Worst()
    for seed in SEEDS:
        groups = reward_groups(seed)
        lengths = [3, 9, 1, 7, 2, 4, 5, 8, 6, 3, 1, 9]
        rows = [lengths[place : place + 3] for place in range(0, 12, 3)]

        def ours_of(rewards=groups, rows=rows, scores=(), **settings):
            options = LossConfig(advantage_epsilon=1e-6, **settings)
            note_advantages(options)
            return torch.tensor(step_advantages(rewards, rows, options, scores)).flatten()

        plain = {"advantage_scale": "none"}
        pairs = {
            "opo": (ours_of(advantage_baseline="length", **plain), estimated("opo", groups, lengths)),
            "pass@k": (ours_of(advantage_baseline="best_other"), estimated("grpo_passk", groups, lengths)),
            "pass@k no std": (
                ours_of(advantage_baseline="best_other", **plain),
                estimated("grpo_passk", groups, lengths, scaled=False),
            ),
            "reinforce++": (
                ours_of(advantage_baseline="none", advantage_whiten="tokens", **plain),
                estimated("reinforce_plus_plus", groups, lengths),
            ),
            "reinforce++ baseline": (
                ours_of(advantage_whiten="tokens", **plain),
                estimated("reinforce_plus_plus_baseline", groups, lengths),
            ),
        }  # fmt: skip
        pairs["gdpo"] = gdpo(groups, reward_groups(seed + 100), lengths, rows)
        for name, pair in pairs.items():
            worst.add(name, pair)
    return worst


def gdpo(first, second, lengths, rows):
    """Two rewards, weighed; verl whitens over tokens at last, ours over samples, so whiten it is and no batch scale."""
    flat = [np.asarray(torch.tensor(nested).flatten()) for nested in (first, second)]
    prompts, mask = torch.zeros(12, 1), torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    batch = {"prompts": prompts, "attention_mask": torch.cat([torch.ones(12, 1), mask.long()], 1).long()}
    config = {"gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": [1.0, 0.5]}
    their = estimated(
        "gdpo",
        first,
        lengths,
        config=config,
        batch=batch,
        non_tensor_batch=dict(zip("ab", flat, strict=True)),
    )
    options = LossConfig(advantage_epsilon=1e-6, advantage_rewards="each", advantage_whiten="tokens")
    note_advantages(options)
    actual = step_advantages(first, rows, options, [(1.0, first), (0.5, second)])
    return torch.tensor(actual).flatten(), their


if __name__ == "__main__":
    answer(lambda: {"version": version("verl"), "losses": losses(), "advantages": advantages()})
