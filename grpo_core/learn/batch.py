"""Samples as tensors: ids, lengths, advantages and the behaviour log-probs, padded at the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.learn.logprobs import length_mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_core.types import Completion, Sample


@dataclass(frozen=True)
class Batch:
    """B samples; L is the longest prompt and completion together, T the longest completion.

    Attributes:
        ids_BL: Prompt, then completion, then padding (which no real position can see).
        prompt_lengths_B: Tokens of the prompt.
        lengths_B: Tokens of the completion.
        advantages_B: One a sample.
        behaviour_BT: The engine's log-probs; zero behind the end.
        trained_B: False: the sample gets no gradient (the overlong filter).
    """

    ids_BL: torch.Tensor
    prompt_lengths_B: torch.Tensor
    lengths_B: torch.Tensor
    advantages_B: torch.Tensor
    behaviour_BT: torch.Tensor
    trained_B: torch.Tensor

    @property
    def mask_BT(self) -> torch.Tensor:
        """True at the completions' tokens, by length."""
        return length_mask(self.lengths_B, self.behaviour_BT.shape[1])

    def rows(self, part: slice) -> Batch:
        """Some of the samples, cut to their own longest."""
        lengths, prompts = self.lengths_B[part], self.prompt_lengths_B[part]
        ids_BL = self.ids_BL[part, : int((prompts + lengths).max())]
        behaviour_BT = self.behaviour_BT[part, : int(lengths.max())]
        return Batch(ids_BL, prompts, lengths, self.advantages_B[part], behaviour_BT, self.trained_B[part])

    def scored(self, scorer: Any, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropies [B, T] of the completions, by such a module or what PyTorch has wrapped it in."""
        logprobs, entropies = scorer(self.ids_BL, self.prompt_lengths_B, self.lengths_B, temperature)
        return logprobs, entropies


def make_batch(samples: Sequence[Sample], device: str = "cpu") -> Batch:
    """Samples to train on."""
    batch = unjudged([(sample.prompt.ids, sample.completion) for sample in samples], device)
    advantages, trained = [sample.advantage for sample in samples], [sample.trained for sample in samples]
    return replace(
        batch,
        advantages_B=torch.tensor(advantages, dtype=torch.float32, device=device),
        trained_B=torch.tensor(trained, device=device),
    )


def unjudged(answers: Sequence[tuple[tuple[int, ...], Completion]], device: str = "cpu") -> Batch:
    """Prompts' ids and what was sampled behind them, padded and stacked; every advantage is 0.

    Every completion has at least one token (the engine's answers are checked for it).
    """

    def padded(rows: list[list[float]], dtype: torch.dtype) -> torch.Tensor:
        width = max(map(len, rows))
        return torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=dtype, device=device)

    return Batch(
        ids_BL=padded([[*prompt, *answer.ids] for prompt, answer in answers], torch.long),
        prompt_lengths_B=torch.tensor([len(prompt) for prompt, _ in answers], device=device),
        lengths_B=torch.tensor([len(answer.ids) for _, answer in answers], device=device),
        advantages_B=torch.zeros(len(answers), device=device),
        behaviour_BT=padded([list(answer.logprobs) for _, answer in answers], torch.float32),
        trained_B=torch.ones(len(answers), dtype=torch.bool, device=device),
    )
