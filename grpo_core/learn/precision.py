"""Computing in fewer bits: the weights that are trained stay in float32, and so do gradients, sums and the optimizer.

A copy of the model in the compute type goes through forward and backward passes. Its gradients are added to the trained
weights' own after each micro-batch, in float32; after each update it takes the weights over again. An update that is
smaller than half a step of the compute type is lost on the copy, though never on the weights: such parts are counted.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.learn.logprobs import chunked_logprobs

if TYPE_CHECKING:
    from grpo_core.config import ModelConfig


class LoweredCopy:
    """A copy of a trained module in the compute type, whose gradients go to the trained weights.

    Attributes:
        module: The copy.
        lost: Share of the last update that the compute type could not tell from nothing; None before the first.
    """

    def __init__(self, trained: Any, options: ModelConfig) -> None:
        """Copies and converts the module."""
        self.lost: float | None = None
        self._type = getattr(torch, options.dtype)
        self.module = copy.deepcopy(trained)
        _lowered(self.module, self._type, options.float32_parts)
        masters = dict(trained.named_parameters(remove_duplicate=False))
        # A trained weight and its copy; a tied embedding has two copies where the output layer stays in float32.
        pairs = [(masters[name], value) for name, value in self.module.named_parameters()]
        self._pairs = [pair for pair in pairs if pair[0].requires_grad]
        self._scale, self._seen = options.loss_scale, self._changes()

    def connect(self) -> None:
        """From now on gradients go to the trained weights; not before the copy itself is copied."""
        for trained, value in self._pairs:
            value.register_post_accumulate_grad_hook(_adds_to(trained))

    def scaled(self, logprobs: torch.Tensor) -> torch.Tensor:
        """Log-probs whose gradient is scaled up, where float16 would take a small one for zero."""
        if self._type == torch.float16 and torch.is_grad_enabled():
            return _Scaled.apply(logprobs, self._scale)
        return logprobs

    def refresh(self) -> None:
        """Takes the weights over if they were written to: a checkpoint, or an older version, was put back."""
        if self._seen != self._changes():
            self.take_over()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def take_over(self, *, updated: bool = False) -> None:
        """Gives the copy the weights as they are now; right after an update, whose gradients stand, counts losses."""
        lost = moved = 0
        for trained, value in self._pairs:
            rounded = trained.detach().to(value.dtype)
            if updated and trained.grad is not None and value.dtype != torch.float32:
                stirred = trained.grad != 0
                moved += int(stirred.sum())
                lost += int((stirred & (rounded == value)).sum())
            value.copy_(rounded)
        self.lost, self._seen = lost / moved if moved else self.lost, self._changes()

    def unscale(self) -> None:
        """Divides the gradients by what float16's were multiplied by."""
        if self._type != torch.float16:
            return
        for trained in {id(trained): trained for trained, _ in self._pairs}.values():
            if trained.grad is not None:
                trained.grad.div_(self._scale)

    def _changes(self) -> list[int]:
        """How often each trained weight was written to."""
        return [trained._version for trained, _ in self._pairs]  # noqa: SLF001 - PyTorch's own count has no other name


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
