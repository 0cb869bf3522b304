"""Log-probs and entropies that both have a gradient: what an entropy bonus needs."""

from __future__ import annotations

from typing import Any

import torch

from grpo_core.learn.logprobs import Chunked, logits_memory, logprobs_of_chunk, slices


def logprobs_and_entropies(
    hidden_NH: torch.Tensor, weight_VH: torch.Tensor, ids_N: torch.Tensor, *, temperature: float, chunk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `chunked_logprobs`, to the last bit; the entropies [N] have a gradient, too."""
    if not len(ids_N):
        return hidden_NH.new_zeros(0), hidden_NH.new_zeros(0)
    logprobs_N, entropies_N = _Both.apply(hidden_NH, weight_VH, ids_N, temperature, chunk)
    return logprobs_N, entropies_N


class _Both(torch.autograd.Function):  # type: ignore[misc]
    """As `grpo_core.learn.logprobs.Chunked`, with d entropy / d logits = -p (log p + entropy)."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        found = Chunked.forward(ctx, *given)
        ctx.mark_non_differentiable()  # nothing: in place of the entropies
        return found

    @staticmethod
    def backward(
        ctx: Any, of_logprobs: torch.Tensor, of_entropies: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, ids = ctx.saved_tensors
        hidden_grad = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        weight_grad = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        memory = logits_memory(hidden, weight, ctx.chunk)
        for part in slices(len(ids), ctx.chunk):
            everything, chances = logprobs_of_chunk(hidden[part], weight, ctx.temperature, memory)
            torch.exp(everything, out=chances)
            entropy = -(chances * everything).sum(-1, keepdim=True)
            grad = everything.add_(entropy).mul_(-of_entropies[part, None]).mul_(chances)
            grad -= chances * of_logprobs[part, None]
            grad[torch.arange(len(grad), device=grad.device), ids[part]] += of_logprobs[part]
            grad = grad.div_(ctx.temperature).to(weight.dtype)
            if hidden_grad is not None:
                torch.mm(grad, weight, out=hidden_grad[part])
            if weight_grad is not None:
                weight_grad.addmm_(grad.T, hidden[part])
        return hidden_grad, weight_grad, None, None, None
