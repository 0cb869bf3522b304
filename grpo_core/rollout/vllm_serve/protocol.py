"""What is said to `vllm serve` and what it answers: OpenAI's completions, with token ids in and out.

Nothing is left to the server's choice: each parameter that shapes the distribution or ends a completion is in the
request, and an answer that a default of the server has shaped is refused. Read in and run with vLLM 0.31.0
(vllm/entrypoints/openai/completion/protocol.py and serving.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.vllm_requests import asked_tokens, ended, pinned
from grpo_core.types import Completion, Request, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grpo_core.rollout.http_client import HttpClient

# What a request must be able to say for an answer to be exact, and checked to be the answer to it.
_NEEDED = frozenset(
    {"seed", "stop_token_ids", "ignore_eos", "logprobs", "return_tokens_as_token_ids", "return_token_ids"}
)
_MODE = "processed_logprobs"


@dataclass(frozen=True)
class VllmServer:
    """What a running `vllm serve` says of itself.

    Attributes:
        version: vLLM's.
        model: The name it serves the model by.
        root: The folder of the model, as the server sees it.
        max_model_len: Longest prompt and completion together, in tokens.
        paths: Its endpoints.
        fields: What a completion can be asked with.
        config: Its resolved configuration (`/server_info`); empty where it isn't told.
    """

    version: str
    model: str
    root: str
    max_model_len: int
    paths: frozenset[str]
    fields: frozenset[str]
    config: Mapping[str, Any]

    def setting(self, section: str, key: str) -> Any:
        """A value of the configuration; None where it isn't told."""
        part = self.config.get(section)
        return part.get(key) if isinstance(part, dict) else None


def look(http: HttpClient) -> VllmServer:
    """Asks a server who it is and what it can do.

    Raises:
        EngineError: It is not `vllm serve`, one too old, or one whose log-probs are not those of what it samples.
    """
    try:
        version = str(http.json("GET", "/version", repeat=True)["version"])
        schema = http.json("GET", "/openapi.json", repeat=True)
        fields = frozenset(schema["components"]["schemas"]["CompletionRequest"]["properties"])
        paths = frozenset(schema["paths"])
        model = http.json("GET", "/v1/models", repeat=True)["data"][0]
        name, root, longest = str(model["id"]), str(model.get("root", "")), int(model["max_model_len"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EngineError(
            f"{http.where('')}: expected `vllm serve`, but its answers lack {error!r}"
        ) from error
    if missing := sorted(_NEEDED - fields):
        raise EngineError(
            f"{http.where('/v1/completions')}: vLLM {version} can't be asked with {', '.join(missing)}; "
            "expected a later release"
        )
    server = VllmServer(version, name, root, longest, paths, fields, _configuration(http, paths))
    if server.setting("model_config", "logprobs_mode") not in (None, _MODE):
        raise EngineError(_raw(http))
    return server


def check_logprobs(http: HttpClient, server: VllmServer) -> None:
    """Finds out by its answers what a server that doesn't tell its configuration means by log-probs.

    After the temperature, four times the temperature brings the log-probs of the likeliest ids four times closer.

    Raises:
        EngineError: They are those before it.
    """
    if server.setting("model_config", "logprobs_mode") is None:
        try:
            hot, cold = (_likely(http, server, temperature) for temperature in (2.0, 0.5))  # more it refuses
            both = [(hot[name], cold[name]) for name in hot.keys() & cold.keys()]
            near, far = (max(values) - min(values) for values in zip(*both, strict=True))
        except (LookupError, TypeError, ValueError) as error:
            raise EngineError(
                f"{http.where('/v1/completions')}: the answer is no completion: {error!r}"
            ) from error
        if near > far / 2 and far > 1e-3:  # ids that are all alike tell nothing, and are told alike
            raise EngineError(_raw(http))


def _raw(http: HttpClient) -> str:
    return (
        f"{http.where('')}: its log-probs are not those of the distribution it samples from, after the temperature; "
        f"start it with --logprobs-mode {_MODE}"
    )


def _configuration(http: HttpClient, paths: frozenset[str]) -> Mapping[str, Any]:
    """What `/server_info` says, if it does.

    It is there with VLLM_SERVER_DEV_MODE=1. In 0.31.0 it fails where uv made the environment and neither pip nor uv
    is to be found (vllm/collect_env.py lists packages by them); older releases tell the configuration as text.
    """
    if "/server_info" not in paths:
        return {}
    status, text = http.call("GET", "/server_info?config_format=json", repeat=True)
    told = http.parsed("/server_info", status, text) if status == HTTPStatus.OK else {}
    config = told.get("vllm_config") if isinstance(told, dict) else None
    return config if isinstance(config, dict) else {}


def _likely(http: HttpClient, server: VllmServer, temperature: float) -> dict[str, float]:
    """The likeliest ids behind a prompt, and their log-probs."""
    asked = Request("probe", (0,), seed=0)
    body = question(asked, SamplingParams(max_tokens=1, temperature=temperature), server, "")
    del body["request_id"]
    answer = http.json("POST", "/v1/completions", {**body, "logprobs": 5}, repeat=True)
    found = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    return {name: float(value) for name, value in found.items()}


def question(request: Request, params: SamplingParams, server: VllmServer, call_id: str) -> dict[str, Any]:
    """The body of one completion call."""
    body = {
        "model": server.model,
        "prompt": [*request.prompt_ids, *request.prefix],
        "request_id": call_id,
        **pinned(params, request),
        "top_k": 0,  # as -1 elsewhere
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


def completion(
    answer: Mapping[str, Any],
    request: Request,
    params: SamplingParams,
    version: int,
    call_id: str,
    where: str,
) -> Completion:
    """The answer to one call, if it is the answer to this very call.

    Raises:
        EngineError: It is to another, is torn, or was shaped by something that wasn't asked for.
    """
    where = f"{where}: request {request.id}"
    try:
        (choice,) = answer["choices"]
        ids = tuple(int(token) for token in choice["token_ids"])
        prompt = tuple(choice["prompt_token_ids"])
        logprobs = tuple(float(value) for value in choice["logprobs"]["token_logprobs"])
        named = list(choice["logprobs"]["tokens"])
        reason, answered = choice["finish_reason"], str(answer["id"])
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"{where}: the answer is no completion: {error!r}") from error
    if answered != f"cmpl-{call_id}" or prompt != request.prompt_ids + request.prefix:
        raise EngineError(f"{where}: the answer ({answered}) is to another request")
    if named != [f"token_id:{token}" for token in ids] or len(logprobs) != len(ids):
        raise EngineError(f"{where}: {len(ids)} ids, but log-probs of {named[:4]} and {len(logprobs)} in all")
    asked = asked_tokens(request, params)
    if reason == "stop" and (not ids or ids[-1] not in params.stop_ids):
        raise EngineError(
            f"{where}: it ended at id {ids[-1] if ids else None}, which is none of the stop ids "
            f"{list(params.stop_ids)}; has the server stop ids of its own (--generation-config)?"
        )
    if len(ids) > asked or (reason == "length" and len(ids) != asked):
        raise EngineError(
            f"{where}: {len(ids)} ids came where {asked} were asked for; a limit of the server's own?"
        )
    reason = ended(reason, ids, request, params)
    if reason not in ("stop", "length", "abort"):
        raise EngineError(f"{where}: ended with reason {reason!r}")
    return Completion(request.id, ids, logprobs, (version,) * len(ids), reason)
