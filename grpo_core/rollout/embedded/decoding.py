"""One token at a time for a whole batch, straight on the layers of a Llama-like model.

At one token a row, transformers' own forward pass spends most of its time on what is not arithmetic: masks,
wrappers, caches that grow by copying. This computes the same up to rounding. Each weight sync compares it with
the trainer's log-probs, which come from transformers' own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from grpo_core.learn.sharing import keys_and_values, read_prompts


class Decoder:
    """B rows behind prompts of any lengths, in K places each; heads are N x D, and G of them share keys.

    Attributes:
        logits_BV: Those of the next token of each row.
    """

    def __init__(self, model: Any, prompts: list[tuple[int, ...]], room: int) -> None:
        """Reads the prompts of a model that `can_share`; `room` tokens may follow."""
        shared = read_prompts(model, prompts)
        self._base, self._head = model.base_model, model.get_output_embeddings()
        self._end, self._mask = shared.gap_BW.shape[1], None
        self._start = self._end
        self._held = [
            tuple(functional.pad(tensor, (0, 0, 0, room)) for tensor in pair)
            for pair in keys_and_values(shared.cache)
        ]
        if shared.gap_BW.any():
            self._mask = functional.pad(shared.gap_BW, (0, room))[:, None, None]
        positions_BT = shared.lengths_B[:, None] + torch.arange(room, device=model.device)
        self._cos, self._sin = self._base.rotary_emb(shared.last_BH[:, None], positions_BT)
        self._sin[..., : self._sin.shape[-1] // 2].neg_()
        self.logits_BV = self._head(shared.last_BH)

    def follow(self, id_B: torch.Tensor) -> None:
        """Goes on behind one more token of each row."""
        place = self._end - self._start
        turn = (self._cos[:, place, None], self._sin[:, place, None])
        self._end += 1
        x_BH = self._base.embed_tokens(id_B)
        for layer, held in zip(self._base.layers, self._held):  # noqa: B905 - Python 3.10
            x_BH = x_BH + self._attended(layer.self_attn, _normed(layer.input_layernorm, x_BH), held, turn)
            y_BH, mlp = _normed(layer.post_attention_layernorm, x_BH), layer.mlp
            x_BH = x_BH + mlp.down_proj(mlp.act_fn(mlp.gate_proj(y_BH)) * mlp.up_proj(y_BH))
        self.logits_BV = self._head(_normed(self._base.norm, x_BH))

    def _attended(self, attention: Any, x_BH: torch.Tensor, held: Any, turn: Any) -> torch.Tensor:
        """What one layer's attention adds."""
        shape, end = (len(x_BH), -1, attention.head_dim), self._end
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        q_BND, k_BND, v_BND = (project(x_BH).view(shape) for project in projections)
        if hasattr(attention, "q_norm"):
            q_BND, k_BND = _normed(attention.q_norm, q_BND), _normed(attention.k_norm, k_BND)
        keys_BNKD, values_BNKD = held
        keys_BNKD[:, :, end - 1] = _turned(k_BND, *turn)
        values_BNKD[:, :, end - 1] = v_BND
        # Heads that share keys stand where queries of several tokens would: nothing need be repeated.
        q_BNGD = _turned(q_BND, *turn).view(len(x_BH), keys_BNKD.shape[1], -1, attention.head_dim)
        out_BNGD = functional.scaled_dot_product_attention(
            q_BNGD,
            keys_BNKD[:, :, :end],
            values_BNKD[:, :, :end],
            attn_mask=None if self._mask is None else self._mask[..., :end],
            scale=attention.scaling,
        )
        return attention.o_proj(out_BNGD.reshape(len(x_BH), -1))


def _normed(norm: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _turned(x_BND: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions, in the layout of Llama: the halves of a head are pairs. `sin` has the sign of its half."""
    return (x_BND * cos).addcmul_(x_BND.roll(x_BND.shape[-1] // 2, -1), sin)
