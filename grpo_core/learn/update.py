"""Update the policy on a batch: for each mini-batch, accumulate gradients over micro-batches and take one AdamW step.

`Updater` also schedules the learning rate, saves and restores AdamW's state, and computes metrics such as loss, KL,
entropy and the mismatch between the log-probs of trainer and engine. Its `compute_gradients` serves the replay. Each
process takes its slice of each mini-batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from grpo_core.config import Config
from grpo_core.learn.batch import Batch
from grpo_core.learn.logprobs import slices
from grpo_core.learn.losses import Streams, policy_loss, token_weights
from grpo_core.learn.policy import Policy
from grpo_core.machine.world import World
from grpo_core.types import RunError


class NotFiniteError(RunError):
    """Raised when a loss or gradient is NaN or infinite; this update is not made, the step's earlier updates stay."""


@dataclass
class MicroBatch:
    """The samples of one forward and backward pass, with their log-probs before the step's first update.

    Attributes:
        rows: The samples.
        proximal_BT: Log-probs before the first update; None until they are computed.
        entropy_BT: Entropies of the same computation.
    """

    rows: Batch
    proximal_BT: Any = None
    entropy_BT: Any = None


class Updater:
    """The optimizer of a policy. Loss weights are computed before each rank gets its slice of a mini-batch.

    Attributes:
        updates: Updates so far; the policy version.
        optimizer: AdamW over the trained parameters.
    """

    def __init__(self, policy: Policy, config: Config, world: World) -> None:
        """Create AdamW over the trained parameters, with no update made."""
        self.updates = 0
        self._policy, self._config, self._world = policy, config, world
        self._temperature = config.sampling.temperature
        options = config.train
        constants = {"betas": (options.beta1, options.beta2), "eps": options.epsilon}
        trained = [value for _, value in policy.trained_parameters()]
        # The CPU's default takes several operations per parameter, three times as long. On a GPU `fused` would move
        # the step counts there. It doesn't count its writes, by which a low-precision copy notices an update.
        fused = True if policy.device == "cpu" and policy.low_precision_copy is None else None
        self.optimizer = torch.optim.AdamW(
            trained, lr=options.learning_rate, weight_decay=options.weight_decay, fused=fused, **constants
        )

    def update(
        self, batch: Batch, on_gradients: Callable[[Policy, float], None] | None = None
    ) -> dict[str, float]:
        """Run `train.iterations` passes with `train.mini_batches` updates each, and return the step's metrics.

        `loss`, `grad_norm` and `lr` are those of the last update. `kl`, `clip_ratio` and `ratio/mean` are means over
        the tokens with a gradient in the last pass. Entropy and mismatch are from before the first update, over all
        tokens.

        Args:
            batch: All samples of the step.
            on_gradients: Called before the first update with the policy, whose gradients are not clipped yet, and the
                loss.

        Raises:
            NotFiniteError: The loss or the gradient's norm is not finite.
        """
        windows = self._windows(batch)
        parts = [part for window in windows for part in window]
        for _ in range(self._config.train.iterations):
            sums: list[tuple[float, float, float]] = []
            for window in windows:
                value, window_sums = self._accumulate(window)
                loss = self._world.sums([value])[0]
                if on_gradients is not None:
                    on_gradients(self._policy, loss)
                on_gradients, norm = None, self._step(loss)
                sums += window_sums
        tokens, trained = int(batch.mask_BT.sum()), max(int(batch.counted_BT.sum()), 1)
        kl, clipped, ratio = (sum(column) / trained for column in zip(*sums, strict=True))
        entropy = sum(float(part.entropy_BT.sum()) for part in parts) / tokens
        means = self._world.sums([kl, clipped, ratio, entropy])
        return {
            "loss": loss,
            **dict(zip(("kl", "clip_ratio", "ratio/mean", "entropy"), means, strict=True)),
            "grad_norm": norm,
            "lr": self.optimizer.param_groups[0]["lr"],
            **self._mismatch(parts),
        }

    def compute_gradients(self, batch: Batch) -> float:
        """Compute the unclipped gradients of a step's first update, and return its loss."""
        return self._world.sums([self._accumulate(self._windows(batch)[0])[0]])[0]

    def state(self) -> dict[str, torch.Tensor]:
        """Return AdamW's state, with keys `parameter|entry`."""
        return {
            f"{name}|{key}": value
            for name, parameter in self._policy.trained_parameters()
            for key, value in self.optimizer.state[parameter].items()
        }

    def load_state(self, state: Mapping[str, torch.Tensor], updates: int) -> None:
        """Restore the optimizer's state and its number of updates."""
        self.updates = updates
        parameters = dict(self._policy.trained_parameters())
        for entry, value in state.items():
            name, key = entry.rsplit("|", 1)
            # A step count is a scalar, and stays on the CPU.
            saved = value.to(parameters[name].device, copy=True) if value.dim() else value
            self.optimizer.state[parameters[name]][key] = saved

    def _windows(self, batch: Batch) -> list[list[MicroBatch]]:
        """Split a batch into one window per mini-batch: this process's micro-batches with their weights.

        With several windows, the log-probs before the first update are computed here for all of them.
        """
        options, size = self._config.train, len(batch)
        count = min(options.mini_batches, size)
        batch = replace(batch, weights_BT=self._weights(batch) * count)
        windows = []
        for number in range(count):
            rows = batch.select(slice(size * number // count, size * (number + 1) // count))
            if options.mini_batch_normaliser == "mini_batch":
                rows = replace(rows, weights_BT=self._weights(rows))
            mine = rows.select(self._world.slice_of(len(rows)))
            windows.append([MicroBatch(mine.select(part)) for part in slices(len(mine), options.micro_batch)])
        if count > 1:
            for micro_batch in (part for window in windows for part in window):
                with torch.no_grad():
                    micro_batch.proximal_BT, micro_batch.entropy_BT = self._logprobs(micro_batch.rows)
        return windows

    def _weights(self, batch: Batch) -> torch.Tensor:
        """Compute the weight in the loss of each token that has a gradient."""
        aggregation, max_tokens = self._config.loss.aggregation, self._config.sampling.max_tokens
        return token_weights(batch.counted_BT, aggregation, max_tokens)

    def _accumulate(self, window: list[MicroBatch]) -> tuple[float, list[tuple[float, float, float]]]:
        """Accumulate the gradients of a window, and set the proximal log-probs where they are missing.

        Each micro-batch has its own proximal log-probs: the ratio of the first update is exactly 1.

        Returns:
            This process's loss, and (KL, clipped tokens, ratio) summed over each micro-batch's tokens.
        """
        self.optimizer.zero_grad(set_to_none=True)
        value, sums = 0.0, []
        for part in window:
            rows = part.rows
            with self._policy.gradients_local(last=part is window[-1]):
                current_BT, entropy_BT = self._logprobs(rows)
                if part.proximal_BT is None:
                    part.proximal_BT, part.entropy_BT = current_BT.detach(), entropy_BT.detach()
                reference = self._policy.reference
                reference_BT = reference and reference.logprobs(rows, self._temperature)
                streams = Streams(rows.behaviour_BT, part.proximal_BT, reference_BT)
                mask_BT, options = rows.counted_BT, self._config.loss
                loss = policy_loss(current_BT, streams, rows.advantages_B, mask_BT, rows.weights_BT, options)
                # PyTorch's wrappers average gradients over processes; here they add up.
                (loss.value * self._world.size).backward()
            value += float(loss.value.detach())
            sums.append((loss.kl_sum, float(loss.clipped), loss.ratio_sum))
        return value, sums

    def _step(self, loss: float) -> float:
        """Clip and check the gradient and update the policy; returns the norm before the clip."""
        options = self._config.train
        trained = self.optimizer.param_groups[0]["params"]
        norm = float(torch.nn.utils.clip_grad_norm_(trained, options.max_grad_norm))
        if not (math.isfinite(norm) and math.isfinite(loss)):
            raise NotFiniteError(
                f"update {self.updates + 1}: loss {loss}, gradient norm {norm}; the update was not made. "
                "Lower train.learning_rate, or look for extreme log-probs in completions.jsonl"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate()
        self.optimizer.step()
        self.updates += 1
        return norm

    def _rate(self) -> float:
        """Compute the learning rate of the next update: a linear warm-up, then one of transformers' schedules."""
        options = self._config.train
        rate = options.learning_rate * min((self.updates + 1) / max(options.warmup_updates, 1), 1.0)
        if options.scheduler == "constant":
            return rate
        total = options.steps * options.updates
        progress = max(self.updates + 1 - options.warmup_updates, 0) / max(total - options.warmup_updates, 1)
        factor = max(1 - progress, 0.0)
        if options.scheduler == "cosine":
            factor = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
        return rate * (options.final_rate + (1 - options.final_rate) * factor)

    def _logprobs(self, rows: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self._policy.logprobs(rows, self._temperature)

    def _mismatch(self, parts: list[MicroBatch]) -> dict[str, float]:
        """Compute mean and maximum of the log-prob difference and the ratio between trainer and engine."""
        differences = [(part.proximal_BT - part.rows.behaviour_BT)[part.rows.mask_BT] for part in parts]
        difference = torch.cat(differences)
        metrics, measures = {}, {"logprob_difference": difference.abs(), "importance_ratio": difference.exp()}
        for name, values in measures.items():
            total, tokens = self._world.sums([float(values.sum()), len(values)])
            metrics[f"{name}/mean"] = total / tokens
            metrics[f"{name}/max"] = max(self._world.gather(float(values.max())))
        return metrics
