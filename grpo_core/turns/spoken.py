"""Conversations as data: completions in which not every token was sampled, and advantages of single tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from grpo_core.types import Completion, Sample

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Conversation(Completion):
    """Several turns of the model, with what an environment put between them; ids as they were, never tokenised again.

    Attributes:
        sampled: One per id: False where the environment put it. Its log-prob is 0 and counts nowhere; its version is
            that of the turn before it.
    """

    sampled: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        """Streams are of equal length.

        Raises:
            ValueError: They aren't.
        """
        super().__post_init__()
        if len(self.sampled) != len(self.ids):
            raise ValueError(f"completion {self.request_id}: {len(self.ids)} ids, {len(self.sampled)} marks")

    @property
    def told(self) -> dict[str, Any]:
        """What a line of completions.jsonl has more."""
        return {"sampled": list(self.sampled)}


@dataclass(frozen=True)
class Routed(Completion):
    """A completion of a mixture of experts, with where each token went.

    Attributes:
        experts: For each token of prompt and completion but the last, for each layer that chooses: the experts.
    """

    experts: tuple[tuple[tuple[int, ...], ...], ...] = ()


@dataclass(frozen=True)
class TokenSample(Sample):
    """A sample whose tokens have advantages of their own.

    Attributes:
        advantages: One per id of the completion, in place of `advantage`; at tokens not sampled it counts nowhere.
    """

    advantages: tuple[float, ...] = ()


def sampled(completion: Completion) -> tuple[bool, ...]:
    """One per id: whether the model sampled it.

    >>> sampled(Completion("0", (1, 2), (-0.5, -0.1), (0, 0), "stop"))
    (True, True)
    """
    return completion.sampled if isinstance(completion, Conversation) else (True,) * len(completion.ids)


def needed(samples: Sequence[Sample]) -> tuple[bool, bool, bool]:
    """Whether samples have tokens that no model sampled, advantages by token, and experts that are to be replayed."""
    masked = any(not all(sampled(sample.completion)) for sample in samples)
    judged = any(isinstance(sample, TokenSample) for sample in samples)
    return masked, judged, any(isinstance(sample.completion, Routed) for sample in samples)


def by_token(sample: Sample) -> tuple[float, ...]:
    """The advantage of each token."""
    own = sample.advantages if isinstance(sample, TokenSample) else ()
    return own or (sample.advantage,) * len(sample.completion.ids)


def plain(sample: Sample) -> Sample:
    """The sample without advantages of tokens, which those that are made anew take the place of."""
    if not isinstance(sample, TokenSample):
        return sample
    return Sample(**{entry.name: getattr(sample, entry.name) for entry in fields(Sample)})
