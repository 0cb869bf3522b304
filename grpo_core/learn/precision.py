"""Mixed precision training: a bfloat16 copy computes; master weights, gradients and optimizer state are float32."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from grpo_core.config import ModelConfig


class LoweredCopy:
    """A low-precision copy of a trained module; its gradients go to the float32 master weights.

    Attributes:
        module: The copy.
    """

    def __init__(self, trained: Any, options: ModelConfig) -> None:
        """Copy the module, and convert the copy to `options.dtype`."""
        self.module = copy.deepcopy(trained)
        _convert(self.module, getattr(torch, options.dtype), options.float32_parts)
        masters = dict(trained.named_parameters(remove_duplicate=False))
        # A trained weight and its copy; a tied embedding has two copies where the output layer stays in float32.
        pairs = [(masters[name], value) for name, value in self.module.named_parameters()]
        self._pairs = [pair for pair in pairs if pair[0].requires_grad]
        self._copied = self._versions()

    def connect(self) -> None:
        """Add hooks that send gradients to the master weights. Call it last: copies of `module` need no hooks."""
        for trained, value in self._pairs:
            value.register_post_accumulate_grad_hook(_gradient_hook(trained))

    def refresh(self) -> None:
        """Copy the master weights if they were written to, as when a checkpoint is loaded."""
        if self._copied != self._versions():
            self.copy_weights()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def copy_weights(self) -> None:
        """Copy the master weights, rounded."""
        for trained, value in self._pairs:
            value.copy_(trained)
        self._copied = self._versions()

    def _versions(self) -> list[int]:
        """Return how often each master weight was written to, as PyTorch counts."""
        return [trained._version for trained, _ in self._pairs]  # noqa: SLF001 - PyTorch's own count has no other name


def _convert(scorer: Any, kind: torch.dtype, float32_parts: tuple[str, ...]) -> None:
    """Convert a model to `kind` except the parts that stay in float32; norms round their output to `kind`."""
    head = scorer.causal.get_output_embeddings()
    if "head" in float32_parts and head.weight is scorer.causal.get_input_embeddings().weight:
        # Tied: the embedding is in the compute type.
        head.weight = nn.Parameter(head.weight.detach().clone())
    scorer.to(kind)
    if "head" in float32_parts:
        head.float()
    if "norms" in float32_parts:
        for name, module in scorer.causal.named_modules():
            if "norm" in name.rpartition(".")[2]:
                module.float()
                module.register_forward_hook(lambda _, __, out: out.to(kind))


def _gradient_hook(trained: torch.Tensor) -> Any:
    """Return a hook that adds a gradient of the copy to its master weight's gradient, in float32."""

    def add(value: torch.Tensor) -> None:
        assert value.grad is not None
        grad, value.grad = value.grad.float(), None
        trained.grad = grad if trained.grad is None else trained.grad.add_(grad)

    return add
