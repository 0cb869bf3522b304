"""Define the protocol of engines (sampling and weight updates), and the checks that engines share.

The checks are of requests before sampling (`check_requests`), completions after it (`check_answers`), and the tensors
of a weight update (`check_parameters`).

One engine has one owner: no two of its calls run at the same time. `capabilities` shows what an engine can't do. It
refuses such a call before any effect, but a `fingerprint` that it can't compute is None. Failures raise EngineError.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from grpo_core.types import RunError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from grpo_core.types import Completion, Request, SamplingParams


class EngineError(RunError):
    """Raised when an engine failed, refused a call or returned something unusable."""


class EngineTimeoutError(EngineError):
    """Raised when an engine did not answer within `rollout.timeout_s`."""

    outcome = "timeout"


@dataclass(frozen=True)
class Capabilities:
    """The optional features that an engine supports.

    Attributes:
        seeds: A request's seed decides what is sampled for it, whatever else is in the batch.
        fingerprint: The engine can hash the weights it holds, by the trainer's own names.
        sleep: The engine also has the methods `sleep`, which frees the memory of its weights, and `wake`, which
            allocates it again; `update_weights` must follow. Both calls may be repeated.
        update: `update_weights` works.
        truncation: The engine applies top_p, top_k, min_p and repetition_penalty.
        why_not: For each of these that the engine lacks, the reason in one sentence.
    """

    seeds: bool
    fingerprint: bool
    sleep: bool
    update: bool = True
    truncation: bool = False
    why_not: Mapping[str, str] = field(default_factory=dict, hash=False)

    def without(self, **why_not: str) -> Capabilities:
        """Return the capabilities without the named ones, each with its reason.

        >>> Capabilities(seeds=True, fingerprint=True, sleep=True).without(sleep="it has no memory").sleep
        False
        """
        return replace(self, **dict.fromkeys(why_not, False), why_not={**self.why_not, **why_not})


@runtime_checkable
class Engine(Protocol):
    """Protocol: samples completions from one policy version at a time."""

    name: str

    @property
    def capabilities(self) -> Capabilities:
        """The calls and sampling parameters that the engine supports."""

    @property
    def policy_version(self) -> int:
        """The version of the loaded weights; -1 before the first update."""

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Sample one completion per request, in the order of the requests.

        Raises:
            EngineError: The engine failed, or returned completions of other requests.
        """

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Load a policy version: all parameters by the trainer's (transformers') names; drops cached keys.

        Raises:
            EngineError: The tensors are not the model's parameters; the engine keeps its weights.
        """

    def fingerprint(self) -> str | None:
        """Return a digest of the loaded weights (`grpo_core.rollout.weights.digest`); None if they can't be read."""

    def close(self) -> None:
        """Free the engine's resources; safe to call twice. Later sampling and updates are refused."""


def check_answers(
    completions: list[Completion], requests: Sequence[Request], engine: str, *, vocabulary: int | None = None
) -> list[Completion]:
    """Return the completions if they match the requests in order and have usable ids, log-probs and finish reasons.

    Args:
        completions: The engine's answers.
        requests: The requests it received.
        engine: Its name.
        vocabulary: How many ids model and tokenizer both have, where that is known; no other id may be sampled.

    Raises:
        EngineError: The counts differ, or a completion does not match or is unusable; for a completion the message has
            the request's id.
    """
    place = f"{engine} engine, generate"
    if len(completions) != len(requests):
        raise EngineError(f"{place}: {len(requests)} requests, {len(completions)} completions")
    for request, completion in zip(requests, completions, strict=True):
        if fault := _completion_fault(request, completion, vocabulary):
            raise EngineError(f"{place}: request {request.id} {fault}")
    return completions


def _completion_fault(request: Request, completion: Completion, vocabulary: int | None) -> str:
    """Describe what makes a completion unusable; empty if nothing does."""
    reason, count = completion.finish_reason, len(completion.ids)
    if completion.request_id != request.id:
        return f"was answered with {completion.request_id!r}"
    if not count or reason not in ("stop", "length"):
        return f"ended without a usable completion: {count} ids, reason {reason!r}"
    if vocabulary is not None and not all(0 <= token < vocabulary for token in completion.ids):
        ids = f"0 to {vocabulary - 1}, which tokenizer and model have"
        return f"was answered with token ids outside of {ids}: {completion.ids}"
    # Written so that NaN is refused, too; rounding may leave a certain token's log-prob slightly above 0.
    if not all(-float("inf") < value <= 1e-3 for value in completion.logprobs):
        return f"has log-probs that are none: {completion.logprobs}"
    return ""


def check_requests(
    requests: Sequence[Request], params: SamplingParams, *, engine: str, vocabulary: int, max_model_len: int
) -> None:
    """Refuse requests that an engine with this vocabulary and length can't sample.

    Raises:
        EngineError: The temperature or a request is invalid; the message says which and why.
    """
    place = f"{engine} engine, generate"
    if not 0 < params.temperature < math.inf:
        raise EngineError(f"{place}: temperature {params.temperature}; expected one above 0")
    names = [request.id for request in requests]
    if len(set(names)) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise EngineError(f"{place}: two requests are called {twice}; completions are paired by these names")
    for request in requests:
        length, prompt = len(request.prompt_ids), f"{place}: request {request.id}"
        if not length or params.max_tokens < 1 or length + params.max_tokens > max_model_len:
            raise EngineError(
                f"{prompt} has {length} prompt tokens and asks for {params.max_tokens} more; expected at "
                f"least 1 of each and together at most {max_model_len} (model.max_length)"
            )
        if not all(0 <= token < vocabulary for token in request.prompt_ids):
            raise EngineError(f"{prompt} has a token id outside of 0 to {vocabulary - 1}")


def check_parameters(state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], engine: str) -> None:
    """Compare the tensors of an update, by name, to the shapes of an engine's parameters.

    Raises:
        EngineError: Tensors are missing, unknown, of another shape, or of integers, which would be converted silently;
            the message names the first three.
    """
    faults = [f"{name} is missing" for name in shapes if name not in state]
    faults += [f"{name} is not in the model" for name in state if name not in shapes]
    faults += [
        f"{name} is of {value.dtype}" for name, value in state.items() if not value.is_floating_point()
    ]
    faults += [
        f"{name} is {tuple(state[name].shape)}, not {tuple(shape)}"
        for name, shape in shapes.items()
        if name in state and tuple(state[name].shape) != tuple(shape)
    ]
    if faults:
        text = "; ".join(faults[:3]) + (f"; and {len(faults) - 3} more" if len(faults) > 3 else "")
        raise EngineError(f"{engine} engine, update_weights: nothing was loaded: {text}")
