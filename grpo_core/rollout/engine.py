"""The engine protocol: what samples completions, as the three rollout modes see it.

One engine has one owner: no two of its calls run at the same time, save `abort`, which any thread may make. An
engine that can't do something says so in `capabilities` before use, and refuses it before anything has happened.
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
    """Raised when an engine failed, refused or answered something unusable; names the engine and the call."""


class EngineUnreachableError(EngineError):
    """Raised when a server can't be reached, or went away during a call."""


class EngineTimeoutError(EngineError):
    """Raised when an engine gave no answer in the time it has (`rollout.timeout_s`)."""

    outcome = "timeout"


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do.

    Attributes:
        seeds: Each request's seed alone decides what is sampled.
        fingerprint: The engine can hash the weights it holds, by the trainer's own names.
        sleep: The engine can give its memory back between rollouts, by `sleep` and `wake`.
        abort: `abort` ends a running `generate` from another thread.
        partial: The engine goes on behind a `Request.prefix`, and keeps a `Request.budget`.
        update: `update_weights` works.
        why_not: For each of these that the engine lacks, one sentence that says why. Besides them, `slices`:
            why a completion sampled in slices (`partial`) is another one than the same request's sampled at once;
            and `temperature`: why only temperature 1 can be sampled at.
    """

    seeds: bool
    fingerprint: bool
    sleep: bool
    abort: bool = False
    partial: bool = True
    update: bool = True
    why_not: Mapping[str, str] = field(default_factory=dict, hash=False)

    def without(self, **why_not: str) -> Capabilities:
        """These, less the named ones, each with its reason.

        >>> Capabilities(seeds=True, fingerprint=True, sleep=True).without(sleep="it has no memory").sleep
        False
        """
        return replace(self, **dict.fromkeys(why_not, False), why_not={**self.why_not, **why_not})


@runtime_checkable
class Engine(Protocol):
    """Samples completions from one policy version at a time."""

    name: str

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""

    @property
    def policy_version(self) -> int:
        """The version of the weights now held; -1 before the first update."""

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Samples one completion a request, in the order of the requests.

        Raises:
            EngineError: The engine failed, or returned other requests than were asked for.
        """

    def abort(self) -> None:
        """From another thread: the running `generate` returns at once what it has, with reason `abort`.

        A completion that had not begun is empty then. None running: nothing happens.
        """

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Loads a policy version: all parameters by the trainer's (transformers') names; drops cached keys.

        Raises:
            EngineError: They are not the model's parameters; the engine keeps the ones it had.
        """

    def reset_prefix_cache(self) -> None:
        """Forgets cached keys and values, as `update_weights` does by itself. Without a cache: nothing."""

    def fingerprint(self) -> str | None:
        """A digest of the weights held (see `grpo_core.rollout.weights.digest`), or None where it can't be read."""

    def close(self) -> None:
        """Frees what the engine holds; safe to call twice. Sampling and updates are refused from then on."""


@runtime_checkable
class Sleeper(Protocol):
    """An engine whose `capabilities.sleep` is true. Either call may be made twice."""

    def sleep(self) -> None:
        """Gives memory back; the weights are gone, and only `wake` may follow."""

    def wake(self) -> None:
        """Takes the memory again; `update_weights` must follow."""


def check_answers(
    completions: list[Completion], requests: Sequence[Request], engine: str, *,
    aborted: bool = False, vocabulary: int | None = None,
) -> list[Completion]:  # fmt: skip
    """The completions, if they answer these very requests in order, with tokens and finite log-probs.

    Args:
        completions: What an engine answered.
        requests: What it was asked.
        engine: Its name.
        aborted: The caller has called `abort`, so that a completion may have ended anywhere, or not begun.
        vocabulary: How many ids model and tokenizer both have, where that is known: each sampled id is one of them.

    Raises:
        EngineError: Names the first that doesn't.
    """
    where = f"{engine} engine, generate"
    if len(completions) != len(requests):
        raise EngineError(f"{where}: {len(requests)} requests, {len(completions)} completions")
    for request, completion in zip(requests, completions, strict=True):
        if wrong := _wrong(request, completion, aborted, vocabulary):
            raise EngineError(f"{where}: request {request.id} {wrong}")
    return completions


def _wrong(request: Request, completion: Completion, aborted: bool, vocabulary: int | None) -> str:
    """What makes a completion unusable; nothing if nothing does."""
    reason, count = completion.finish_reason, len(completion.ids)
    cut_off = reason == "abort" and aborted
    ended = reason in ("stop", "length") or (reason == "abort" and request.budget > 0)
    if completion.request_id != request.id:
        return f"was answered with {completion.request_id!r}"
    if not (cut_off or (count and ended)):
        return f"ended without a usable completion: {count} ids, reason {reason!r}"
    if vocabulary is not None and not all(0 <= token < vocabulary for token in completion.ids):
        known = f"0 to {vocabulary - 1}, which tokenizer and model have"
        return f"was answered with token ids outside of {known}: {completion.ids}"
    # Written so that NaN, too, is refused; rounding may leave a certain token's log-prob a hair above 0.
    if not all(-float("inf") < value <= 1e-3 for value in completion.logprobs):
        return f"has log-probs that are none: {completion.logprobs}"
    return ""


def check_requests(
    requests: Sequence[Request], params: SamplingParams, *, engine: str, vocabulary: int, max_model_len: int
) -> None:
    """Refuses what no engine can sample as it was asked.

    Raises:
        EngineError: Names the request and what is wrong with it.
    """
    where = f"{engine} engine, generate"
    if not 0 < params.temperature < math.inf:
        raise EngineError(
            f"{where}: impossible sampling parameters: temperature {params.temperature}; expected one above 0"
        )
    names = [request.id for request in requests]
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise EngineError(f"{where}: two requests are called {twice}; completions are paired by these names")
    for request in requests:
        length, prompt = len(request.prompt_ids), f"{where}: request {request.id}"
        if not length or params.max_tokens < 1 or length + params.max_tokens > max_model_len:
            raise EngineError(
                f"{prompt} has {length} prompt tokens and asks for {params.max_tokens} more; expected at "
                f"least 1 of each and together at most {max_model_len} (model.max_length)"
            )
        if len(request.prefix) >= params.max_tokens:
            raise EngineError(f"{prompt} has sampled max_tokens = {params.max_tokens} tokens already")
        if request.budget < 0:
            raise EngineError(f"{prompt} has a budget of {request.budget} tokens; 0 stands for no budget")
        if not all(0 <= token < vocabulary for token in request.prompt_ids + request.prefix):
            raise EngineError(f"{prompt} has a token id outside of 0 to {vocabulary - 1}")


def check_parameters(given: Mapping[str, Any], held: Mapping[str, tuple[int, ...]], engine: str) -> None:
    """Compares the tensors of an update, by name, to the shapes that an engine holds.

    Raises:
        EngineError: Names the first few that are missing, unknown, of another shape, or of whole numbers, which would
            be converted without a word.
    """
    wrong = [f"{name} is missing" for name in held if name not in given]
    wrong += [f"{name} is not in the model" for name in given if name not in held]
    wrong += [f"{name} is of {value.dtype}" for name, value in given.items() if not value.is_floating_point()]
    wrong += [
        f"{name} is {tuple(given[name].shape)}, not {tuple(shape)}"
        for name, shape in held.items()
        if name in given and tuple(given[name].shape) != tuple(shape)
    ]
    if wrong:
        shown = "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        raise EngineError(f"{engine} engine, update_weights: nothing was loaded: {shown}")
