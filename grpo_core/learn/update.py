"""One rollout batch's optimizer updates: gradients add up over micro-batches, then AdamW takes a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from grpo_core.learn.batch import Batch, micro_batches
from grpo_core.learn.loss import Streams, policy_loss, token_weights
from grpo_core.learn.policy import share_of, whole
from grpo_core.rollout.weights.digest import EXACT, fingerprint_like

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from grpo_core.config import Config
    from grpo_core.learn.policy import Policy
    from grpo_core.machine.distributed import World


class NotFiniteError(RuntimeError):
    """Raised when a loss or gradient is NaN or infinite: the update is not made, the policy stays as it was."""


class Updater:
    """The optimizer of a policy. Each process works on its own rows of the batch, weighed by the whole batch.

    Attributes:
        updates: Made so far; the policy version.
        optimizer: AdamW over the trained parameters.
        first: Of the last step whose update was to be digested.
    """

    def __init__(self, policy: Policy, config: Config, world: World) -> None:
        """Starts with no update made."""
        self.updates = 0
        self.first: tuple[float, str] | None = None
        self._policy, self._config, self._world = policy, config, world
        options, loss = config.train, config.loss
        # A KL in the reward has been taken off before.
        self._reference = policy.reference if loss.kl_coefficient and loss.kl_placement == "loss" else None
        self.optimizer = torch.optim.AdamW(
            [value for _, value in policy.trained()],
            lr=options.learning_rate,
            weight_decay=options.weight_decay,
            betas=(0.9, 0.95),
        )

    def update(self, batch: Batch, *, digested: bool = False) -> dict[str, float]:
        """Makes `train.iterations` updates on one batch and returns the step's metrics.

        Args:
            batch: The whole step's samples.
            digested: Keep what `gradients` would give in `first`: for the record of the step.

        Raises:
            NotFiniteError: The loss or the gradient's norm is not finite.
        """
        window = self._window(batch)
        for iteration in range(self._config.train.iterations):
            losses = self._accumulate(window)
            if digested and not iteration:
                self.first = self._digest(losses)
            loss, norm = self._step(losses)
        tokens = int(batch.lengths_B.sum())
        kl, clipped, ratio = (sum(column) / tokens for column in zip(*losses.sums, strict=True))
        entropy = sum(float(part.sum()) for part in window.entropies) / tokens
        sums = self._world.sums([kl, clipped, ratio, entropy])
        return {
            "loss": loss,
            **dict(zip(("kl", "clip_ratio", "ratio/mean", "entropy"), sums, strict=True)),
            "grad_norm": norm,
            "lr": self.optimizer.param_groups[0]["lr"],
            **self._mismatch(window),
        }

    def gradients(self, batch: Batch, like: str = EXACT) -> tuple[float, str]:
        """The loss of a step's first update, and a digest of its gradient before the clip, of the kind of `like`."""
        return self._digest(self._accumulate(self._window(batch)), like)

    def _digest(self, losses: _Losses, like: str = EXACT) -> tuple[float, str]:
        gradients = [(name, value.grad) for name, value in self._policy.trained()]
        held = [(name, whole(grad)) for name, grad in gradients if grad is not None]
        digest = fingerprint_like(like, held, 0)
        return self._world.sums([losses.value])[0], digest

    def state(self) -> dict[str, torch.Tensor]:
        """AdamW's state, whole, as `parameter|entry`: the same for one process and for many."""
        return {
            f"{name}|{key}": whole(value)
            for name, parameter in self._policy.trained()
            for key, value in self.optimizer.state[parameter].items()
        }

    def load(self, state: Mapping[str, torch.Tensor], updates: int) -> None:
        """Takes over what `state` gave after so many updates."""
        self.updates = updates
        parameters = dict(self._policy.trained())
        for entry, value in state.items():
            name, key = entry.rsplit("|", 1)
            held = self.optimizer.state[parameters[name]]
            held[key] = share_of(value, parameters[name]).clone() if value.dim() else value

    def _window(self, batch: Batch) -> _Window:
        """This process's rows of an accumulation window, with the weights they have in the whole of it."""
        loss = self._config.loss
        kept_BT = batch.mask_BT & batch.trained_B[:, None]
        weights_BT = token_weights(kept_BT, loss.aggregation, self._config.sampling.max_tokens)
        share = self._world.share(len(batch.lengths_B))
        rows = batch.rows(share)
        width = rows.behaviour_BT.shape[1]
        window = _Window(rows, list(self._parts(rows)), weights_BT[share, :width], kept_BT[share, :width])
        if loss.entropy_quantile:
            from grpo_core.learn.entropy import above_quantile

            found = ((part, self._logprobs(rows.rows(part))[1]) for part in window.parts)
            window.learned_BT = above_quantile(found, window.kept_BT, loss.entropy_quantile, self._world)
        return window

    def _accumulate(self, window: _Window) -> _Losses:
        """Gradients of the whole window; the first pass also sets the proximal log-probs.

        Kept per micro-batch, so that the ratio of the first update is exactly 1, in bits.
        """
        self.optimizer.zero_grad(set_to_none=True)
        found, first = _Losses(0.0, []), not window.proximal
        for place, part in enumerate(window.parts):
            rows = window.rows.rows(part)
            width = rows.behaviour_BT.shape[1]
            with self._policy.gradients_kept(last=place + 1 == len(window.parts)):
                current_BT, entropy_BT = self._logprobs(rows)
                if first:
                    window.proximal.append(current_BT.detach())
                    window.entropies.append(entropy_BT.detach())
                reference = self._reference and self._reference.logprobs(rows, self._temperature)
                loss = policy_loss(
                    current_BT,
                    Streams(rows.behaviour_BT, window.proximal[place], reference),
                    rows.advantages_B,
                    window.kept_BT[part, :width],
                    window.weights_BT[part, :width],
                    self._config.loss,
                    None if window.learned_BT is None else window.learned_BT[part, :width],
                )
                # PyTorch's wrappers average gradients over processes; here they add up.
                (loss.value * self._world.size).backward()
            found.value += float(loss.value.detach())
            found.sums.append((loss.kl_sum, float(loss.clipped), loss.ratio_sum))
        return found

    def _step(self, losses: _Losses) -> tuple[float, float]:
        """Clips the gradient, checks it and moves the policy; returns loss and norm, before the clip."""
        options = self._config.train
        parameters = [value for _, value in self._policy.trained()]
        total = torch.nn.utils.clip_grad_norm_(parameters, options.max_grad_norm)
        norm = float(total.full_tensor() if hasattr(total, "full_tensor") else total)
        value = self._world.sums([losses.value])[0]
        if not (math.isfinite(norm) and math.isfinite(value)):
            raise NotFiniteError(
                f"update {self.updates + 1}: loss {value}, gradient norm {norm}; the update was not made. "
                "Lower train.learning_rate, or look for extreme log-probs in completions.jsonl"
            )
        warm = min((self.updates + 1) / max(options.warmup_updates, 1), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = options.learning_rate * warm
        self.optimizer.step()
        self.updates += 1
        return value, norm

    @property
    def _temperature(self) -> float:
        return self._config.sampling.temperature

    def _parts(self, rows: Batch) -> Iterator[slice]:
        return micro_batches(len(rows.lengths_B), self._config.train.micro_batch)

    def _logprobs(self, rows: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self._policy.logprobs(rows, self._temperature)

    def _mismatch(self, window: _Window) -> dict[str, float]:
        """How far the trainer's log-probs are from the engine's: staleness, and everything else."""
        differences = torch.cat(
            [
                (values - rows.behaviour_BT)[rows.mask_BT]
                for rows, values in zip(map(window.rows.rows, window.parts), window.proximal, strict=True)
            ]
        )
        distance, ratio = differences.abs(), differences.exp()
        tokens, far, over = self._world.sums([len(differences), float(distance.sum()), float(ratio.sum())])
        most = self._world.gather((float(distance.max()), float(ratio.max())))
        return {
            "logprob_difference/mean": far / tokens,
            "logprob_difference/max": max(distance for distance, _ in most),
            "importance_ratio/mean": over / tokens,
            "importance_ratio/max": max(ratio for _, ratio in most),
        }


@dataclass
class _Window:
    """One process's part of what an optimizer step sees.

    Attributes:
        rows: Its samples.
        parts: Their micro-batches.
        weights_BT: Of tokens, in the whole window.
        kept_BT: The tokens that count.
        learned_BT: Those of them that the surrogate is taken of (the entropy mask); None: all.
        proximal: Log-probs before the first update, by micro-batch.
        entropies: Of the same pass.
    """

    rows: Batch
    parts: list[slice]
    weights_BT: torch.Tensor
    kept_BT: torch.Tensor
    learned_BT: torch.Tensor | None = None
    proximal: list[torch.Tensor] = field(default_factory=list)
    entropies: list[torch.Tensor] = field(default_factory=list)


@dataclass
class _Losses:
    """This process's loss of one update, and (KL, clipped tokens, ratio) summed over each micro-batch's tokens."""

    value: float
    sums: list[tuple[float, float, float]]
