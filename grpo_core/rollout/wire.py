"""Requests and completions as JSON, for an engine in another process or behind HTTP.

JSON keeps floats exactly (Python writes the shortest text that reads back as the same float), so going through
it changes no bit.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import Capabilities, EngineError, check_answers
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


def decode_completions(
    body: Any, requests: Sequence[Request], engine: str, *, aborted: bool = False
) -> list[Completion]:
    """The completions of these very requests, in their order.

    Raises:
        EngineError: Something else was answered (see `check_answers`).
    """
    where = f"{engine} engine, generate"
    try:
        completions = [_completion(entry) for entry in body["completions"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise EngineError(f"{where}: the answer is not a list of completions: {error!r}") from error
    return check_answers(completions, requests, engine, aborted=aborted)


def _completion(entry: Any) -> Completion:
    return Completion(
        str(entry["request_id"]),
        tuple(int(token) for token in entry["ids"]),
        tuple(float(value) for value in entry["logprobs"]),
        tuple(int(version) for version in entry["versions"]),
        entry["finish_reason"],
    )


def encode_capabilities(capabilities: Capabilities) -> dict[str, Any]:
    """What an engine can do, as JSON."""
    return {**vars(capabilities), "why_not": dict(capabilities.why_not)}


def decode_capabilities(body: Any, engine: str) -> Capabilities:
    """The other side of `encode_capabilities`, which may be older or newer.

    What is unknown here counts for nothing; what isn't said is as `Capabilities` has it by default.

    Raises:
        EngineError: Something else was answered.
    """
    try:
        why_not = {str(name): str(why) for name, why in dict(body.get("why_not", {})).items()}
        known = {entry.name for entry in fields(Capabilities)} - {"why_not"}
        said = {name: bool(body[name]) for name in known & set(body)}
        found = Capabilities(**said, why_not=why_not)
    except (AttributeError, TypeError, ValueError) as error:
        raise EngineError(f"{engine} engine: its capabilities can't be read: {body!r}") from error
    unsaid = {name for name in known if not getattr(found, name)} - set(why_not)
    return found.without(**dict.fromkeys(unsaid, "the other side does not say that it can"))
