"""Compute log-probs and entropies of given tokens without holding the logits of all positions in memory.

The logits of a whole batch would be the largest tensor of a training step. Here positions go through the output layer
in chunks: `completion_logprobs` runs the model, and `chunked_logprobs` the output layer. The backward pass computes the
logits of all chunks but the last again.

If `can_share` accepts the model, equal prompts of a batch are computed once: their completions get copies of the KV
cache (`read_prompts`). `keys_and_values`, `cache_kwargs` and `output_cache` hide how releases of transformers name and
store it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def chunked_logprobs(
    hidden_NH: Tensor, weight_VH: Tensor, ids_N: Tensor, *, temperature: float, chunk: int
) -> tuple[Tensor, Tensor]:
    """Compute the log-prob of each id at its position, and the entropy there.

    Args:
        hidden_NH: Last hidden states, one per position; converted to the output layer's type.
        weight_VH: The output layer (without bias).
        ids_N: The id at each position.
        temperature: Divides the logits, as it did in sampling.
        chunk: Number of positions whose logits are in memory at a time.

    Returns:
        Log-probs [N] with a gradient and entropies [N] without, both in nats and in float32 or wider.
    """
    logprobs_N, entropies_N = ChunkedLogprobs.apply(
        hidden_NH.to(weight_VH.dtype), weight_VH, ids_N, temperature, chunk
    )
    return logprobs_N, entropies_N


class ChunkedLogprobs(torch.autograd.Function):  # type: ignore[misc]
    """Autograd function that stores the log-probs of one chunk for the backward pass, which recomputes the others.

    All chunks use the same memory. Allocators do not reliably reuse freed blocks of this size: glibc grew to the size
    of all logits.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float, chunk: int
    ) -> tuple[Tensor, Tensor]:
        """Compute log-probs and entropies."""
        ctx.save_for_backward(hidden, weight, ids)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.memory = memory = logits_memory(hidden, weight, chunk)
        values = memory.new_empty(2, len(ids))
        for part in slices(len(ids), chunk):
            logprobs, spare = logprobs_of_chunk(hidden[part], weight, temperature, memory)
            values[0, part] = logprobs.gather(-1, ids[part, None])[:, 0]
            torch.sum(torch.exp(logprobs, out=spare).mul_(logprobs), -1, out=values[1, part])
        entropies = -values[1]
        ctx.mark_non_differentiable(entropies)
        return values[0], entropies

    @staticmethod
    def backward(ctx: Any, logprobs_grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the hidden states and the output layer."""
        hidden, weight, ids = ctx.saved_tensors
        hidden_grad = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        weight_grad = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        memory, ctx.memory = ctx.memory, None  # a second backward pass allocates its own
        logprobs = None if memory is None else memory[1]  # of the last chunk
        memory = logits_memory(hidden, weight, ctx.chunk) if memory is None else memory
        for part in reversed(slices(len(ids), ctx.chunk)):
            if logprobs is None:
                logprobs, _ = logprobs_of_chunk(hidden[part], weight, ctx.temperature, memory)
            # d logprob[id] / d logits = (1 at the id, else 0) - p, over the temperature
            grad, logprobs = logprobs[: len(ids[part])].exp_(), None
            grad[torch.arange(len(grad), device=grad.device), ids[part]] -= 1
            grad = grad.mul_(-logprobs_grad[part, None] / ctx.temperature).to(weight.dtype)
            if hidden_grad is not None:
                torch.mm(grad, weight, out=hidden_grad[part])
            if weight_grad is not None:
                weight_grad.addmm_(grad.T, hidden[part])
        return hidden_grad, weight_grad, None, None, None


def logits_memory(hidden: Tensor, weight: Tensor, chunk: int) -> Tensor:
    """Allocate two buffers for the logits of one chunk."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return hidden.new_empty(2, min(chunk, len(hidden)), len(weight), dtype=dtype)


def logprobs_of_chunk(
    hidden: Tensor, weight: Tensor, temperature: float, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the log-probs of every id at each position; also returns a spare buffer of the same size."""
    logits, logprobs = memory[:, : len(hidden)]
    if logits.dtype == weight.dtype:
        torch.mm(hidden, weight.T, out=logits)
    else:
        logits.copy_(hidden @ weight.T)
    if temperature != 1.0:
        logits.div_(temperature)
    return torch.log_softmax(logits, dim=-1, out=logprobs), logits


def slices(count: int, size: int) -> list[slice]:
    """Return slices of at most `size` rows that divide `count` rows, in order."""
    return [slice(start, start + size) for start in range(0, count, size)]


def length_mask(lengths_B: Tensor, width: int) -> Tensor:
    """Return a mask [B, width], True at the first `lengths_B[b]` positions of each row.

    Ids can't show where the padding begins, because pad ids may be sampled.

    >>> length_mask(torch.tensor([1, 3]), 3).tolist()
    [[True, False, False], [True, True, True]]
    """
    return torch.arange(width, device=lengths_B.device)[None, :] < lengths_B[:, None]


def completion_logprobs(
    model: Any,
    ids_BL: Tensor,
    prompt_lengths_B: Tensor,
    completion_lengths_B: Tensor,
    *,
    temperature: float,
    chunk: int,
    known: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute log-probs and entropies of the completions in `ids_BL`.

    This takes one forward pass, or up to two if prompts are shared: one for the prompts and one for the completions.

    Args:
        model: A causal language model of transformers with a plain linear output layer.
        ids_BL: Prompt and completion, padded at the end by any id. Attention is causal, so no real position
            sees the padding, and no attention mask is needed.
        prompt_lengths_B: Number of tokens of each prompt, at least 1.
        completion_lengths_B: Number of tokens of each completion.
        temperature: Divides the logits, as it did in sampling.
        chunk: Number of positions whose logits are in memory at a time.
        known: Number of ids that the tokenizer has; later ids are excluded from the distribution. None: all are
            included.

    Returns:
        Two tensors [B, T] with T the longest completion; zero after the end of a completion.
    """
    width = int(completion_lengths_B.max())
    mask_BT = length_mask(completion_lengths_B, width)
    # The token at position p is predicted at position p - 1.
    first_BT = prompt_lengths_B[:, None] - 1 + torch.arange(width, device=ids_BL.device)[None, :]
    rows_N, places_N = mask_BT.nonzero(as_tuple=True)[0], first_BT[mask_BT]
    prompts = [tuple(ids[:length]) for ids, length in zip(ids_BL.tolist(), prompt_lengths_B.tolist())]  # noqa: B905
    if can_share(model) and len(set(prompts)) < len(prompts):
        hidden_NH = _hidden_after_shared(model, ids_BL, prompts, first_BT)[mask_BT]
    else:
        hidden_NH = model.base_model(input_ids=ids_BL, use_cache=False).last_hidden_state[rows_N, places_N]
    head_VH, ids_N = model.get_output_embeddings().weight, ids_BL[rows_N, places_N + 1]
    if known is not None and known < len(head_VH):
        head_VH = head_VH[:known]
    logprobs_N, entropies_N = chunked_logprobs(
        hidden_NH, head_VH, ids_N, temperature=temperature, chunk=chunk
    )
    empty_BT = torch.zeros(mask_BT.shape, dtype=logprobs_N.dtype, device=ids_BL.device)
    return empty_BT.masked_scatter(mask_BT, logprobs_N), empty_BT.masked_scatter(mask_BT, entropies_N)


def _hidden_after_shared(
    model: Any, ids_BL: Tensor, prompts: list[tuple[int, ...]], first_BT: Tensor
) -> Tensor:
    """Compute the hidden states [B, T, H] that predict the completions; equal prompts are computed once."""
    shared, width = read_prompts(model, prompts), first_BT.shape[1] - 1
    hidden_BTH = shared.last_BH[:, None]
    if width:
        places_BT = first_BT[:, 1:]
        shape = (len(prompts), 1, width, -1)
        least = torch.finfo(shared.gap_BW.dtype).min
        before_TT = shared.gap_BW.new_full((width, width), least).triu(1)
        gap_BTW = shared.gap_BW[:, None, None].expand(shape)
        hidden = model.base_model(
            input_ids=ids_BL.gather(1, places_BT.clamp(max=ids_BL.shape[1] - 1)),
            position_ids=places_BT,
            attention_mask=torch.cat([gap_BTW, before_TT.expand(shape)], -1),
            use_cache=True,
            **cache_kwargs(model.base_model, shared.cache),
        ).last_hidden_state
        hidden_BTH = torch.cat([hidden_BTH, hidden], 1)
    return hidden_BTH


# Tested model types: only mask and position ids determine a token's position, and the layers are Llama's.
_MODELS = ("llama", "mistral", "qwen2", "qwen3")
# With other rotations, angles depend on the longest sequence of the batch.
_ROTATIONS = ("default", "linear", "llama3", "yarn")


def can_share(model: Any) -> bool:
    """Return whether a group's prompt can be computed once and its KV cache copied for the completions."""
    config = model.config
    rotation = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return (
        config.model_type in _MODELS
        and config._attn_implementation in ("eager", "sdpa")  # noqa: SLF001 - it has no public name
        and not getattr(config, "sliding_window", None)
        and rotation.get("rope_type", "default") in _ROTATIONS
        and not _recomputes(model)  # recomputation works without caches
    )


def _recomputes(model: Any) -> bool:
    """Return whether gradient checkpointing is on, by its attribute since transformers 5.23 or the earlier one."""
    newer = "is_activation_checkpointing"
    return bool(getattr(model, newer) if hasattr(type(model), newer) else model.is_gradient_checkpointing)


@dataclass(frozen=True)
class SharedPrompts:
    """The KV cache and last hidden states of B prompts, padded to W positions.

    Prompts of different lengths are padded at the end. No token attends to the padding: attention is causal within the
    prompts, and completions mask the padding. Position ids don't count it.

    Attributes:
        cache: The keys and values, as transformers stores them.
        last_BH: The hidden state that predicts the first token after each prompt.
        lengths_B: Number of tokens of each prompt.
        gap_BW: Additive attention mask: 0 at tokens, the dtype's lowest value at padding.
    """

    cache: Any
    last_BH: Tensor
    lengths_B: Tensor
    gap_BW: Tensor


def read_prompts(model: Any, prompts: Sequence[tuple[int, ...]]) -> SharedPrompts:
    """Compute each distinct prompt once; `prompts` has one prompt per row, and the rows of a group have the same."""
    places = {ids: place for place, ids in enumerate(dict.fromkeys(prompts))}
    width = max(map(len, places))
    padded = [[*ids, *[0] * (width - len(ids))] for ids in places]
    out = model.base_model(input_ids=torch.tensor(padded, device=model.device), use_cache=True)
    rows = [(places[ids], len(ids)) for ids in prompts]
    rows_B, lengths_B = torch.tensor(rows, device=model.device).unbind(1)
    cache = output_cache(out)
    cache.reorder_cache(rows_B)
    gap_BW = out.last_hidden_state.new_zeros(len(prompts), width)
    padding_BW = torch.arange(width, device=model.device)[None, :] >= lengths_B[:, None]
    last_BH = out.last_hidden_state[rows_B, lengths_B - 1]
    gap_BW = gap_BW.masked_fill(padding_BW, torch.finfo(gap_BW.dtype).min)
    return SharedPrompts(cache, last_BH, lengths_B, gap_BW)


def keys_and_values(cache: Any) -> list[tuple[Tensor, Tensor]]:
    """Return keys and values of each layer, from a cache of transformers 4 or 5."""
    if hasattr(cache, "layers"):
        return [(layer.keys, layer.values) for layer in cache.layers]
    return list(zip(cache.key_cache, cache.value_cache))  # noqa: B905 - Python 3.10


def cache_kwargs(model: Any, cache: Any) -> dict[str, Any]:
    """Return the keyword argument that passes `cache` to `model.forward`.

    transformers 5.24 renames `past_key_values` to `cache` (removal announced for 5.40) and warns for the old name. The
    model's own signature decides, because models are renamed one by one.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    name = "cache" if "cache" in inspect.signature(base.forward).parameters else "past_key_values"
    return {name: cache}


def output_cache(output: Any) -> Any:
    """Return the key-value cache of a model output."""
    return output["cache" if "cache" in output else "past_key_values"]
