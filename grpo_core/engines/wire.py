"""Requests and completions as JSON, for an engine in another process or behind HTTP.

JSON keeps floats exactly (Python writes the shortest text that reads back as the same float), so going through
it changes no bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grpo_core.engines.base import EngineError
from grpo_core.types import Completion, Request, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def encode_requests(requests: Sequence[Request], params: SamplingParams) -> dict[str, Any]:
    """The body of a `generate` call."""
    return {
        "requests": [
            {
                "id": request.id,
                "prompt_ids": list(request.prompt_ids),
                "seed": request.seed,
                "prefix": list(request.prefix),
                "budget": request.budget,
            }
            for request in requests
        ],
        "params": {
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "stop_ids": list(params.stop_ids),
        },
    }


def decode_requests(body: Mapping[str, Any]) -> tuple[list[Request], SamplingParams]:
    """The other side of `encode_requests`; the body's shape has been checked or is our own."""
    params = body["params"]
    requests = [
        Request(e["id"], tuple(e["prompt_ids"]), e["seed"], tuple(e["prefix"]), e["budget"])
        for e in body["requests"]
    ]
    return requests, SamplingParams(params["max_tokens"], params["temperature"], tuple(params["stop_ids"]))


def encode_completions(completions: Sequence[Completion]) -> dict[str, Any]:
    """The answer to a `generate` call."""
    return {
        "completions": [
            {
                "request_id": completion.request_id,
                "ids": list(completion.ids),
                "logprobs": list(completion.logprobs),
                "versions": list(completion.versions),
                "finish_reason": completion.finish_reason,
            }
            for completion in completions
        ]
    }


def decode_completions(body: Any, requests: Sequence[Request], engine: str) -> list[Completion]:
    """The completions of these very requests, in their order.

    Raises:
        EngineError: Something else was answered: the wrong count, other ids, no tokens, streams of unequal length.
    """
    where = f"{engine} engine, generate"
    try:
        completions = [
            Completion(
                str(entry["request_id"]),
                tuple(int(token) for token in entry["ids"]),
                tuple(float(value) for value in entry["logprobs"]),
                tuple(int(version) for version in entry["versions"]),
                entry["finish_reason"],
            )
            for entry in body["completions"]
        ]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise EngineError(f"{where}: the answer is not a list of completions: {error!r}") from error
    return check_answers(completions, requests, engine)


def check_answers(
    completions: list[Completion], requests: Sequence[Request], engine: str, vocabulary: int | None = None
) -> list[Completion]:
    """The completions, if they answer these very requests in order, each with a token and finite log-probs.

    With `vocabulary`, the model's number of tokens, each id is one of them.

    Raises:
        EngineError: Names the first that doesn't.
    """
    where = f"{engine} engine, generate"
    if len(completions) != len(requests):
        raise EngineError(f"{where}: {len(requests)} requests, {len(completions)} completions")
    for request, completion in zip(requests, completions, strict=True):
        if completion.request_id != request.id:
            raise EngineError(f"{where}: request {request.id} was answered with {completion.request_id!r}")
        ended = completion.finish_reason in ("stop", "length") or bool(request.budget)
        if not completion.ids or not ended:
            raise EngineError(f"{where}: request {request.id} ended without a usable completion")
        if vocabulary is not None and not all(0 <= token < vocabulary for token in completion.ids):
            raise EngineError(
                f"{where}: request {request.id} was answered with token ids outside of 0 to {vocabulary - 1}: "
                f"{completion.ids}"
            )
        # Written so that NaN, too, is refused; rounding may leave a certain token's log-prob a hair above 0.
        if not all(-float("inf") < value <= 1e-3 for value in completion.logprobs):
            raise EngineError(
                f"{where}: request {request.id} has log-probs that are none: {completion.logprobs}"
            )
    return completions
