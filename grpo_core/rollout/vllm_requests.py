"""Requests and completions in vLLM's words, and back: nothing left to vLLM's choice, nothing guessed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import EngineError
from grpo_core.types import Completion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_core.types import Request, SamplingParams

# vLLM quietly raises a lower temperature to this one (vllm/sampling_params.py, _MAX_TEMP): the log-probs
# would be those of another distribution than the trainer's.
LOWEST_TEMPERATURE = 0.01
# Why a completion sampled in slices is another one than the same request's sampled at once.
SLICES = "vLLM's generators can't be wound forward: behind a prefix it draws with another seed"


def check_temperature(params: SamplingParams, engine: str) -> None:
    """Refuses a temperature that vLLM would change without a word.

    Raises:
        EngineError: It is below the lowest.
    """
    if params.temperature < LOWEST_TEMPERATURE:
        raise EngineError(
            f"{engine} engine, generate: temperature {params.temperature} is below {LOWEST_TEMPERATURE}, "
            f"and vLLM would sample at {LOWEST_TEMPERATURE} instead"
        )


def pinned(params: SamplingParams, request: Request) -> dict[str, Any]:
    """Every sampling parameter that shapes the distribution or ends a completion, by the names vLLM has everywhere."""
    return {
        "n": 1,
        "max_tokens": asked_tokens(request, params),
        "min_tokens": 0,
        "temperature": params.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": mixed_seed(request),
        "stop": [],
        "stop_token_ids": list(params.stop_ids),
        "ignore_eos": True,  # the stop ids alone decide
        "logprobs": 0,  # the sampled id's own
    }


def asked_tokens(request: Request, params: SamplingParams) -> int:
    """How many new ids a call may sample at most."""
    left = params.max_tokens - len(request.prefix)
    return min(request.budget or left, left)


def ended(reason: Any, ids: Sequence[int], request: Request, params: SamplingParams) -> Any:
    """Why a completion ended, where vLLM says that its length did it: perhaps the call's budget, not the completion's.

    >>> from grpo_core.types import Request, SamplingParams
    >>> ended("length", (5, 6), Request("r", (1,), seed=0, budget=2), SamplingParams(max_tokens=4))
    'abort'
    """
    if reason == "length" and len(request.prefix) + len(ids) < params.max_tokens:
        return "abort"
    return reason


def mixed_seed(request: Request) -> int:
    """A seed of 63 bits that every bit of the request's has a part in.

    Of a seed, torch's generator on a CPU uses the lowest 32 bits alone, and vLLM reads -1 as "no seed". Behind a
    prefix it is another one, or the same numbers would be drawn again.

    >>> from grpo_core.types import Request
    >>> mixed_seed(Request("r", (1,), seed=0)) % 2**32 == mixed_seed(Request("r", (1,), seed=2**32)) % 2**32
    False
    """
    text = f"{request.seed} {len(request.prefix)}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def completion(request: Request, output: Any, version: int, params: SamplingParams) -> Completion:
    """One answer of vLLM, checked to be the answer to this request; None or an unfinished one was aborted."""
    where = f"vllm engine, generate: request {request.id}"
    if output is None:
        return Completion(request.id, (), (), (), "abort")
    if tuple(output.prompt_token_ids) != request.prompt_ids + request.prefix:
        raise EngineError(f"{where}: the answer is to another prompt")
    if len(output.outputs) != 1 or output.outputs[0].logprobs is None:
        raise EngineError(f"{where}: {len(output.outputs)} completions, or no log-probs")
    sampled = output.outputs[0]
    ids = tuple(int(token) for token in sampled.token_ids)
    if len(sampled.logprobs) != len(ids):
        raise EngineError(f"{where}: {len(ids)} ids and {len(sampled.logprobs)} log-probs")
    reason: Any = sampled.finish_reason if output.finished else "abort"
    if reason not in ("stop", "length", "abort"):
        raise EngineError(f"{where}: ended with reason {reason!r}")
    try:
        # By the sampled id: a position's first entry need not be the sampled one.
        logprobs = tuple(
            float(entry[token].logprob) for entry, token in zip(sampled.logprobs, ids, strict=True)
        )
    except KeyError as error:
        raise EngineError(f"{where}: no log-prob for the sampled id {error}") from error
    if ids and ids[-1] in params.stop_ids:
        reason = "stop"  # vLLM 0.10.2 says "length" of a stop id that is the last token there is room for
    reason = ended(reason, ids, request, params)
    return Completion(request.id, ids, logprobs, (version,) * len(ids), reason)
