"""Matrix products of float32 on a CPU by oneDNN, which PyTorch has beside the library that it uses.

That one, MKL, leaves half the width of processors that are not Intel's unused: for a thousand tokens and a layer oneDNN
needs 0.4 to 0.6 of its time. Both compute in float32 throughout, and the same shapes give the same bits every time. In
a PyTorch without it, in other types and on other devices everything is as usual.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_THERE = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
FEW, FEWEST, LITTLE = 64, 4, 10_000  # tokens; and, between these two, tokens times what comes out


def faster(causal: Any) -> Any:
    """The model, whose linear layers from now on multiply so."""
    for layer in causal.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = OneLinear
    return causal


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`x @ weight.T`, without a gradient."""
    if not _fits(x, weight):
        return nn.functional.linear(x, weight)
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")  # noqa: SLF001
    return found


def _fits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return _THERE and x.is_cpu and x.dtype == weight.dtype == torch.float32


class OneLinear(nn.Linear):  # type: ignore[misc]
    """A layer of a model, in place of PyTorch's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As there."""
        weight = self.weight
        found: torch.Tensor = self.way(x.numel() // weight.shape[1], weight)(x, weight, self.bias)
        return found

    @staticmethod
    def way(tokens: int, weight: torch.Tensor) -> Any:
        """What multiplies so many tokens; a few at a time through a small matrix are no faster."""
        few = tokens < FEW and (tokens < FEWEST or tokens * len(weight) < LITTLE)
        return nn.functional.linear if few or not _fits(weight, weight) else _linear


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    times: Any = _Product.apply if torch.is_grad_enabled() else product
    found: torch.Tensor = times(x.contiguous(), weight)
    return found if bias is None else found + bias


class _Product(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        upstream = upstream.contiguous()
        x_grad = product(upstream, weight.T) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return x_grad, None
        return x_grad, product(upstream.flatten(0, -2).T, x.flatten(0, -2).T)
