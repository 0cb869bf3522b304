"""Log-probs of so few tokens that their probabilities stay from the forward to the backward pass."""

from __future__ import annotations

from typing import Any

import torch

from grpo_core.products import product


def kept(*given: Any) -> Any:
    """As `grpo_core.learn.logprobs.Chunked.apply`, which computes them twice, up to rounding."""
    return _Kept.apply(*given)


class _Kept(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        ids: torch.Tensor,
        temperature: float,
        chunk: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        chances, values = hidden.new_empty(len(ids), len(weight)), hidden.new_empty(2, len(ids))
        for part in _parts(ids, chunk):
            everything = torch.log_softmax(product(hidden[part], weight).div_(temperature), -1)
            values[0, part] = everything.gather(-1, ids[part, None])[:, 0]
            torch.exp(everything, out=chances[part])
            values[1, part] = torch.linalg.vecdot(chances[part], everything)
        ctx.save_for_backward(hidden, weight, ids, chances)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.mark_non_differentiable(entropy := -values[1])
        return values[0], entropy

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, ids, chances = ctx.saved_tensors
        hidden_grad = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        weight_grad = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for part in _parts(ids, ctx.chunk):
            scale = upstream[part, None] / ctx.temperature
            grad = chances[part] * -scale
            grad.scatter_add_(1, ids[part, None], scale)
            if hidden_grad is not None:
                hidden_grad[part] = product(grad, weight.T)
            if weight_grad is not None:
                weight_grad += product(grad.T, hidden[part].T)
        return hidden_grad, weight_grad, None, None, None


def _parts(ids: torch.Tensor, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, len(ids), chunk)]
