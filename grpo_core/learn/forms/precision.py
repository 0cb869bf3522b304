"""Computing in fewer bits: the weights that are trained stay in float32, and so do gradients, sums and the optimizer.

A copy of the model in the compute type goes through forward and backward passes. Its gradients are added to the trained
weights' own after each micro-batch, in float32; after each update it takes the weights over again. An update that is
smaller than half a step of the compute type is lost on the copy, though never on the weights: such parts are counted.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.config import ConfigError
from grpo_core.learn.equipped import EquippedPolicy
from grpo_core.learn.logprobs import chunked_logprobs
from grpo_core.machine.resources import engine_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grpo_core.learn.batch import Batch
    from grpo_core.machine.world import World
    from grpo_core.wide import WideConfig


class MixedPolicy(EquippedPolicy):
    """A policy that computes in bfloat16 or float16, and whose engine may hold yet another type.

    Attributes:
        lost: Parts of the last update that the compute type could not tell from nothing; None before the first.
    """

    lost: float | None = None

    def _computing(self, config: WideConfig, world: World) -> Any:  # type: ignore[override]
        """A copy of the trained module in the compute type, whose gradients go to the trained weights."""
        self._type, self._sent = getattr(torch, config.model.dtype), getattr(torch, engine_dtype(config))
        if self._type == torch.float32:
            return self.module
        if world.size > 1:
            raise ConfigError(
                f"model.dtype = {config.model.dtype!r}: several processes train in float32 only"
            )
        work = copy.deepcopy(self.module)
        _lowered(work, self._type, config.model.float32_parts)
        masters = dict(self.module.named_parameters(remove_duplicate=False))
        # A trained weight and its copy; a tied embedding has two copies where the output layer stays in float32.
        self._pairs = [(masters[name], value) for name, value in work.named_parameters()]
        for trained, value in self._pairs:
            if trained.requires_grad:
                value.register_post_accumulate_grad_hook(_adds_to(trained))
        self._moving = [pair for pair in self._pairs if pair[0].requires_grad]
        self._scale, self._seen = config.model.loss_scale, self._changes()
        return work

    def logprobs(self, rows: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropies [B, T], both in float32."""
        if self._work is not self.module and self._seen != self._changes():
            self.take_over()  # a checkpoint, or an older version, was put back
        logprobs, entropies = rows.scored(self._work, temperature)
        if self._type == torch.float16 and torch.is_grad_enabled():
            logprobs = _Scaled.apply(logprobs, self._scale)
        return logprobs, entropies

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What an engine is given, in the engine's own type."""
        for name, value in super().tensors():
            yield name, value.to(self._sent)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def take_over(self, *, updated: bool = False) -> None:
        """Gives the copy the weights as they are now; right after an update, whose gradients stand, counts losses."""
        if self._work is self.module:
            return
        lost = moved = 0
        for trained, value in self._moving:
            rounded = trained.detach().to(value.dtype)
            if updated and trained.grad is not None and value.dtype != torch.float32:
                stirred = trained.grad != 0
                moved += int(stirred.sum())
                lost += int((stirred & (rounded == value)).sum())
            value.copy_(rounded)
        self.lost, self._seen = lost / moved if moved else self.lost, self._changes()

    def _changes(self) -> list[int]:
        """How often each trained weight was written to."""
        return [trained._version for trained, _ in self._moving]  # noqa: SLF001 - PyTorch's own count has no other name

    def unscale(self) -> None:
        """Divides the gradients by what float16's were multiplied by."""
        if self._type != torch.float16:
            return
        for trained in {id(trained): trained for trained, _ in self._moving}.values():
            if trained.grad is not None:
                trained.grad.div_(self._scale)


class _Scaled(torch.autograd.Function):  # type: ignore[misc]
    """The same values; the gradient comes out times a number: float16 takes small ones for zero."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return upstream * ctx.scale, None


def in_float32(
    hidden_NH: torch.Tensor, weight_VH: torch.Tensor, ids_N: torch.Tensor, **how: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output layer in float32, whatever the hidden states are."""
    return chunked_logprobs(hidden_NH.float(), weight_VH, ids_N, **how)


def _lowered(scorer: Any, kind: torch.dtype, kept: tuple[str, ...]) -> None:
    """Converts a model but for the parts that are to stay in float32, whose results are rounded behind them."""
    head = scorer.causal.get_output_embeddings()
    if "head" in kept and head.weight is scorer.causal.get_input_embeddings().weight:
        head.weight = torch.nn.Parameter(
            head.weight.detach().clone()
        )  # tied: the embedding is in the compute type
    scorer.to(kind)
    if "head" in kept:
        head.float()
        scorer.head = in_float32
    if "norms" in kept:
        for name, module in scorer.causal.named_modules():
            if "norm" in name.rpartition(".")[2]:
                module.float()
                module.register_forward_hook(lambda _, __, out: out.to(kind))


def _adds_to(trained: torch.Tensor) -> Any:
    """Moves a gradient of the copy onto the trained weight's, in float32."""

    def add(value: torch.Tensor) -> None:
        assert value.grad is not None
        grad, value.grad = value.grad.float(), None
        trained.grad = grad if trained.grad is None else trained.grad.add_(grad)

    return add
