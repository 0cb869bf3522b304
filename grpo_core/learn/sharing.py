"""A prompt goes through the model once, and its keys and values serve every completion of its group.

Prompts of different lengths stand in one batch, each padded at the end to the longest. No token sees that
padding: attention is causal for the prompts, masked for what follows them, and no position counts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.kv_cache import output_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

# Tested: in these nothing but mask and position ids says where a token stands, and layers are Llama's.
_MODELS = ("llama", "mistral", "qwen2", "qwen3")
# In the others, angles depend on the longest sequence of the batch.
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
        and not _recomputes(model)  # which does without caches
    )


def _recomputes(model: Any) -> bool:
    """Activation checkpointing, under its name since transformers 5.23 or the one before."""
    newer = "is_activation_checkpointing"
    return bool(getattr(model, newer) if hasattr(type(model), newer) else model.is_gradient_checkpointing)


@dataclass(frozen=True)
class Shared:
    """B prompts that were read, in W places each.

    Attributes:
        cache: Their keys and values, as transformers keeps them.
        last_BH: The hidden state that predicts the first token behind each.
        lengths_B: Their tokens.
        gap_BW: What attention's scores are given: 0 at their tokens, the type's least value at the padding.
    """

    cache: Any
    last_BH: torch.Tensor
    lengths_B: torch.Tensor
    gap_BW: torch.Tensor


def read_prompts(model: Any, prompts: Sequence[tuple[int, ...]]) -> Shared:
    """Reads each different prompt once; `prompts` has one a row, those of a group are equal."""
    places = {ids: place for place, ids in enumerate(dict.fromkeys(prompts))}
    width = max(map(len, places))
    padded = [[*ids, *[0] * (width - len(ids))] for ids in places]
    out = model.base_model(input_ids=torch.tensor(padded, device=model.device), use_cache=True)
    found = [(places[ids], len(ids)) for ids in prompts]
    rows_B, lengths_B = torch.tensor(found, device=model.device).unbind(1)
    cache = output_cache(out)
    cache.reorder_cache(rows_B)
    gap_BW = out.last_hidden_state.new_zeros(len(prompts), width)
    behind_BW = torch.arange(width, device=model.device)[None, :] >= lengths_B[:, None]
    last_BH = out.last_hidden_state[rows_B, lengths_B - 1]
    return Shared(cache, last_BH, lengths_B, gap_BW.masked_fill(behind_BW, torch.finfo(gap_BW.dtype).min))


def keys_and_values(cache: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Those of each layer, from a cache of transformers 4 or 5."""
    if hasattr(cache, "layers"):
        return [(layer.keys, layer.values) for layer in cache.layers]
    return list(zip(cache.key_cache, cache.value_cache))  # noqa: B905 - Python 3.10
