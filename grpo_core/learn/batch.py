"""Build training batches: samples as tensors of padded ids, lengths, advantages, engine log-probs and loss weights.

`make_batch` builds a batch from samples, `completion_batch` from prompt ids and completions without rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from grpo_core.learn.logprobs import length_mask
from grpo_core.types import Completion, Sample


@dataclass(frozen=True)
class Batch:
    """A batch of B samples; L is the longest prompt and completion together, T the longest completion.

    Attributes:
        ids_BL: Ids of prompt, completion and padding. No real position attends to the padding.
        prompt_lengths_B: Number of tokens of each prompt.
        lengths_B: Number of tokens of each completion.
        advantages_B: Advantage of each sample.
        behaviour_BT: The engine's log-probs; zero after the end of a completion.
        trained_B: False for samples without a gradient (the overlong filter).
        weights_BT: Each token's weight in the loss of an optimizer step; zero until the update sets it.
    """

    ids_BL: torch.Tensor
    prompt_lengths_B: torch.Tensor
    lengths_B: torch.Tensor
    advantages_B: torch.Tensor
    behaviour_BT: torch.Tensor
    trained_B: torch.Tensor
    weights_BT: torch.Tensor

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.lengths_B)

    @property
    def mask_BT(self) -> torch.Tensor:
        """True at the tokens of completions, False at padding."""
        return length_mask(self.lengths_B, self.behaviour_BT.shape[1])

    @property
    def counted_BT(self) -> torch.Tensor:
        """True at the completion tokens that have a gradient: `mask_BT` of the samples that are trained on."""
        return self.mask_BT & self.trained_B[:, None]

    def select(self, part: slice) -> Batch:
        """Return a slice of the batch, with its padding cut to the longest sample."""
        lengths, prompts = self.lengths_B[part], self.prompt_lengths_B[part]
        ids_BL = self.ids_BL[part, : int((prompts + lengths).max())]
        behaviour_BT, weights_BT = (
            stream[part, : int(lengths.max())] for stream in (self.behaviour_BT, self.weights_BT)
        )
        return Batch(
            ids_BL, prompts, lengths, self.advantages_B[part], behaviour_BT, self.trained_B[part], weights_BT
        )


def make_batch(samples: Sequence[Sample], device: str = "cpu") -> Batch:
    """Pad and stack samples into a batch, with their advantages."""
    batch = completion_batch([(sample.prompt.ids, sample.completion) for sample in samples], device)
    advantages, trained = [sample.advantage for sample in samples], [sample.trained for sample in samples]
    return replace(
        batch,
        advantages_B=torch.tensor(advantages, dtype=torch.float32, device=device),
        trained_B=torch.tensor(trained, device=device),
    )


def completion_batch(pairs: Sequence[tuple[tuple[int, ...], Completion]], device: str = "cpu") -> Batch:
    """Pad and stack prompt ids with their completions (at least one token each); the advantages are 0."""

    def padded(rows: list[list[float]], dtype: torch.dtype) -> torch.Tensor:
        width = max(map(len, rows))
        return torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=dtype, device=device)

    behaviour_BT = padded([list(completion.logprobs) for _, completion in pairs], torch.float32)
    return Batch(
        ids_BL=padded([[*prompt, *completion.ids] for prompt, completion in pairs], torch.long),
        prompt_lengths_B=torch.tensor([len(prompt) for prompt, _ in pairs], device=device),
        lengths_B=torch.tensor([len(completion.ids) for _, completion in pairs], device=device),
        advantages_B=torch.zeros(len(pairs), device=device),
        behaviour_BT=behaviour_BT,
        trained_B=torch.ones(len(pairs), dtype=torch.bool, device=device),
        weights_BT=torch.zeros_like(behaviour_BT),
    )
