"""One rollout batch's optimizer updates: gradients add up over micro-batches, then AdamW takes a step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.batch import Batch, micro_batches
from grpo_core.logprobs import completion_logprobs
from grpo_core.loss import PolicyLoss, Streams, policy_loss, token_weights
from grpo_core.weights import fingerprint_of

if TYPE_CHECKING:
    from grpo_core.config import Config


class NotFiniteError(RuntimeError):
    """Raised when a loss or gradient is NaN or infinite: the update is not made, the policy stays as it was."""


class Updater:
    """The optimizer of a policy.

    Attributes:
        updates: Made so far; the policy version.
        first: Loss and gradient of the last step's first update, as `gradients` gives them, if they were asked for.
    """

    def __init__(self, model: Any, reference: Any | None, config: Config) -> None:
        """`reference` is the frozen model that KL is measured against, or None."""
        self.updates = 0
        self.first: tuple[float, str] | None = None
        self._model, self._reference, self._config = model, reference, config
        options = config.train
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay, betas=(0.9, 0.95)
        )

    def update(self, batch: Batch, *, digested: bool = False) -> dict[str, float]:
        """Makes `train.iterations` updates on one batch and returns the step's metrics.

        Args:
            batch: The step's samples.
            digested: Keep loss and gradient of the first update in `first`.

        Raises:
            NotFiniteError: The loss or the gradient's norm is not finite.
        """
        # The first pass runs on the parameters the step started with: its log-probs are the proximal ones.
        # Kept per micro-batch, so that the ratio of the first update is exactly 1, in bits.
        proximal: list[torch.Tensor] = []
        losses: list[PolicyLoss] = []
        norm = entropy_sum = 0.0
        for iteration in range(self._config.train.iterations):
            losses, entropy = self._backward(batch, proximal)
            if iteration == 0:
                entropy_sum = entropy
                self.first = self._digest(losses) if digested else None
            norm = self._step(losses)
        tokens = int(batch.lengths_B.sum())
        return {
            **_loss_metrics(losses, tokens),
            "entropy": entropy_sum / tokens,
            "grad_norm": norm,
            "lr": self._optimizer.param_groups[0]["lr"],
            **mismatch(batch, self._parts(batch), proximal),
        }

    def gradients(self, batch: Batch) -> tuple[float, str]:
        """Loss and gradient of a step's first update on this batch, which is not made.

        Returns:
            The loss, and the digest of all gradients before they are clipped (`weights.fingerprint_of`).
        """
        return self._digest(self._backward(batch, [])[0])

    def _parts(self, batch: Batch) -> list[slice]:
        return list(micro_batches(len(batch.lengths_B), self._config.train.micro_batch))

    def _backward(self, batch: Batch, proximal: list[torch.Tensor]) -> tuple[list[PolicyLoss], float]:
        """Adds up the gradient over a batch; fills `proximal` where it is empty. Returns losses and entropy."""
        weights_BT = token_weights(
            batch.mask_BT, self._config.loss.aggregation, self._config.sampling.max_tokens
        )
        losses, entropy_sum = [], 0.0
        self._optimizer.zero_grad(set_to_none=True)
        for place, part in enumerate(self._parts(batch)):
            rows = batch.rows(part)
            current_BT, entropy_BT = self._logprobs(self._model, rows)
            if place == len(proximal):
                proximal.append(current_BT.detach())
            entropy_sum += float(entropy_BT.sum())
            streams = Streams(rows.behaviour_BT, proximal[place], self._reference_logprobs(rows))
            weights = weights_BT[part, : rows.behaviour_BT.shape[1]]
            loss = policy_loss(
                current_BT, streams, rows.advantages_B, rows.mask_BT, weights, self._config.loss
            )
            loss.value.backward()
            losses.append(loss)
        return losses, entropy_sum

    def _digest(self, losses: list[PolicyLoss]) -> tuple[float, str]:
        named = ((name, value.grad) for name, value in self._model.named_parameters())
        digest = fingerprint_of((name, grad) for name, grad in named if grad is not None)
        return sum(float(loss.value.detach()) for loss in losses), digest

    def _step(self, losses: list[PolicyLoss]) -> float:
        """Clips the gradient, checks it and moves the policy; returns the norm before the clip."""
        options = self._config.train
        norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), options.max_grad_norm))
        value = sum(float(loss.value.detach()) for loss in losses)
        if not (math.isfinite(norm) and math.isfinite(value)):
            raise NotFiniteError(
                f"update {self.updates + 1}: loss {value}, gradient norm {norm}; the update was not made. "
                "Lower train.learning_rate, or look for extreme log-probs in completions.jsonl"
            )
        warm = min((self.updates + 1) / max(options.warmup_updates, 1), 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = options.learning_rate * warm
        self._optimizer.step()
        self.updates += 1
        return norm

    def _logprobs(self, model: Any, rows: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return completion_logprobs(
            model,
            rows.ids_BL,
            rows.prompt_lengths_B,
            rows.lengths_B,
            temperature=self._config.sampling.temperature,
            chunk=self._config.train.logprob_chunk,
        )

    def _reference_logprobs(self, rows: Batch) -> torch.Tensor | None:
        if self._reference is None:
            return None
        with torch.no_grad():
            return self._logprobs(self._reference, rows)[0]


def _loss_metrics(losses: list[PolicyLoss], tokens: int) -> dict[str, float]:
    """The step's loss, and per-token means of what goes with it."""
    return {
        "loss": sum(float(loss.value.detach()) for loss in losses),
        "kl": sum(loss.kl_sum for loss in losses) / tokens,
        "ratio/mean": sum(loss.ratio_sum for loss in losses) / tokens,
        "clip_ratio": sum(loss.clipped for loss in losses) / tokens,
    }


def mismatch(batch: Batch, parts: list[slice], proximal: list[torch.Tensor]) -> dict[str, float]:
    """How far the trainer's log-probs are from those the engine sampled with: staleness, and everything else."""
    differences = torch.cat(
        [
            (values - batch.rows(part).behaviour_BT)[batch.rows(part).mask_BT]
            for part, values in zip(parts, proximal, strict=True)
        ]
    )
    return {
        "logprob_difference/mean": float(differences.abs().mean()),
        "logprob_difference/max": float(differences.abs().max()),
        "importance_ratio/mean": float(differences.exp().mean()),
        "importance_ratio/max": float(differences.exp().max()),
    }
