"""Convert requests to vLLM's sampling parameters, and vLLM's outputs to completions; read shapes of stored models.

`sampling_arguments` and `decode_completion` convert, `stored_shapes` reads. The sampling parameters that shape the
distribution or end a completion are set explicitly, so vLLM's defaults do not apply. `mix_seed` derives the seed, and
`check_temperature` refuses a temperature that vLLM would change.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from grpo_core.rollout.engine import EngineError
from grpo_core.safe_io import resolve_file
from grpo_core.types import Completion, Request, SamplingParams

# vLLM silently raises a lower temperature to this one (vllm/sampling_params.py, _MAX_TEMP): the log-probs would be
# those of another distribution than the trainer's.
LOWEST_TEMPERATURE = 0.01


def check_temperature(params: SamplingParams, engine: str) -> None:
    """Refuse a temperature that vLLM would change silently.

    Raises:
        EngineError: The temperature is below LOWEST_TEMPERATURE.
    """
    if params.temperature < LOWEST_TEMPERATURE:
        raise EngineError(
            f"{engine} engine, generate: temperature {params.temperature} is below {LOWEST_TEMPERATURE}, "
            f"and vLLM would sample at {LOWEST_TEMPERATURE} instead"
        )


def sampling_arguments(params: SamplingParams, request: Request) -> dict[str, Any]:
    """Return the sampling parameters that shape the distribution or end a completion, by vLLM's names."""
    return {
        "n": 1,
        "max_tokens": params.max_tokens,
        "min_tokens": 0,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or -1,
        "min_p": params.min_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": params.repetition_penalty,
        "seed": mix_seed(request),
        "stop": [],
        "stop_token_ids": list(params.stop_ids),
        "ignore_eos": True,  # the stop ids alone decide
        "logprobs": 0,  # the sampled id's own
    }


def mix_seed(request: Request) -> int:
    """Return a seed of 63 bits to which every bit of the request's seed contributes.

    torch's generator on a CPU uses only the lowest 32 bits of a seed, and vLLM reads -1 as "no seed".

    >>> from grpo_core.types import Request
    >>> mix_seed(Request("r", (1,), seed=0)) % 2**32 == mix_seed(Request("r", (1,), seed=2**32)) % 2**32
    False
    """
    text = f"{request.seed} 0".encode()  # with the zero of earlier releases, so that their runs repeat
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def stored_shapes(folder: Path, source: str) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the tensors in a folder's safetensors files; empty where there are none.

    Raises:
        EngineError: A file is no safetensors file; the message begins with `source`.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(resolve_file(path), "pt") as file:
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (OSError, ValueError, SafetensorError) as error:
            raise EngineError(f"{source}: {path} is no safetensors file: {error}") from error
    return shapes


def decode_completion(request: Request, output: Any, version: int, params: SamplingParams) -> Completion:
    """Decode vLLM's output; raise EngineError if it is no complete answer to this request."""
    where = f"vllm engine, generate: request {request.id}"
    if tuple(output.prompt_token_ids) != request.prompt_ids:
        raise EngineError(f"{where}: the answer is to another prompt")
    if len(output.outputs) != 1 or output.outputs[0].logprobs is None:
        raise EngineError(f"{where}: {len(output.outputs)} completions, or no log-probs")
    sampled = output.outputs[0]
    ids = tuple(int(token) for token in sampled.token_ids)
    if len(sampled.logprobs) != len(ids):
        raise EngineError(f"{where}: {len(ids)} ids and {len(sampled.logprobs)} log-probs")
    reason: Any = sampled.finish_reason
    if reason not in ("stop", "length"):
        raise EngineError(f"{where}: ended with reason {reason!r}")
    try:
        # Look up the sampled id: a position's first entry need not be the sampled one.
        logprobs = tuple(
            float(entry[token].logprob) for entry, token in zip(sampled.logprobs, ids, strict=True)
        )
    except KeyError as error:
        raise EngineError(f"{where}: no log-prob for the sampled id {error}") from error
    if ids and ids[-1] in params.stop_ids:
        reason = "stop"  # vLLM 0.10.2 reports "length" for a stop id that is the last token there is room for
    return Completion(request.id, ids, logprobs, (version,) * len(ids), reason)
