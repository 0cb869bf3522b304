"""Log-probs of given tokens, without ever holding the logits of all positions.

A vocabulary is wider than a hidden state by a factor of ten to a hundred, so the logits of a whole batch are
the largest tensor of a training step. Here positions go through the output layer in chunks, and the backward
pass computes each chunk's logits again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


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
    logprobs, entropies = [], []
    for start in range(0, len(ids_N), chunk):
        part = slice(start, start + chunk)
        arguments = (hidden_NH[part], weight_VH, ids_N[part], temperature)
        if torch.is_grad_enabled():
            logprob, entropy = checkpoint(_logprobs_of_chunk, *arguments, use_reentrant=False)
        else:
            logprob, entropy = _logprobs_of_chunk(*arguments)
        logprobs.append(logprob)
        entropies.append(entropy)
    if not logprobs:
        return hidden_NH.new_zeros(0), hidden_NH.new_zeros(0)
    return torch.cat(logprobs), torch.cat(entropies)


def _logprobs_of_chunk(
    hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = hidden @ weight.T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    everything = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
        entropy = -(everything.exp() * everything).sum(-1)
    return everything.gather(-1, ids[:, None])[:, 0], entropy


def length_mask(lengths_B: torch.Tensor, width: int) -> torch.Tensor:
    """True at the first `lengths_B[b]` of `width` places. Never derived from ids: a pad id may be sampled.

    >>> length_mask(torch.tensor([1, 3]), 3).tolist()
    [[True, False, False], [True, True, True]]
    """
    return torch.arange(width, device=lengths_B.device)[None, :] < lengths_B[:, None]


def completion_logprobs(
    model: Any,
    ids_BL: torch.Tensor,
    prompt_lengths_B: torch.Tensor,
    completion_lengths_B: torch.Tensor,
    *,
    temperature: float,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies of the completions in `ids_BL`, by one forward pass.

    Args:
        model: A causal language model of transformers with a plain linear output layer.
        ids_BL: Prompt and completion, padded at the end by whatever id. Attention is causal, so no real
            position can see the padding, and no attention mask is needed.
        prompt_lengths_B: Tokens of each prompt, at least 1.
        completion_lengths_B: Tokens of each completion.
        temperature: As in sampling.
        chunk: See `chunked_logprobs`.

    Returns:
        Two tensors [B, T] with T the longest completion; zero behind a completion's end.
    """
    hidden_BLH = model.base_model(input_ids=ids_BL, use_cache=False).last_hidden_state
    width = int(completion_lengths_B.max())
    mask_BT = length_mask(completion_lengths_B, width)
    # The token at place p is predicted at place p - 1.
    first_BT = prompt_lengths_B[:, None] - 1 + torch.arange(width, device=ids_BL.device)[None, :]
    rows_N, places_N = mask_BT.nonzero(as_tuple=True)[0], first_BT[mask_BT]
    logprobs_N, entropies_N = chunked_logprobs(
        hidden_BLH[rows_N, places_N],
        model.get_output_embeddings().weight,
        ids_BL[rows_N, places_N + 1],
        temperature=temperature,
        chunk=chunk,
    )
    empty_BT = torch.zeros(mask_BT.shape, dtype=logprobs_N.dtype, device=ids_BL.device)
    return empty_BT.masked_scatter(mask_BT, logprobs_N), empty_BT.masked_scatter(mask_BT, entropies_N)
