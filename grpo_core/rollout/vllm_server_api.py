"""Build requests to `vllm serve` and decode its answers, in the format of OpenAI's completions with token ids.

A request sets each parameter that affects the distribution or the end of a completion. An answer that ended because of
a default of the server is refused. Read in and tested with vLLM 0.31.0
(vllm/entrypoints/openai/completion/protocol.py and serving.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.http_client import HttpClient
from grpo_core.rollout.vllm_requests import sampling_arguments
from grpo_core.types import Completion, Request, SamplingParams

# Parameters that are needed for an exact answer, or to check that the answer belongs to its request.
_NEEDED = frozenset(
    {"seed", "stop_token_ids", "ignore_eos", "logprobs", "return_tokens_as_token_ids", "return_token_ids"}
)


@dataclass(frozen=True)
class VllmServer:
    """A running `vllm serve`.

    Attributes:
        version: Version of vLLM.
        model: Name of the served model.
        root: Folder of the model on the server's machine.
        max_model_len: Longest prompt and completion together, in tokens.
        paths: Paths of the server's endpoints.
        fields: Names of the parameters of a completion request.
    """

    version: str
    model: str
    root: str
    max_model_len: int
    paths: frozenset[str]
    fields: frozenset[str]


def inspect_server(http: HttpClient) -> VllmServer:
    """Query a server's version, model, endpoints and parameters.

    Raises:
        EngineError: The server is not `vllm serve`, or too old.
    """
    try:
        version = str(http.json("GET", "/version", repeat=True)["version"])
        schema = http.json("GET", "/openapi.json", repeat=True)
        fields = frozenset(schema["components"]["schemas"]["CompletionRequest"]["properties"])
        paths = frozenset(schema["paths"])
        model = http.json("GET", "/v1/models", repeat=True)["data"][0]
        name, root, longest = str(model["id"]), str(model.get("root", "")), int(model["max_model_len"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise http.error("", f"expected `vllm serve`, but its answers lack {error!r}") from error
    if missing := ", ".join(sorted(_NEEDED - fields)):
        message = f"vLLM {version} can't be asked with {missing}; expected a later release"
        raise http.error("/v1/completions", message)
    return VllmServer(version, name, root, longest, paths, fields)


def check_logprobs(http: HttpClient, server: VllmServer) -> None:
    """Check by samples that a server's log-probs are those after the temperature.

    If they are, a temperature four times higher makes the differences between the likeliest ids four times smaller.

    Raises:
        EngineError: The log-probs are those before the temperature.
    """
    try:
        hot = _top_logprobs(http, server, temperature=2.0)  # the maximum
        cold = _top_logprobs(http, server, temperature=0.5)
        pairs = [(hot[name], cold[name]) for name in hot.keys() & cold.keys()]
        hot_range, cold_range = (max(values) - min(values) for values in zip(*pairs, strict=True))
    except (LookupError, TypeError, ValueError) as error:
        raise http.error("/v1/completions", f"the answer is no completion: {error!r}") from error
    if hot_range > cold_range / 2 and cold_range > 1e-3:  # equally likely ids show nothing either way
        fault = "its log-probs are not those of the distribution it samples from, after the temperature"
        raise http.error("", f"{fault}; start it with --logprobs-mode processed_logprobs")


def _top_logprobs(http: HttpClient, server: VllmServer, temperature: float) -> dict[str, float]:
    """Return the likeliest ids after a prompt, and their log-probs."""
    params = SamplingParams(max_tokens=1, temperature=temperature)
    body = completion_body(Request("probe", (0,), seed=0), params, server, "")
    del body["request_id"]
    answer = http.json("POST", "/v1/completions", {**body, "logprobs": 5}, repeat=True)
    logprobs = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    return {name: float(value) for name, value in logprobs.items()}


def completion_body(
    request: Request, params: SamplingParams, server: VllmServer, call_id: str
) -> dict[str, Any]:
    """Return the body of one completion call."""
    body = {
        "model": server.model,
        "prompt": list(request.prompt_ids),
        "request_id": call_id,
        **sampling_arguments(params, request),
        "top_k": params.top_k,  # 0 is -1 elsewhere
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "echo": False,
        "stream": False,
        "add_special_tokens": False,
        "skip_special_tokens": False,
        "use_beam_search": False,
    }
    if "watermarking" in server.fields:
        body["watermarking"] = False
    return body


def decode_answer(
    answer: Mapping[str, Any],
    request: Request,
    params: SamplingParams,
    version: int,
    call_id: str,
    place: str,
) -> Completion:
    """Decode the answer to one call, and check that it belongs to this call.

    Raises:
        EngineError: The answer belongs to another call, is incomplete, or ended for a reason that wasn't requested.
    """
    try:
        (choice,) = answer["choices"]
        ids = tuple(int(token) for token in choice["token_ids"])
        prompt = tuple(choice["prompt_token_ids"])
        logprobs = tuple(float(value) for value in choice["logprobs"]["token_logprobs"])
        tokens = list(choice["logprobs"]["tokens"])
        reason, answer_id = choice["finish_reason"], str(answer["id"])
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"{place}: the answer is no completion: {error!r}") from error
    if answer_id != f"cmpl-{call_id}" or prompt != request.prompt_ids:
        raise EngineError(f"{place}: the answer ({answer_id}) is to another request")
    if tokens != [f"token_id:{token}" for token in ids] or len(logprobs) != len(ids):
        raise EngineError(
            f"{place}: {len(ids)} ids, but log-probs of {tokens[:4]} and {len(logprobs)} in all"
        )
    if reason == "stop" and (not ids or ids[-1] not in params.stop_ids):
        raise EngineError(
            f"{place}: it ended at id {ids[-1] if ids else None}, which is none of the stop ids "
            f"{list(params.stop_ids)}; has the server stop ids of its own (--generation-config)?"
        )
    limit = params.max_tokens
    if len(ids) > limit or (reason == "length" and len(ids) != limit):
        raise EngineError(
            f"{place}: {len(ids)} ids came where {limit} were asked for; a limit of the server's own?"
        )
    if reason not in ("stop", "length"):
        raise EngineError(f"{place}: ended with reason {reason!r}")
    return Completion(request.id, ids, logprobs, (version,) * len(ids), reason)
