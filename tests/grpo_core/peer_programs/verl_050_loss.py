"""The functions of verl 0.5.0 that its `update_policy` calls for each micro-batch, against our loss and advantages.

This version aggregates each micro-batch by itself: the step is given in one. A second program, since a process can hold
one verl only; the older one lies in a folder of its own in the environment.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(sys.prefix) / "verl-0.5.0"))

import torch
import verl
from common import LENGTHS, SEEDS, Worst, answer, our_advantages, ours, reward_groups, tensors
from verl.trainer.ppo import core_algos

AGGREGATIONS = {
    "token-mean": "token",
    "seq-mean-token-mean": "sequence",
    "seq-mean-token-sum": "sequence_sum",
}
KLS = {None: "k3", "kl": "k1", "mse": "k2", "low_var_kl": "k3"}


def theirs(data, aggregation, kl):
    current = data.current.clone().requires_grad_()
    mask = data.mask.double()
    loss, *_ = core_algos.compute_policy_loss(
        data.proximal,
        current,
        data.advantages[:, None] * mask,
        mask,
        cliprange=0.2,
        cliprange_low=0.2,
        cliprange_high=0.28,
        clip_ratio_c=3.0,
        loss_agg_mode=aggregation,
    )
    if kl:
        estimate = core_algos.kl_penalty(current, data.reference, kl)
        loss = loss + 0.04 * core_algos.agg_loss(estimate, mask, aggregation)
    loss.backward()
    return loss.detach(), current.grad


def losses():
    worst = Worst()
    for aggregation, kl, seed in itertools.product(AGGREGATIONS, KLS, SEEDS):
        data = tensors(seed)
        settings = {
            "clip_high": 0.28,
            "dual_clip": 3.0,
            "log_ratio_limit": 20.0,
            "aggregation": AGGREGATIONS[aggregation],
            "kl_coefficient": 0.04 if kl else 0.0,
            "kl_estimator": KLS[kl],
            "correction": "none",
        }
        our = ours(data, settings)
        if aggregation == "token-mean":  # its masked mean adds 1e-8 to the number of tokens
            our = [value * sum(LENGTHS) / (sum(LENGTHS) + 1e-8) for value in our]
        worst.add(aggregation, *zip(our, theirs(data, aggregation, kl), strict=True))
    return worst


def advantages():
    worst = Worst()
    for seed in SEEDS:
        groups = reward_groups(seed)
        rewards = torch.tensor(groups).flatten()
        index = [place // 3 for place in range(len(rewards))]

        def verls(function, rewards=rewards, index=index, **options):
            return function(rewards[:, None], torch.ones(len(rewards), 4), index, **options)[0][:, 0]

        centred = our_advantages(groups, scale="none")
        grpo = core_algos.compute_grpo_outcome_advantage
        worst.add("grpo", (our_advantages(groups, epsilon=1e-6), verls(grpo)))
        worst.add("grpo no std", (centred, verls(grpo, norm_adv_by_std_in_grpo=False)))
        worst.add("rloo", (centred * 3 / 2, verls(core_algos.compute_rloo_outcome_advantage)))
    return worst


def main() -> None:
    answer(lambda: {"version": verl.__version__, "losses": losses(), "advantages": advantages()})


if __name__ == "__main__":
    sys.exit(main())
