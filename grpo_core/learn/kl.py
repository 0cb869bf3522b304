"""The KL to the model before training: estimated per token, in the loss or taken off the reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from grpo_core.learn.logprobs import slices
from grpo_core.metrics import mean

if TYPE_CHECKING:
    from grpo_core.config import Config, LossConfig
    from grpo_core.learn.batch import Batch
    from grpo_core.learn.policy import Policy
    from grpo_core.machine.world import World
    from grpo_core.types import Group


def kl_estimate(
    current: torch.Tensor,
    reference: torch.Tensor,
    estimator: str,
    *,
    log_ratio_limit: float = 0.0,
    limit: float = 0.0,
) -> torch.Tensor:
    """Per-token estimate of KL(current || reference) on tokens sampled from current, by Schulman's names.

    k1 is unbiased and may be negative; k2 is biased and positive; k3 is unbiased and positive. Unbiased
    holds for the value: the gradient of k1 used as a loss is zero in expectation.

    A limit clamps the log-ratio, or the estimate, and where it binds there is no gradient; 0: none. verl, EasyR1 and
    ms-swift limit their k3 to 20 and 10, NeMo-RL every estimator.
    """
    log_ratio = reference - current
    if log_ratio_limit:
        log_ratio = log_ratio.clamp(-log_ratio_limit, log_ratio_limit)
    estimate = _schulman(log_ratio, estimator)
    return estimate.clamp(-limit, limit) if limit else estimate


def _schulman(log_ratio: torch.Tensor, estimator: str) -> torch.Tensor:
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio**2
    return log_ratio.exp() - log_ratio - 1


def completion_kl(
    proximal_BT: torch.Tensor, reference_BT: torch.Tensor, mask_BT: torch.Tensor, options: LossConfig
) -> torch.Tensor:
    """The KL estimate against the reference, summed over each completion. [B], no gradient.

    With `kl_placement = "reward"`, `kl_coefficient` times this is taken off a completion's reward before advantages
    are computed, as `apply_kl_penalty` of verl 0.9.1 and `kl_in_reward` of ms-swift 4.6.0 do.
    """
    kl = masked_kl(proximal_BT.detach(), reference_BT.detach(), mask_BT, options)
    return (kl * mask_BT).sum(1)


def masked_kl(
    current: torch.Tensor, reference: torch.Tensor, mask_BT: torch.Tensor, options: LossConfig
) -> torch.Tensor:
    """The estimate as configured, per token; what stands behind a completion's end has no influence, be it NaN."""
    zeros = torch.zeros_like(current)
    return kl_estimate(
        torch.where(mask_BT, current, zeros),
        torch.where(mask_BT, reference, zeros),
        options.kl_estimator,
        log_ratio_limit=options.kl_log_ratio_limit,
        limit=options.kl_limit,
    )


def add_kl(
    per_token: torch.Tensor,
    current: torch.Tensor,
    reference: torch.Tensor,
    ratio: torch.Tensor,
    mask_BT: torch.Tensor,
    options: LossConfig,
) -> tuple[torch.Tensor, float]:
    """A loss per token with the KL to the reference, and the KL's sum."""
    kl = masked_kl(current, reference, mask_BT, options)
    if options.kl_placement == "loss":
        per_token = per_token + options.kl_coefficient * (kl * ratio if options.kl_importance else kl)
    return per_token, float((kl * mask_BT).sum().detach())


def priced(
    groups: list[Group], policy: Policy, config: Config, world: World
) -> tuple[list[Group], dict[str, float]]:
    """The groups with the KL taken off their rewards, and what it was; for `kl_placement = "reward"`."""
    samples = [sample for group in groups for sample in group.samples]
    sums = kl_sums(policy.make_batch(samples, policy.device), policy, config, world)
    left = iter([s.reward - config.loss.kl_coefficient * kl for s, kl in zip(samples, sums, strict=True)])
    cheaper = [group.having("reward", [next(left) for _ in group.samples]) for group in groups]
    return cheaper, {"kl/reward": mean(sums)}


@torch.no_grad()  # type: ignore[untyped-decorator]
def kl_sums(batch: Batch, policy: Policy, config: Config, world: World) -> list[float]:
    """Each sample's estimated KL to the reference, summed over its tokens."""
    assert policy.reference is not None
    rows, temperature = batch.rows(world.share(len(batch.lengths_B))), config.sampling.temperature
    sums: list[float] = []
    for part in slices(len(rows.lengths_B), config.train.micro_batch):
        some = rows.rows(part)
        reference = policy.reference.logprobs(some, temperature)
        proximal = policy.logprobs(some, temperature)[0]
        sums += completion_kl(proximal, reference, some.mask_BT, config.loss).tolist()
    return [value for part in world.gather(sums) for value in part]
