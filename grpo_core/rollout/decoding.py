"""One token at a time for a whole batch, straight on the layers of a Llama-like model.

At one token a row, transformers' own forward pass spends most of its time on what is not arithmetic: masks,
wrappers, caches that grow by copying. This computes the same up to rounding. Each weight sync compares it with
the trainer's log-probs, which come from transformers' own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional

from grpo_core.learn.logprobs import keys_and_values, read_prompts


class Decoder:
    """B rows behind P prompts of up to W tokens, E rows behind each; K heads have keys, and G queries share one's.

    Attributes:
        logits_BV: Those of the next token of each row.
    """

    def __init__(self, model: Any, prompts: list[tuple[int, ...]], room: int) -> None:
        """Reads the prompts of a model that `can_share`; `room` tokens may follow."""
        each, self._place, base = _rows_of_each(prompts), 0, model.base_model
        self._layers = [_Layer(layer) for layer in base.layers]
        shared = read_prompts(model, prompts[::each])
        for layer, held in zip(self._layers, keys_and_values(shared.cache), strict=True):
            layer.begin(*held, shared.gap_BW, each, room)
        head, self._norm = model.get_output_embeddings(), _norm(base.norm)
        self._embed, self._head = base.embed_tokens.forward, _joined(head)
        last_BH = shared.last_BH.repeat_interleave(each, 0)
        behind_T = torch.arange(room, device=model.device)
        positions_BT = shared.lengths_B.repeat_interleave(each)[:, None] + behind_T
        self._cos, self._sin = base.rotary_emb(last_BH[:, None], positions_BT)
        self._sin[..., : self._sin.shape[-1] // 2].neg_()
        self.logits_BV = self._head(last_BH)

    def follow(self, id_B: torch.Tensor) -> None:
        """Goes on behind one more token of each row."""
        turn = [each[:, self._place, None] for each in (self._cos, self._sin)]
        self._place += 1
        x_BH = self._embed(id_B)
        for layer in self._layers:
            x_BH = layer.follow(x_BH, turn, self._place)
        self.logits_BV = self._head(self._norm(x_BH))


class _Layer:
    """A layer, with all that each token asks of it looked up once."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._norms = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        self._qkv = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        norms = (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else ()
        self._head_norms = [_norm(norm) for norm in norms]
        self._scaling, self._out = attention.scaling, _joined(attention.o_proj)
        self._gate_up, self._act = _joined(mlp.gate_proj, mlp.up_proj), mlp.act_fn.forward
        self._down = _joined(mlp.down_proj)

    def begin(self, keys: torch.Tensor, values: torch.Tensor, gap_BW: Any, each: int, room: int) -> None:
        """Keys and values [P, K, W, D] of the prompts, behind each of which `each` rows follow."""
        prompts, kinds, _, width = keys.shape
        self._heads = (prompts, each, kinds, -1, width)
        self._gap = gap_BW.repeat_interleave(kinds, 0)[:, None]
        # Turned, so that the product with all queries of a group is one of two matrices.
        self._prompt_keys, self._prompt_values = keys.flatten(0, 1).mT.contiguous(), values.flatten(0, 1)
        self._held = keys.new_zeros(2, prompts, kinds, each, room, width)

    def follow(self, x_BH: torch.Tensor, turn: list[torch.Tensor], place: int) -> torch.Tensor:
        """What comes out of the layer at the token at `place` behind the prompts, counted from 1."""
        x_BH = x_BH + self._attended(self._norms[0](x_BH), turn, place)
        gate, up = self._gate_up(self._norms[1](x_BH)).chunk(2, -1)
        return x_BH + self._down(self._act(gate) * up)

    def _attended(self, y_BH: torch.Tensor, turn: list[torch.Tensor], place: int) -> torch.Tensor:
        """What attention adds: to a prompt's keys all rows behind it have one product."""
        prompts, each, kinds, _, width = self._heads
        y_BXD = self._qkv(y_BH).view(len(y_BH), -1, width)
        asked_BXD, fresh_BXD = y_BXD[:, :-kinds], y_BXD[:, -2 * kinds :]
        if self._head_norms:
            for norm, part in zip(self._head_norms, asked_BXD.tensor_split([-kinds], 1), strict=True):
                part.copy_(norm(part))
        rolled_BXD = asked_BXD.roll(width // 2, -1)
        asked_BXD.mul_(turn[0]).addcmul_(rolled_BXD, turn[1])
        queries = y_BXD[:, : -2 * kinds].mul_(self._scaling).view(self._heads).transpose(1, 2)
        # Keys and values lie behind one another: both are kept by one copy.
        self._held[..., place - 1, :] = fresh_BXD.view(prompts, each, 2, kinds, width).permute(2, 0, 3, 1, 4)
        keys, values = self._held[..., :place, :].flatten(1, 3)
        queries = queries.reshape(prompts * kinds, -1, width)
        before = torch.baddbmm(self._gap, queries, self._prompt_keys)
        since = torch.bmm(queries.reshape(len(keys), -1, width), keys.mT)
        scores = torch.cat([before, since.view(*before.shape[:2], -1)], -1)
        shares = scores.softmax(-1, torch.float32).to(y_BH.dtype)
        out = torch.bmm(shares[..., :-place], self._prompt_values).view(len(keys), -1, width)
        more = torch.bmm(shares[..., -place:].reshape(since.shape), values)
        return self._out((out + more).view(prompts, kinds, each, -1).transpose(1, 2).reshape(len(y_BH), -1))


def _norm(norm: Any) -> Any:
    weight = norm.weight
    return partial(torch.rms_norm, normalized_shape=weight.shape, weight=weight, eps=norm.variance_epsilon)


def _joined(*layers: Any) -> Any:
    """The products of linear layers that read the same, as one."""
    weight = _together([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else _together([layer.bias for layer in layers])
    return partial(functional.linear, weight=weight, bias=bias)


def _together(parts: list[torch.Tensor]) -> torch.Tensor:
    """Parameters behind one another in one memory, where they stay: what is written into them is written here, too."""
    first, sizes = parts[0], [part.numel() for part in parts]
    memory = [(part.untyped_storage().data_ptr(), part.storage_offset()) for part in parts]
    if memory != [(memory[0][0], sum(sizes[:place])) for place in range(len(parts))]:
        pieces = torch.cat([part.data for part in parts]).split([len(part) for part in parts])
        for part, piece in zip(parts, pieces, strict=True):
            part.data = piece
    return first.data.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride(), 0)


def _rows_of_each(prompts: list[tuple[int, ...]]) -> int:
    """How many equal prompts stand together, if it is as many of each; 1: every row has a prompt of its own.

    >>> _rows_of_each([(1,), (1,), (2,), (2,)]), _rows_of_each([(1,), (1,), (2,)])
    (2, 1)
    """
    count = next((place for place, ids in enumerate(prompts) if ids != prompts[0]), len(prompts))
    return count if prompts == [ids for ids in prompts[::count] for _ in range(count)] else 1
