"""Define the data of a GRPO step: prompts, sampling parameters, requests, completions, samples, rollouts.

Training uses token ids and numbers per token; texts are only for reward functions and people. A completion has, for
each token, its log-prob under the distribution that sampled it (the *behaviour* stream) and the policy version that
sampled it. `RunError` is the base class of the errors that end a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length"]
Scored = tuple[float, dict[str, "float | None"]]  # a reward, and its parts by function


class RunError(RuntimeError):
    """Base class of named errors that end a run: an engine, a sync, a reward or a loss failed, or a token is too old.

    Attributes:
        outcome: The value of `outcome` in the run's summary.
    """

    outcome = "failed"


@dataclass(frozen=True)
class Prompt:
    """One row of the task.

    Attributes:
        id: Id of the prompt, `<rollout or "eval">.<position>`.
        text: The prompt as text.
        ids: Token ids of the prompt, which are sent to the engine.
        columns: The row's other fields (such as the expected answer), passed to reward functions.
        source: The prompt as in the data set, a text or a list of messages; None if it is `text`.
    """

    id: str
    text: str
    ids: tuple[int, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    source: Any = None


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of sampling. Every field is sent to the engine, which takes none from the model's files.

    Attributes:
        max_tokens: Longest completion, in tokens.
        temperature: Divides the logits; above zero.
        stop_ids: A completion ends with the first of these ids, which is its last token.
        top_p: Only the most probable ids that together have this probability are sampled; 1: all.
        top_k: Only this many most probable ids are sampled; 0: all.
        min_p: Only ids with at least this share of the highest probability are sampled; 0: all.
        repetition_penalty: Divides the positive logits of ids of the prompt and completion so far, and multiplies the
            negative ones; 1: none.
    """

    max_tokens: int
    temperature: float = 1.0
    stop_ids: tuple[int, ...] = ()
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True)
class Request:
    """A request for one completion.

    Attributes:
        id: Id that pairs the completion with its prompt; unique among the requests in flight.
        prompt_ids: Token ids of the prompt.
        seed: Seed of this sample's own generator, so that a sample does not depend on others in its batch.
    """

    id: str
    prompt_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Completion:
    """An engine's sample for one request; ValueError if the ids, log-probs and versions are not equally many.

    Attributes:
        request_id: The id of the request.
        ids: Sampled token ids, the stop id included.
        logprobs: Natural log-prob of each id under the sampling distribution (all of `SamplingParams` applied).
        versions: The policy version that sampled each id.
        finish_reason: `stop` (a stop id was sampled) or `length`.
    """

    request_id: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.logprobs) == len(self.versions):
            raise ValueError(
                f"completion {self.request_id}: {len(self.ids)} ids, {len(self.logprobs)} log-probs and "
                f"{len(self.versions)} versions: an engine returned streams of unequal length"
            )

    @property
    def cut_off(self) -> bool:
        """Return whether the completion was truncated at `max_tokens`."""
        return self.finish_reason == "length"


@dataclass(frozen=True)
class Sample:
    """A completion with its reward and advantage.

    Attributes:
        prompt: The prompt.
        completion: The completion.
        text: The completion as text.
        reward: The weighted sum of the reward functions, minus penalties.
        advantage: The advantage (see `grpo_core.learn.advantages`); 0 until it is computed.
        scores: Reward by function, before weights; None where a function returned None. The penalty is `overlong`.
        trained: Whether the sample gets a gradient. Without it (the overlong filter) its reward counts for the group.
    """

    prompt: Prompt
    completion: Completion
    text: str
    reward: float
    advantage: float
    scores: Mapping[str, float | None] = field(default_factory=dict)
    trained: bool = True


Group = Sequence[Sample]  # all samples of one prompt in one step


@dataclass(frozen=True)
class Rollout:
    """A batch of prompts, with several requests for each."""

    number: int
    prompts: tuple[Prompt, ...]
    requests: tuple[Request, ...]
