"""The optimal token baseline: at each place of a group's completions, rewards weighed by what their gradients cost.

As `compute_multi_turn_optimal_token_baseline_advantage` of verl 0.9.1 has it, which is `compute_optimal_token_baseline_
advantage` where every token was sampled: places are counted among the tokens that the model sampled.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from grpo_core.learn.logprobs import logits_memory, logprobs_of_chunk, slices
from grpo_core.learn.loss import importance_weights
from grpo_core.turns.spoken import TokenSample, plain, sampled
from grpo_core.types import Group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_core.learn.policy import Policy
    from grpo_core.machine.world import World
    from grpo_core.types import Sample
    from grpo_core.wide import WideConfig

_EPSILON = 1e-8


def optimal_token(rewards: Sequence[float], energies: Sequence[Sequence[float]]) -> list[list[float]]:
    """Advantages of the tokens of one group.

    Args:
        rewards: One a sample; each token's return.
        energies: For each sample's sampled tokens, |gradient of its log-prob in the logits|^2.

    Returns:
        One list a sample, one number a token; the last tokens of the only longest one keep its reward.

    >>> optimal_token([1.0, 0.0], [[1.0, 1.0], [1.0]])
    [[0.5000000025, 1.0], [-0.4999999975]]
    """
    if len(rewards) == 1:
        return [[rewards[0]] * len(energies[0])]
    upto = [list(accumulate(row)) for row in energies]
    second, longest = sorted(map(len, upto))[-2:]
    baselines = []
    for place in range(longest):
        there = [(reward, row[place]) for reward, row in zip(rewards, upto, strict=True) if place < len(row)]
        weighed = sum(reward * weight for reward, weight in there)
        found = weighed / (sum(weight for _, weight in there) + _EPSILON)
        baselines.append(found if place < second else 0.0)
    return [
        [reward - baselines[place] for place in range(len(row))]
        for reward, row in zip(rewards, upto, strict=True)
    ]


def optimally_judged(
    groups: Sequence[Group], policy: Policy, config: WideConfig, world: World
) -> list[Group]:
    """The groups with an advantage for each token."""
    samples = [sample for group in groups for sample in group.samples]
    costs = iter(_energies(samples, policy, config, world))
    found = []
    for group in groups:
        rows = [next(costs) for _ in group.samples]
        judged = zip(group.samples, optimal_token(group.rewards, rows), strict=True)
        found.append(Group(group.prompt, tuple(_with(plain(sample), row) for sample, row in judged)))
    return found


def _with(sample: Sample, advantages: Sequence[float]) -> TokenSample:
    rest = iter(advantages)
    own = tuple(next(rest) if mark else 0.0 for mark in sampled(sample.completion))
    mean = sum(advantages) / max(len(advantages), 1)
    return TokenSample(**{**vars(sample), "advantage": mean}, advantages=own)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _energies(
    samples: Sequence[Sample], policy: Policy, config: WideConfig, world: World
) -> list[list[float]]:
    """1 - 2 p + the sum of all p^2, of each sampled token; times the square of its correction's weight."""
    batch = policy.make_batch(samples, policy.device)
    rows, found = batch.rows(world.share(len(samples))), list[list[float]]()
    usual, policy.module.head = policy.module.head, logprobs_and_squares
    for part in slices(len(rows.lengths_B), config.train.micro_batch):
        some = rows.rows(part)
        logprobs, squares = policy.logprobs(some, config.sampling.temperature)
        energy = (1 - 2 * logprobs.double().exp() + squares.double()).clamp(min=0)
        if config.loss.correction != "none":
            energy = energy * importance_weights(logprobs, some.behaviour_BT, some.mask_BT, config.loss) ** 2
        found += [row[mask].tolist() for row, mask in zip(energy, some.mask_BT, strict=True)]
    policy.module.head = usual
    return [row for share in world.gather(found) for row in share]


def logprobs_and_squares(
    hidden_NH: torch.Tensor, weight_VH: torch.Tensor, ids_N: torch.Tensor, *, temperature: float, chunk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs [N] as `chunked_logprobs` has them, and sums of squared probabilities [N]; no gradient."""
    values = hidden_NH.new_zeros(2, len(ids_N), dtype=torch.promote_types(weight_VH.dtype, torch.float32))
    memory = logits_memory(hidden_NH, weight_VH, chunk)
    for part in slices(len(ids_N), chunk):
        everything, spare = logprobs_of_chunk(hidden_NH[part], weight_VH, temperature, memory)
        values[0, part] = everything.gather(-1, ids_N[part, None])[:, 0]
        torch.sum(torch.exp(everything, out=spare).square_(), -1, out=values[1, part])
    return values[0], values[1]
