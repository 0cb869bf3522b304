"""verl's `response_mask` with holes, where tools or users speak, and advantages of tokens, against ours.

Its losses are given such masks and advantages by their own arguments, and the step's tokens are counted as its trainer
counts them: by the mask.
"""

from __future__ import annotations

import itertools
from importlib.metadata import version

import numpy as np
import torch
from common import SEEDS, Worst, answer, ours, reward_groups, spoken
from used import left_out, note
from verl.trainer.ppo import core_algos
from verl_forms import CORRECTIONS, FORMS, WHOLE
from verl_forms import theirs as theirs_of_form
from verl_loss import AGGREGATIONS, KLS, LOSSES, theirs

from grpo_core.learn.forms.optimal import optimal_token


def losses():
    worst = Worst()
    for loss, aggregation, kl, correction, level, by_token, seed in itertools.product(
        LOSSES, AGGREGATIONS, KLS, CORRECTIONS, ("token", "sequence"), (False, True), SEEDS
    ):
        if left_out("verl's gpg where a tool speaks", loss == "gpg"):
            continue
        if left_out("verl's sapo", loss == "sapo" and aggregation != "seq-mean-token-mean"):
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
        data = spoken(seed, by_token=by_token)
        their = theirs(data, loss=loss, aggregation=aggregation, kl=kl, correction=correction, level=level)
        worst.add(
            f"{loss} {aggregation}", *zip(ours(data, settings, length_epsilon=1e-8), their, strict=True)
        )
    for form, correction, by_token, seed in itertools.product(FORMS, CORRECTIONS, (False, True), SEEDS):
        if left_out("verl's geo_mean with an advantage a token", form == "geo_mean" and by_token):
            continue
        data = spoken(seed, by_token=by_token)
        settings = {"surrogate": form, **CORRECTIONS[correction], **FORMS[form]}
        their = theirs_of_form(data, form, correction)
        worst.add(f"{form} {correction}", *zip(ours(data, settings, parts=WHOLE), their, strict=True))
    return worst


def advantages():
    """The optimal token baseline, with and without weights of a correction, in completions with and without holes."""
    worst = Worst()
    for seed, corrected, holes in itertools.product(SEEDS, (False, True), (False, True)):
        groups, generator = reward_groups(seed), torch.Generator().manual_seed(seed)
        lengths = torch.tensor([3, 9, 1, 7, 2, 4, 5, 8, 6, 3, 3, 9])
        mask = torch.arange(9)[None] < lengths[:, None]
        if holes:
            mask &= torch.rand(mask.shape, generator=generator) < 0.7
            mask[:, 0] = True
        logprobs = -3 * torch.rand(mask.shape, generator=generator)
        squares = torch.rand(mask.shape, generator=generator)
        weights = 2 * torch.rand(mask.shape, generator=generator) if corrected else None
        rewards = torch.zeros(mask.shape)
        last = torch.where(mask, torch.arange(9), 0).max(1).values
        rewards[torch.arange(12), last] = torch.tensor(groups).flatten()
        name = ("tir_" if holes else "") + "optimal_token_baseline"
        their, _ = core_algos.get_adv_estimator_fn(name)(
            rewards, mask.long(), np.repeat(np.arange(4), 3), logprobs, squares, rollout_is_weights=weights
        )
        energies = (1 - 2 * logprobs.exp() + squares) * (1 if weights is None else weights**2)
        rows = [energies[row][mask[row]].tolist() for row in range(12)]
        our = [
            value
            for place, group in enumerate(groups)
            for row in optimal_token(group, rows[3 * place : 3 * place + 3])
            for value in row
        ]
        worst.add(name, (torch.tensor(our), their[mask]))
        note("advantage_baseline", "optimal_token")
    return worst


if __name__ == "__main__":
    answer(lambda: {"version": version("verl"), "losses": losses(), "advantages": advantages()})
