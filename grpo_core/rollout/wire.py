"""Convert requests, completions and capabilities to and from JSON, for an engine in another process.

The functions `encode_…` and `decode_…` convert. JSON keeps floats exactly (Python writes the shortest text that reads
back as the same float), so the trip changes no bit. `checksum` computes the CRC-32 by which the two sides notice a
changed body.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from grpo_core.rollout.engine import Capabilities, EngineError, check_answers
from grpo_core.types import Completion, Request, SamplingParams

CHECKSUM = "X-Content-CRC32"  # the header with a body's checksum


def checksum(body: bytes | memoryview) -> str:
    """Return the CRC-32 of a body as 8 hexadecimal digits; SHA-256 takes seven times as long.

    >>> checksum(b"123456789")
    'cbf43926'
    """
    return f"{zlib.crc32(body):08x}"


def encode_requests(requests: Sequence[Request], params: SamplingParams) -> dict[str, Any]:
    """Return the body of a `generate` call."""
    return {"requests": [vars(request) for request in requests], "params": vars(params)}


def decode_requests(body: Mapping[str, Any]) -> tuple[list[Request], SamplingParams]:
    """Return the requests and parameters of a `generate` body, whose structure the caller has checked."""
    params = SamplingParams(**{**body["params"], "stop_ids": tuple(body["params"]["stop_ids"])})
    return [Request(e["id"], tuple(e["prompt_ids"]), e["seed"]) for e in body["requests"]], params


def encode_completions(completions: Sequence[Completion]) -> dict[str, Any]:
    """Return the JSON answer to a `generate` call."""
    return {"completions": [vars(completion) for completion in completions]}


def decode_completions(body: Any, requests: Sequence[Request], engine: str) -> list[Completion]:
    """Return the completions of an answer, checked to be those of the requests, in their order.

    Raises:
        EngineError: The answer has other completions or is no list of completions (see `check_answers`).
    """
    try:
        completions = [_decode_completion(entry) for entry in body["completions"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        place = f"{engine} engine, generate"
        raise EngineError(f"{place}: the answer is not a list of completions: {error!r}") from error
    return check_answers(completions, requests, engine)


def _decode_completion(entry: Any) -> Completion:
    return Completion(
        str(entry["request_id"]),
        tuple(map(int, entry["ids"])),
        tuple(map(float, entry["logprobs"])),
        tuple(map(int, entry["versions"])),
        entry["finish_reason"],
    )


def encode_capabilities(capabilities: Capabilities) -> dict[str, Any]:
    """Return an engine's capabilities as JSON."""
    return {**vars(capabilities), "why_not": dict(capabilities.why_not)}


def decode_capabilities(body: Any, engine: str) -> Capabilities:
    """Return the capabilities that a server of any release sent; unknown fields are ignored, absent ones get a default.

    Raises:
        EngineError: The body is not a dictionary, or a field without a default is absent.
    """
    try:
        reasons = {str(name): str(reason) for name, reason in dict(body.get("why_not", {})).items()}
        names = {entry.name for entry in fields(Capabilities)} - {"why_not"}
        return Capabilities(**{name: bool(body[name]) for name in names & set(body)}, why_not=reasons)
    except (AttributeError, TypeError, ValueError) as error:
        raise EngineError(f"{engine} engine: its capabilities can't be read: {body!r}") from error
