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
    """B rows behind P prompts of up to W tokens, E rows behind each; K heads have keys, and G queries share one's.

    Attributes:
        logits_BV: Those of the next token of each row.
    """

    def __init__(self, model: Any, prompts: list[tuple[int, ...]], room: int) -> None:
        """Reads the prompts of a model that `can_share`; `room` tokens may follow."""
        self._each, self._place = _rows_of_each(prompts), 0
        shared = read_prompts(model, prompts[:: self._each])
        self._base, self._head = model.base_model, model.get_output_embeddings()
        last_BH = shared.last_BH.repeat_interleave(self._each, 0)
        self._held, rows = [], len(prompts)
        for keys, values in keys_and_values(shared.cache):
            _, heads, _, width = keys.shape
            # Turned, so that the product with all queries of a group is one of two matrices.
            held = keys.flatten(0, 1).mT.contiguous(), values.flatten(0, 1)
            self._held.append((*held, *keys.new_zeros(2, rows * heads, room, width)))
        self._gap = shared.gap_BW.repeat_interleave(heads, 0)[:, None]
        behind_T = torch.arange(room, device=model.device)
        positions_BT = shared.lengths_B.repeat_interleave(self._each)[:, None] + behind_T
        self._cos, self._sin = self._base.rotary_emb(last_BH[:, None], positions_BT)
        self._sin[..., : self._sin.shape[-1] // 2].neg_()
        self.logits_BV = self._head(last_BH)

    def follow(self, id_B: torch.Tensor) -> None:
        """Goes on behind one more token of each row."""
        turn = (self._cos[:, self._place, None], self._sin[:, self._place, None])
        self._place += 1
        x_BH = self._base.embed_tokens(id_B)
        for layer, held in zip(self._base.layers, self._held):  # noqa: B905 - Python 3.10
            x_BH = x_BH + self._attended(layer.self_attn, _normed(layer.input_layernorm, x_BH), held, turn)
            y_BH, mlp = _normed(layer.post_attention_layernorm, x_BH), layer.mlp
            x_BH = x_BH + mlp.down_proj(mlp.act_fn(mlp.gate_proj(y_BH)) * mlp.up_proj(y_BH))
        self.logits_BV = self._head(_normed(self._base.norm, x_BH))

    def _attended(self, attention: Any, x_BH: torch.Tensor, held: Any, turn: Any) -> torch.Tensor:
        """What one layer's attention adds: to a prompt's keys all rows behind it have one product."""
        shape, place = (len(x_BH), -1, attention.head_dim), self._place
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        q_BND, k_BKD, v_BKD = (project(x_BH).view(shape) for project in projections)
        if hasattr(attention, "q_norm"):
            q_BND, k_BKD = _normed(attention.q_norm, q_BND), _normed(attention.k_norm, k_BKD)
        q_BND, k_BKD = _turned(q_BND, *turn) * attention.scaling, _turned(k_BKD, *turn)
        prompt_keys, prompt_values, keys, values = held
        (heads, width), each = k_BKD.shape[1:], self._each

        def by_head(found_BND: torch.Tensor) -> torch.Tensor:
            return found_BND.view(len(x_BH) // each, each, heads, -1, width).transpose(1, 2)

        for new, found in ((keys, k_BKD), (values, v_BKD)):
            new[:, place - 1] = by_head(found).reshape(-1, width)
        queries = by_head(q_BND).reshape(len(prompt_keys), -1, width)
        before = torch.baddbmm(self._gap, queries, prompt_keys)
        since = torch.bmm(queries.reshape(len(keys), -1, width), keys[:, :place].mT)
        scores = torch.cat([before, since.view(*before.shape[:2], -1)], -1)
        shares = scores.softmax(-1, torch.float32).to(x_BH.dtype)
        out = torch.bmm(shares[..., :-place], prompt_values).view(len(keys), -1, width)
        out = out + torch.bmm(shares[..., -place:].reshape(len(keys), -1, place), values[:, :place])
        out = out.view(-1, heads, each, out.shape[1] * width).transpose(1, 2)
        return attention.o_proj(out.reshape(len(x_BH), -1))


def _rows_of_each(prompts: list[tuple[int, ...]]) -> int:
    """How many equal prompts stand together, if it is as many of each; 1: every row has a prompt of its own.

    >>> _rows_of_each([(1,), (1,), (2,), (2,)]), _rows_of_each([(1,), (1,), (2,)])
    (2, 1)
    """
    count = next((place for place, ids in enumerate(prompts) if ids != prompts[0]), len(prompts))
    return count if prompts == [ids for ids in prompts[::count] for _ in range(count)] else 1


def _normed(norm: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _turned(x_BND: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions, in the layout of Llama: the halves of a head are pairs. `sin` has the sign of its half."""
    return (x_BND * cos).addcmul_(x_BND.roll(x_BND.shape[-1] // 2, -1), sin)
