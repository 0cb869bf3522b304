"""The data that flows through a GRPO step: prompts, requests, completions, samples, groups.

Everything is token ids and per-token numbers; text is for people. Completions carry the log-probs under the
distribution that sampled them (the *behaviour* stream) and, per token, the policy version that sampled it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FinishReason = Literal["stop", "length", "abort"]
Scored = tuple[float, dict[str, "float | None"]]  # a reward, and what it is made of


class RunError(RuntimeError):
    """What ends a run by name: an engine, a sync, a reward or a loss failed. Any other error is a fault of ours.

    Attributes:
        outcome: What the run's document then says.
    """

    outcome = "failed"


@dataclass(frozen=True)
class Prompt:
    """One row of the task.

    Attributes:
        id: Unique within the data set.
        text: The prompt as people read it.
        ids: Its token ids, what the engine is given.
        columns: The row's other fields (the expected answer, say), handed to reward functions.
        source: The prompt as the data set has it, a text or a list of messages; None: as `text`.
    """

    id: str
    text: str
    ids: tuple[int, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    source: Any = None


@dataclass(frozen=True)
class SamplingParams:
    """How completions are sampled. Every field is sent to the engine: nothing comes from a model's own file.

    Attributes:
        max_tokens: Longest completion, in tokens.
        temperature: Logits are divided by it; above zero.
        stop_ids: A completion ends with the first of these ids, which is kept as its last token.
    """

    max_tokens: int
    temperature: float = 1.0
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Request:
    """One completion asked of an engine.

    Attributes:
        id: Unique among the requests in flight; the completion is paired with its prompt by it.
        prompt_ids: Token ids of the prompt.
        seed: Seeds this sample's own generator: what is sampled does not depend on its neighbours.
        prefix: Ids sampled earlier, perhaps by an older policy; the completion goes on behind them.
        budget: New ids at most in this call, after which it ends with `abort`; 0: up to max_tokens.
    """

    id: str
    prompt_ids: tuple[int, ...]
    seed: int
    prefix: tuple[int, ...] = ()
    budget: int = 0


@dataclass(frozen=True)
class Completion:
    """What an engine sampled for one request, without the request's prefix.

    Attributes:
        request_id: The id of the request.
        ids: Sampled token ids, the stop id included.
        logprobs: One per id: natural log-prob under the sampling distribution (temperature applied).
        versions: One per id: the policy version that sampled it.
        finish_reason: `stop` (a stop id was sampled), `length` or `abort`.
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
        """Whether it ended at `max_tokens` rather than by itself."""
        return self.finish_reason == "length"


@dataclass(frozen=True)
class Sample:
    """A completion with its reward and advantage.

    Attributes:
        prompt: What was asked.
        completion: What was answered.
        text: The completion as text.
        reward: What the advantage is made of: the weighted sum of the reward functions, less penalties.
        advantage: Relative to its group.
        scores: Reward by function, before weights; None where a function had nothing to say.
        trained: False: it counts for its group, but gets no gradient (the overlong filter).
    """

    prompt: Prompt
    completion: Completion
    text: str
    reward: float
    advantage: float
    scores: Mapping[str, float | None] = field(default_factory=dict)
    trained: bool = True


@dataclass(frozen=True)
class Group:
    """All samples of one prompt in one step: what an advantage is relative to."""

    prompt: Prompt
    samples: tuple[Sample, ...]

    @property
    def rewards(self) -> list[float]:
        """In the order of the samples."""
        return [sample.reward for sample in self.samples]

    def having(self, field: str, values: Sequence[float]) -> Group:
        """The same samples with other rewards or advantages.

        >>> answer = Completion("0.0.0", (1,), (-0.5,), (0,), "stop")
        >>> prompt = Prompt("0.0", "a>", (0,))
        >>> Group(prompt, (Sample(prompt, answer, "a", 1.0, 0.0),)).having("reward", [0.5]).rewards
        [0.5]
        """
        changes: list[dict[str, Any]] = [{field: value} for value in values]
        pairs = zip(self.samples, changes, strict=True)
        return Group(self.prompt, tuple(replace(sample, **change) for sample, change in pairs))


@dataclass(frozen=True)
class Rollout:
    """What is asked of the engine at one time: a batch of prompts, several completions each."""

    number: int
    prompts: tuple[Prompt, ...]
    requests: tuple[Request, ...]
