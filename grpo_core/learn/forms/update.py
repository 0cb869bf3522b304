"""Updates with the switches of `grpo_core.wide`: several on one rollout, schedules, masks, an entropy bonus."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.learn.forms.advantages import wide_judged
from grpo_core.learn.forms.loss import wide_policy_loss
from grpo_core.learn.forms.precision import MixedPolicy
from grpo_core.learn.forms.rejection import within
from grpo_core.learn.logprobs import slices
from grpo_core.learn.update import Updater
from grpo_core.wide import WideConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grpo_core.config import Config
    from grpo_core.learn.batch import Batch
    from grpo_core.learn.loss import PolicyLoss, Streams
    from grpo_core.learn.policy import Policy
    from grpo_core.learn.update import Part
    from grpo_core.machine.world import World
    from grpo_core.types import Group


class WideUpdater(Updater):
    """Everything but the switches is the core's; with none of them set, so is every bit."""

    def __init__(self, policy: Policy, config: WideConfig, world: World) -> None:
        """Starts with no update made."""
        super().__init__(policy, config, world)
        self._wide = config
        options = config.train
        for group in self.optimizer.param_groups:
            group["betas"], group["eps"] = (options.beta1, options.beta2), options.epsilon
        if config.loss.entropy_coefficient:
            from grpo_core.learn.forms.entropy import logprobs_and_entropies

            policy.module.head = logprobs_and_entropies

    def judged(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with their advantages."""
        return wide_judged(groups, self._wide)

    def _windows(self, batch: Batch) -> list[list[Part]]:
        """One window a mini-batch; the log-probs before the first update are computed for all of them at once."""
        options, kept_BT = self._wide.train, self._kept(batch)
        count = min(options.mini_batches, len(kept_BT))
        if count == 1:
            return [self._window(batch, kept_BT, self._weights(kept_BT))]
        weights_BT = self._weights(kept_BT) * count
        windows = []
        for number in range(count):
            part = slice(len(kept_BT) * number // count, len(kept_BT) * (number + 1) // count)
            rows = batch.rows(part)
            stay_BT = kept_BT[part, : rows.mask_BT.shape[1]]
            whole = options.mini_batch_normaliser == "rollout"
            weights = weights_BT[part, : stay_BT.shape[1]] if whole else self._weights(stay_BT)
            windows.append(self._window(rows, stay_BT, weights))
        for window in windows:
            for one in window:
                with torch.no_grad():
                    one.proximal_BT, one.entropy_BT = self.logprobs(one.rows)
        return windows

    def _kept(self, batch: Batch) -> torch.Tensor:
        """The tokens that count in a normaliser: not those that `loss.reject` leaves out."""
        kept_BT = super()._kept(batch)
        loss = self._wide.loss
        if loss.reject == "none":
            return kept_BT
        rows, found = batch.rows(self._world.share(len(kept_BT))), []
        for part in slices(len(rows.lengths_B), self._wide.train.micro_batch):
            some = rows.rows(part)
            with torch.no_grad():
                proximal_BT = self.logprobs(some)[0]
            found += within(proximal_BT, some.behaviour_BT, some.mask_BT, loss).tolist()
        stays = [row for share in self._world.gather(found) for row in share]
        width = kept_BT.shape[1]
        padded = [row + [False] * (width - len(row)) for row in stays]
        return kept_BT & torch.tensor(padded, device=kept_BT.device)

    def _loss(self, part: Part, streams: Streams, current_BT: Any, entropy_BT: Any) -> PolicyLoss:
        tokens = (part.kept_BT, part.weights_BT, self._wide.loss, part.learned_BT)
        return wide_policy_loss(current_BT, streams, part.rows.advantages_B, *tokens, entropy_BT)

    def update(self, batch: Batch, look: Callable[[Policy, float], None] | None = None) -> dict[str, float]:
        """As `Updater`; in fewer bits, also the share of the last update that the compute type could not hold."""
        mixed = self._policy if isinstance(self._policy, MixedPolicy) else None
        found = super().update(batch, look)
        return found if mixed is None or mixed.lost is None else {**found, "update/lost": mixed.lost}

    def _accumulate(self, window: list[Part]) -> tuple[float, list[tuple[float, float, float]]]:
        found = super()._accumulate(window)
        if isinstance(self._policy, MixedPolicy):
            self._policy.unscale()
        return found

    def _step(self, loss: float) -> float:
        norm = super()._step(loss)
        if isinstance(self._policy, MixedPolicy):
            self._policy.take_over(updated=True)
        return norm

    def _rate(self) -> float:
        """As transformers' `get_linear_schedule_with_warmup` and `get_cosine_schedule_with_warmup` have it."""
        rate, options = super()._rate(), self._wide.train
        total = options.steps * options.updates
        behind = max(self.updates + 1 - options.warmup_updates, 0) / max(total - options.warmup_updates, 1)
        if options.scheduler == "linear":
            rate *= options.final_rate + (1 - options.final_rate) * max(1 - behind, 0.0)
        if options.scheduler == "cosine":
            rate *= options.final_rate + (1 - options.final_rate) * 0.5 * (
                1 + math.cos(math.pi * min(behind, 1.0))
            )
        return rate


def updater_for(policy: Policy, config: Config, world: World) -> Updater:
    """The updater that these settings need."""
    return (
        WideUpdater(policy, config, world)
        if isinstance(config, WideConfig)
        else Updater(policy, config, world)
    )
