"""One rollout batch's optimizer updates: gradients add up over micro-batches, then AdamW takes a step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.learn.advantages import with_advantages
from grpo_core.learn.logprobs import logprobs_and_entropies, slices
from grpo_core.learn.losses import PolicyLoss, Streams, policy_loss, token_weights, within
from grpo_core.learn.policy import whole
from grpo_core.types import RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grpo_core.config import Config
    from grpo_core.learn.batch import Batch
    from grpo_core.learn.policy import Policy
    from grpo_core.machine.world import World
    from grpo_core.types import Group


class NotFiniteError(RunError):
    """Raised when a loss or gradient is NaN or infinite: the update is not made, the policy stays as it was."""


class Updater:
    """The optimizer of a policy. Each process works on its own rows of the batch, weighed by the whole batch.

    Attributes:
        updates: Made so far; the policy version.
        optimizer: AdamW over the trained parameters.
    """

    def __init__(self, policy: Policy, config: Config, world: World) -> None:
        """Starts with no update made."""
        self.updates = 0
        self._policy, self._config, self._world = policy, config, world
        self._temperature = config.sampling.temperature
        options, loss = config.train, config.loss
        # A KL in the reward has been taken off before.
        self._reference = policy.reference if loss.kl_placement == "loss" else None
        trained = [value for _, value in policy.trained()]
        self.optimizer = torch.optim.AdamW(
            trained, lr=options.learning_rate, weight_decay=options.weight_decay,
            betas=(options.beta1, options.beta2), eps=options.epsilon,
        )  # fmt: skip
        if loss.entropy_coefficient:
            policy.module.head = logprobs_and_entropies

    def update(self, batch: Batch, look: Callable[[Policy, float], None] | None = None) -> dict[str, float]:
        """Makes `train.iterations` updates on one batch and returns the step's metrics.

        Args:
            batch: The whole step's samples.
            look: Called before the first update, with the policy, whose gradients are not clipped yet, and the loss.

        Raises:
            NotFiniteError: The loss or the gradient's norm is not finite.
        """
        windows = self._windows(batch)
        window = [part for one in windows for part in one]
        for _ in range(self._config.train.iterations):
            sums: list[tuple[float, float, float]] = []
            for one in windows:
                value, found = self._accumulate(one)
                loss = self._world.sums([value])[0]
                if look is not None:
                    look(self._policy, loss)
                look, norm = None, self._step(loss)
                sums += found
        tokens = int(batch.mask_BT.sum())
        kl, clipped, ratio = (sum(column) / tokens for column in zip(*sums, strict=True))
        entropy = sum(float(part.entropy_BT.sum()) for part in window) / tokens
        shown = self._world.sums([kl, clipped, ratio, entropy])
        return {
            "loss": loss,
            **dict(zip(("kl", "clip_ratio", "ratio/mean", "entropy"), shown, strict=True)),
            "grad_norm": norm,
            "lr": self.optimizer.param_groups[0]["lr"],
            **self._mismatch(window),
            **self._lost(),
        }

    def judged(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with their advantages."""
        return with_advantages(groups, self._config)

    def gradients(self, batch: Batch) -> float:
        """The loss of a step's first update, whose gradients the policy then has, before the clip."""
        return self._world.sums([self._accumulate(self._windows(batch)[0])[0]])[0]

    def state(self) -> dict[str, torch.Tensor]:
        """AdamW's state, whole, as `parameter|entry`: the same for one process and for many."""
        return {
            f"{name}|{key}": whole(value)
            for name, parameter in self._policy.trained()
            for key, value in self.optimizer.state[parameter].items()
        }

    def _windows(self, batch: Batch) -> list[list[Part]]:
        """One window a mini-batch; the log-probs before the first update are computed for all of them at once."""
        options, kept_BT = self._config.train, self._kept(batch)
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
        """The tokens that count in a normaliser: not those of filtered samples, nor what `loss.reject` leaves out."""
        kept_BT = batch.mask_BT & batch.trained_B[:, None]
        if self._config.loss.reject == "none":
            return kept_BT
        rows, found = batch.rows(self._world.share(len(kept_BT))), []
        for part in slices(len(rows.lengths_B), self._config.train.micro_batch):
            some = rows.rows(part)
            with torch.no_grad():
                proximal_BT = self.logprobs(some)[0]
            found += within(proximal_BT, some.behaviour_BT, some.mask_BT, self._config.loss).tolist()
        stays = [row for share in self._world.gather(found) for row in share]
        width = kept_BT.shape[1]
        padded = [row + [False] * (width - len(row)) for row in stays]
        return kept_BT & torch.tensor(padded, device=kept_BT.device)

    def _weights(self, kept_BT: torch.Tensor) -> torch.Tensor:
        return token_weights(kept_BT, self._config.loss.aggregation, self._config.sampling.max_tokens)

    def _window(self, batch: Batch, kept_BT: torch.Tensor, weights_BT: torch.Tensor) -> list[Part]:
        """This process's micro-batches of an accumulation window, with the weights they have in the whole of it."""
        loss, share = self._config.loss, self._world.share(len(batch.lengths_B))
        mine, kept_BT, weights_BT = batch.rows(share), kept_BT[share], weights_BT[share]
        window = []
        for part in slices(len(mine.lengths_B), self._config.train.micro_batch):
            rows = mine.rows(part)
            width = rows.behaviour_BT.shape[1]
            window.append(Part(rows, kept_BT[part, :width], weights_BT[part, :width]))
        if loss.entropy_quantile:
            keep_above(window, self.logprobs, loss.entropy_quantile, self._world)
        return window

    def _accumulate(self, window: list[Part]) -> tuple[float, list[tuple[float, float, float]]]:
        """Gradients of the whole window; the first pass also sets the proximal log-probs.

        Kept per micro-batch, so that the ratio of the first update is exactly 1, in bits.

        Returns:
            This process's loss, and (KL, clipped tokens, ratio) summed over each micro-batch's tokens.
        """
        self.optimizer.zero_grad(set_to_none=True)
        value, sums = 0.0, []
        for part in window:
            rows = part.rows
            with self._policy.gradients_kept(last=part is window[-1]):
                current_BT, entropy_BT = self.logprobs(rows)
                if part.proximal_BT is None:
                    part.proximal_BT, part.entropy_BT = current_BT.detach(), entropy_BT.detach()
                reference = self._reference and self._reference.logprobs(rows, self._temperature)
                streams = Streams(rows.behaviour_BT, part.proximal_BT, reference)
                loss = self._loss(part, streams, current_BT, entropy_BT)
                # PyTorch's wrappers average gradients over processes; here they add up.
                (loss.value * self._world.size).backward()
            value += float(loss.value.detach())
            sums.append((loss.kl_sum, float(loss.clipped), loss.ratio_sum))
        if self._policy.lowered:
            self._policy.lowered.unscale()
        return value, sums

    def _loss(self, part: Part, streams: Streams, current_BT: Any, entropy_BT: Any) -> PolicyLoss:
        """Of a micro-batch."""
        tokens = (part.kept_BT, part.weights_BT, self._config.loss, part.learned_BT)
        return policy_loss(current_BT, streams, part.rows.advantages_B, *tokens, entropy_BT)

    def _step(self, loss: float) -> float:
        """Clips the gradient, checks it and moves the policy; returns the norm, before the clip."""
        options = self._config.train
        trained = self.optimizer.param_groups[0]["params"]
        norm = float(whole(torch.nn.utils.clip_grad_norm_(trained, options.max_grad_norm)))
        if not (math.isfinite(norm) and math.isfinite(loss)):
            raise NotFiniteError(
                f"update {self.updates + 1}: loss {loss}, gradient norm {norm}; the update was not made. "
                "Lower train.learning_rate, or look for extreme log-probs in completions.jsonl"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate()
        self.optimizer.step()
        self.updates += 1
        if self._policy.lowered:
            self._policy.lowered.take_over(updated=True)
        return norm

    def _rate(self) -> float:
        """The learning rate of the next update: a linear warm-up, then one of transformers' schedules."""
        options = self._config.train
        rate = options.learning_rate * min((self.updates + 1) / max(options.warmup_updates, 1), 1.0)
        if options.scheduler == "constant":
            return rate
        total = options.steps * options.updates
        behind = max(self.updates + 1 - options.warmup_updates, 0) / max(total - options.warmup_updates, 1)
        left = max(1 - behind, 0.0)
        if options.scheduler == "cosine":
            left = 0.5 * (1 + math.cos(math.pi * min(behind, 1.0)))
        return rate * (options.final_rate + (1 - options.final_rate) * left)

    def _lost(self) -> dict[str, float]:
        """In a lower type, the share of the last update that it could not hold."""
        lowered = self._policy.lowered
        return {} if lowered is None or lowered.lost is None else {"update/lost": lowered.lost}

    def logprobs(self, rows: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of the policy now, and entropies; with a gradient where gradients are enabled."""
        return self._policy.logprobs(rows, self._temperature)

    def _mismatch(self, window: list[Part]) -> dict[str, float]:
        """How far the trainer's log-probs are from the engine's: staleness, and everything else."""
        found = torch.cat([(part.proximal_BT - part.rows.behaviour_BT)[part.rows.mask_BT] for part in window])
        distance, ratio = found.abs(), found.exp()
        tokens, far, over = self._world.sums([len(found), float(distance.sum()), float(ratio.sum())])
        most = self._world.gather((float(distance.max()), float(ratio.max())))
        return {
            "logprob_difference/mean": far / tokens,
            "logprob_difference/max": max(distance for distance, _ in most),
            "importance_ratio/mean": over / tokens,
            "importance_ratio/max": max(ratio for _, ratio in most),
        }


@dataclass
class Part:
    """A micro-batch of what an optimizer step sees.

    Attributes:
        rows: Its samples.
        kept_BT: The tokens that count.
        weights_BT: Theirs, in the whole window.
        learned_BT: Those of them that the surrogate is taken of (the entropy mask); None: all.
        proximal_BT: Log-probs before the first update; None: it is still to come.
        entropy_BT: Of the same pass.
    """

    rows: Batch
    kept_BT: torch.Tensor
    weights_BT: torch.Tensor
    learned_BT: torch.Tensor | None = None
    proximal_BT: Any = None
    entropy_BT: Any = None


def entropy_mask(entropy_BT: torch.Tensor, mask_BT: torch.Tensor, quantile: float) -> torch.Tensor:
    """True at the real tokens whose entropy is at or above this quantile of all real tokens'. [B, T].

    Source: arXiv 2506.01939; `get_high_entropy_mask` of TRL 1.16.0, with `top_entropy_quantile = 1 - quantile`.
    Called once a step, before it is split: TRL, and ms-swift 4.6.0, take the quantile of each micro-batch, so which
    tokens are trained depends on the company they happen to be in.

    Args:
        entropy_BT: Of the distribution each token was sampled from.
        mask_BT: True at real tokens.
        quantile: The share that is left out, from 0 to 1; the threshold is interpolated linearly.
    """
    if quantile <= 0 or not mask_BT.any():
        return mask_BT
    entropy = entropy_BT.float()
    return mask_BT & (entropy >= torch.quantile(entropy[mask_BT], quantile))


@torch.no_grad()  # type: ignore[untyped-decorator]
def keep_above(window: Sequence[Part], score: Callable[[Any], Any], quantile: float, world: World) -> None:
    """Has micro-batches learn from tokens of high entropy, by a threshold over the whole step: so in a pass of its own.

    Args:
        window: This process's micro-batches (`update.Part`), whose `learned_BT` is set.
        score: Gives the log-probs and entropies [b, T] of their rows.
        quantile: The share that is left out.
        world: All processes.
    """
    found = [(score(part.rows)[1][part.kept_BT].tolist(), part.kept_BT) for part in window]
    shares = world.gather([value for values, _ in found for value in values])
    everyone = torch.tensor([value for share in shares for value in share])
    learned = entropy_mask(everyone, torch.ones_like(everyone, dtype=torch.bool), quantile)
    mine = learned[sum(map(len, shares[: world.rank])) :]
    counts = [len(values) for values, _ in found]
    rest = mine[: sum(counts)].split(counts)
    for part, values in zip(window, rest, strict=True):
        kept_BT = part.kept_BT
        part.learned_BT = torch.zeros_like(kept_BT).masked_scatter(kept_BT, values.to(kept_BT.device))


@torch.no_grad()  # type: ignore[untyped-decorator]
def put_back(policy: Policy, state: Mapping[str, torch.Tensor]) -> None:
    """Gives a policy the parameters that one like it had.

    Raises:
        KeyError: The names are not this policy's.
        ValueError: A shape is not.
    """
    odd = sorted(set(state) ^ {name for name, _ in policy.trained()})
    if odd:
        raise KeyError(f"{odd[0]} is on one side alone")
    for name, value in policy.trained():
        if state[name].shape != value.shape:  # copying would broadcast it
            raise ValueError(f"{name} is {tuple(state[name].shape)}, not {tuple(value.shape)}")
        value.copy_(_share_of(state[name], value))


def go_on(updater: Updater, policy: Policy, state: Mapping[str, torch.Tensor], updates: int) -> None:
    """Gives the optimizer of this policy the state that it had after so many updates."""
    updater.updates = updates
    parameters = dict(policy.trained())
    for entry, value in state.items():
        name, key = entry.rsplit("|", 1)
        held = updater.optimizer.state[parameters[name]]
        held[key] = _share_of(value, parameters[name]).clone() if value.dim() else value


def _share_of(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """What of a whole tensor belongs to this process, if the parameter is sharded; else the tensor, where that is."""
    tensor = tensor.to(parameter.device)
    if not hasattr(parameter, "full_tensor"):
        return tensor
    from grpo_core.learn.policy import own_share

    return own_share(tensor, parameter)
