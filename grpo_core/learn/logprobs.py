"""Log-probs of given tokens, without ever holding the logits of all positions.

A vocabulary is wider than a hidden state by a factor of ten to a hundred, so the logits of a whole batch are
the largest tensor of a training step. Here positions go through the output layer in chunks, and the backward
pass computes each chunk's logits again.
"""

from __future__ import annotations

from typing import Any

import torch

from grpo_core.kv_cache import cache_kwargs
from grpo_core.learn.sharing import can_share, read_prompts


def chunked_logprobs(
    hidden_NH: torch.Tensor, weight_VH: torch.Tensor, ids_N: torch.Tensor, *, temperature: float, chunk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each id at its position, and the entropy there.

    Args:
        hidden_NH: Last hidden states, one a position.
        weight_VH: The output layer (without bias).
        ids_N: The id whose log-prob is asked for, one a position.
        temperature: Logits are divided by it, as they were when sampling.
        chunk: Positions whose logits exist at one time.

    Returns:
        Log-probs [N] with a gradient, entropies [N] without, both in nats and in float32 or wider.
    """
    logprobs_N, entropies_N = Chunked.apply(hidden_NH, weight_VH, ids_N, temperature, chunk)
    return logprobs_N, entropies_N


class Chunked(torch.autograd.Function):  # type: ignore[misc]
    """Keeps no logits for the backward pass, which computes each chunk's again.

    All chunks use the same memory: freed blocks of this size are not reliably found again by an allocator (glibc
    grew to the size of all logits).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        ids: torch.Tensor,
        temperature: float,
        chunk: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropies."""
        ctx.save_for_backward(hidden, weight, ids)
        ctx.temperature, ctx.chunk = temperature, chunk
        memory = logits_memory(hidden, weight, chunk)
        values = memory.new_empty(2, len(ids))
        for part in slices(len(ids), chunk):
            everything, spare = logprobs_of_chunk(hidden[part], weight, temperature, memory)
            values[0, part] = everything.gather(-1, ids[part, None])[:, 0]
            torch.sum(torch.exp(everything, out=spare).mul_(everything), -1, out=values[1, part])
        ctx.mark_non_differentiable(entropy := -values[1])
        return values[0], entropy

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient of the log-probs alone."""
        hidden, weight, ids = ctx.saved_tensors
        hidden_grad = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        weight_grad = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        memory = logits_memory(hidden, weight, ctx.chunk)
        for part in slices(len(ids), ctx.chunk):
            # d logprob[id] / d logits = (1 at the id, else 0) - probabilities, over the temperature
            grad = logprobs_of_chunk(hidden[part], weight, ctx.temperature, memory)[0].exp_()
            grad[torch.arange(len(grad), device=grad.device), ids[part]] -= 1
            grad = grad.mul_(-upstream[part, None] / ctx.temperature).to(weight.dtype)
            if hidden_grad is not None:
                torch.mm(grad, weight, out=hidden_grad[part])
            if weight_grad is not None:
                weight_grad.addmm_(grad.T, hidden[part])
        return hidden_grad, weight_grad, None, None, None


def logprobs_and_entropies(
    hidden_NH: torch.Tensor, weight_VH: torch.Tensor, ids_N: torch.Tensor, *, temperature: float, chunk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `chunked_logprobs`, to the last bit; the entropies [N] have a gradient, too."""
    if not len(ids_N):
        return hidden_NH.new_zeros(0), hidden_NH.new_zeros(0)
    logprobs_N, entropies_N = _Both.apply(hidden_NH, weight_VH, ids_N, temperature, chunk)
    return logprobs_N, entropies_N


class _Both(torch.autograd.Function):  # type: ignore[misc]
    """As `Chunked`, with d entropy / d logits = -p (log p + entropy)."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        found = Chunked.forward(ctx, *given)
        ctx.mark_non_differentiable()  # nothing: in place of the entropies
        return found

    @staticmethod
    def backward(
        ctx: Any, of_logprobs: torch.Tensor, of_entropies: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, ids = ctx.saved_tensors
        hidden_grad = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        weight_grad = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        memory = logits_memory(hidden, weight, ctx.chunk)
        for part in slices(len(ids), ctx.chunk):
            everything, chances = logprobs_of_chunk(hidden[part], weight, ctx.temperature, memory)
            torch.exp(everything, out=chances)
            entropy = -(chances * everything).sum(-1, keepdim=True)
            grad = everything.add_(entropy).mul_(-of_entropies[part, None]).mul_(chances)
            grad -= chances * of_logprobs[part, None]
            grad[torch.arange(len(grad), device=grad.device), ids[part]] += of_logprobs[part]
            grad = grad.div_(ctx.temperature).to(weight.dtype)
            if hidden_grad is not None:
                torch.mm(grad, weight, out=hidden_grad[part])
            if weight_grad is not None:
                weight_grad.addmm_(grad.T, hidden[part])
        return hidden_grad, weight_grad, None, None, None


def logits_memory(hidden: torch.Tensor, weight: torch.Tensor, chunk: int) -> torch.Tensor:
    """For the logits of a chunk, twice."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return hidden.new_empty(2, min(chunk, len(hidden)), len(weight), dtype=dtype)


def logprobs_of_chunk(
    hidden: torch.Tensor, weight: torch.Tensor, temperature: float, memory: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of every id at each position, and memory of the same size, both in `memory`."""
    logits, logprobs = memory[:, : len(hidden)]
    if logits.dtype == weight.dtype:
        torch.mm(hidden, weight.T, out=logits)
    else:
        logits.copy_(hidden @ weight.T)
    return torch.log_softmax(logits.div_(temperature), dim=-1, out=logprobs), logits


def slices(count: int, size: int) -> list[slice]:
    """Parts of at most `size` that cover `count` rows in order."""
    return [slice(start, start + size) for start in range(0, count, size)]


def length_mask(lengths_B: torch.Tensor, width: int) -> torch.Tensor:
    """True at the first `lengths_B[b]` of `width` places. Never derived from ids: a pad id may be sampled.

    >>> length_mask(torch.tensor([1, 3]), 3).tolist()
    [[True, False, False], [True, True, True]]
    """
    return torch.arange(width, device=lengths_B.device)[None, :] < lengths_B[:, None]


def completion_logprobs(
    model: Any, ids_BL: torch.Tensor, prompt_lengths_B: torch.Tensor, completion_lengths_B: torch.Tensor, *,
    temperature: float, chunk: int, head: Any = chunked_logprobs, known: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Log-probs and entropies of the completions in `ids_BL`, by one forward pass.

    Args:
        model: A causal language model of transformers with a plain linear output layer.
        ids_BL: Prompt and completion, padded at the end by whatever id. Attention is causal, so no real
            position can see the padding, and no attention mask is needed.
        prompt_lengths_B: Tokens of each prompt, at least 1.
        completion_lengths_B: Tokens of each completion.
        temperature: As in sampling.
        chunk: See `chunked_logprobs`.
        head: What makes log-probs of hidden states.
        known: Ids from this one on are left out of the distribution: the tokenizer lacks them. None: all are in it.

    Returns:
        Two tensors [B, T] with T the longest completion; zero behind a completion's end.
    """
    width = int(completion_lengths_B.max())
    mask_BT = length_mask(completion_lengths_B, width)
    # The token at place p is predicted at place p - 1.
    first_BT = prompt_lengths_B[:, None] - 1 + torch.arange(width, device=ids_BL.device)[None, :]
    rows_N, places_N = mask_BT.nonzero(as_tuple=True)[0], first_BT[mask_BT]
    prompts = [tuple(ids[:length]) for ids, length in zip(ids_BL.tolist(), prompt_lengths_B.tolist())]  # noqa: B905
    if can_share(model) and len(set(prompts)) < len(prompts):
        hidden_NH = _hidden_behind_shared(model, ids_BL, prompts, first_BT)[mask_BT]
    else:
        hidden_NH = model.base_model(input_ids=ids_BL, use_cache=False).last_hidden_state[rows_N, places_N]
    head_VH, asked_N = model.get_output_embeddings().weight, ids_BL[rows_N, places_N + 1]
    if known is not None and known < len(head_VH):
        head_VH = head_VH[:known]
    logprobs_N, entropies_N = head(hidden_NH, head_VH, asked_N, temperature=temperature, chunk=chunk)
    empty_BT = torch.zeros(mask_BT.shape, dtype=logprobs_N.dtype, device=ids_BL.device)
    return empty_BT.masked_scatter(mask_BT, logprobs_N), empty_BT.masked_scatter(mask_BT, entropies_N)


def _hidden_behind_shared(
    model: Any, ids_BL: torch.Tensor, prompts: list[tuple[int, ...]], first_BT: torch.Tensor
) -> torch.Tensor:
    """The hidden states [B, T, H] that predict the completions; each different prompt is read once."""
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
