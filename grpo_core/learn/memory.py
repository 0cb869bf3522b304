"""What a model is changed by so that its training takes less memory."""

from __future__ import annotations

from typing import Any

from torch import nn


def recompute_activations(causal: Any) -> None:
    """Transformers recomputes in training mode alone; dropout, which that would wake up, is set to zero."""
    for layer in causal.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        if hasattr(layer, "attention_dropout"):
            layer.attention_dropout = 0.0
    if hasattr(causal, "activation_checkpointing_enable"):  # its name since transformers 5.23
        causal.activation_checkpointing_enable({"use_reentrant": False})
    else:
        causal.gradient_checkpointing_enable({"use_reentrant": False})
    causal.train()
