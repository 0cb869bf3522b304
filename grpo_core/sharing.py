"""A prompt goes through the model once, and its keys and values serve every completion of its group.

Prompts of different lengths stand in one batch: each is padded at the end to the longest. No token sees that
padding, as attention is causal for the prompts and masked for what comes behind them, and no position counts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of these it was tested that nothing but mask and position ids says where a token stands.
_MODELS = ("llama", "mistral", "qwen2", "qwen3")
# In the others, an angle depends on the longest sequence of the batch.
_ROTATIONS = ("default", "linear", "llama3", "yarn")


def can_share(model: Any) -> bool:
    """Whether a model's prompts can be read once and continued; the plain way is always open."""
    config = model.config
    rotation = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return (
        config.model_type in _MODELS
        and config._attn_implementation in ("eager", "sdpa")  # noqa: SLF001 - it has no public name
        and not getattr(config, "sliding_window", None)
        and rotation.get("rope_type", "default") in _ROTATIONS
        and not model.is_gradient_checkpointing  # which does without caches
    )


class SharedPrompts(DynamicCache):  # type: ignore[misc]
    """Keys and values of B prompts, and of what goes on behind them. W is the longest prompt.

    Attributes:
        last_BH: The last hidden state of each prompt, which predicts the first token behind it.
    """

    def __init__(self, model: Any, prompts: Sequence[tuple[int, ...]], room: int = 0) -> None:
        """Reads each different prompt once.

        Args:
            model: A model that `can_share`.
            prompts: Token ids, one tuple a row; those of a group are equal.
            room: Tokens that may follow, for which memory is set aside (they can't be differentiated);
                0: tokens follow once, with a gradient where gradients are enabled.
        """
        super().__init__()
        self._model, self._room = model, room
        self._held: list[list[torch.Tensor]] = []
        self._used: list[int] = []
        places = {ids: place for place, ids in enumerate(dict.fromkeys(prompts))}
        lengths = [len(ids) for ids in places]
        self._width, self._even = max(lengths), min(lengths) == max(lengths)
        self._rows_B = torch.tensor([places[ids] for ids in prompts], device=model.device)
        self._lengths_B = torch.tensor([len(ids) for ids in prompts], device=model.device)
        ids_PW = torch.tensor([[*ids, *[0] * (self._width - len(ids))] for ids in places], device=model.device)
        hidden_PWH = model.base_model(
            input_ids=ids_PW, past_key_values=self, use_cache=True
        ).last_hidden_state
        self.last_BH = hidden_PWH[self._rows_B, self._lengths_B - 1]
        places_W = torch.arange(self._width, device=model.device)
        self._gap_BW = self.last_BH.new_zeros(len(prompts), self._width)
        self._gap_BW.masked_fill_(places_W[None, :] >= self._lengths_B[:, None], -torch.inf)

    def follow(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """The last hidden states [B, T, H] of the next tokens of each row."""
        count, before = ids_BT.shape[1], self._used[0] - self._width
        positions_T = torch.arange(before, before + count, device=ids_BT.device)
        mask = None
        if count > 1 or not self._even:
            seen_TS = self._gap_BW.new_full((count, before + count), -torch.inf).triu(before + 1)
            shape = (len(ids_BT), 1, count, -1)
            mask = torch.cat([self._gap_BW[:, None, None].expand(shape), seen_TS.expand(shape)], -1)
        return self._model.base_model(  # type: ignore[no-any-return]
            input_ids=ids_BT,
            position_ids=self._lengths_B[:, None] + positions_T[None, :],
            attention_mask=mask,
            past_key_values=self,
            use_cache=True,
        ).last_hidden_state

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by the model: takes the new keys and values of a layer, and returns all of it."""
        new = (keys, values)
        if layer == len(self._held):  # the prompts
            self._held.append([self._spread(tensor) for tensor in new])
            self._used.append(self._width)
            return new
        start = self._used[layer]
        self._used[layer] = end = start + keys.shape[2]
        if not self._room:
            keys, values = (torch.cat(parts, 2) for parts in zip(self._held[layer], new))  # noqa: B905 - Python 3.10
            return keys, values
        for held, tensor in zip(self._held[layer], new):  # noqa: B905
            held[:, :, start:end] = tensor
        return self._held[layer][0][:, :, :end], self._held[layer][1][:, :, :end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Called by the model: places taken so far."""
        return self._used[layer_idx] if layer_idx < len(self._used) else 0

    def get_mask_sizes(self, query: Any, layer_idx: int = 0) -> tuple[int, int]:
        """Called by the model: places in all, and where they begin. `query` is a count, or places one by one."""
        return self.get_seq_length(layer_idx) + (query if isinstance(query, int) else len(query)), 0

    def _spread(self, prompts: torch.Tensor) -> torch.Tensor:
        """A layer's keys or values of each prompt, for each row, with the room behind them."""
        rows = prompts.index_select(0, self._rows_B)
        if not self._room:
            return rows
        batch, heads, _, size = rows.shape
        return torch.cat([rows, rows.new_empty(batch, heads, self._room, size)], 2)
