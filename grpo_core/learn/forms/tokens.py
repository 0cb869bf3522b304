"""Samples as tensors, where not every token was sampled by the model, or where tokens have advantages of their own."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch

from grpo_core.experts.routes import OWN
from grpo_core.learn.batch import Batch, make_batch
from grpo_core.turns.spoken import Routed, by_token, needed, sampled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_core.types import Sample


@dataclass(frozen=True)
class TokenBatch(Batch):
    """A batch whose mask has holes; what stands in them counts in no sum, no mean and no normaliser.

    Attributes:
        sampled_BT: False where an environment put the token.
        advantages_BT: One a token.
        experts_BLNK: K experts of each token in each of N layers, `OWN` where the model is to choose; None: everywhere.
    """

    sampled_BT: torch.Tensor
    advantages_BT: torch.Tensor
    experts_BLNK: torch.Tensor | None = None

    @property
    def mask_BT(self) -> torch.Tensor:
        """True at the tokens that the model sampled."""
        return super().mask_BT & self.sampled_BT

    def rows(self, part: slice) -> TokenBatch:
        """Some of the samples, cut to their own longest."""
        found = super().rows(part)
        width = found.behaviour_BT.shape[1]
        experts = None if self.experts_BLNK is None else self.experts_BLNK[part, : found.ids_BL.shape[1]]
        return widened(found, self.sampled_BT[part, :width], self.advantages_BT[part, :width], experts)


def token_batch(samples: Sequence[Sample], device: str = "cpu") -> Batch:
    """The core's batch, and more only where a sample asks for it."""
    batch = make_batch(samples, device)
    if not any(needed(samples)):
        return batch
    shape = batch.behaviour_BT.shape
    marks = torch.zeros(shape, dtype=torch.bool)
    advantages = torch.zeros(shape)
    for row, sample in enumerate(samples):
        length = len(sample.completion.ids)
        marks[row, :length] = torch.tensor(sampled(sample.completion))
        advantages[row, :length] = torch.tensor(by_token(sample), dtype=torch.float32)
    return widened(batch, marks.to(device), advantages.to(device), _experts(samples, batch.ids_BL))


def widened(
    batch: Batch, sampled_BT: torch.Tensor, advantages_BT: torch.Tensor, experts_BLNK: torch.Tensor | None
) -> TokenBatch:
    """The same rows with marks, advantages and experts of tokens."""
    core = {entry.name: getattr(batch, entry.name) for entry in fields(Batch)}
    return TokenBatch(**core, sampled_BT=sampled_BT, advantages_BT=advantages_BT, experts_BLNK=experts_BLNK)


def _experts(samples: Sequence[Sample], ids_BL: torch.Tensor) -> torch.Tensor | None:
    rows = [s.completion.experts if isinstance(s.completion, Routed) else () for s in samples]
    known = [torch.tensor(row) for row in rows if row]
    if not known:
        return None
    found = torch.full((*ids_BL.shape, *known[0].shape[1:]), OWN)
    for number, row in enumerate(rows):
        if row:
            found[number, : len(row)] = torch.tensor(row)
    return found.to(ids_BL.device)
