"""Implement the engine that samples on vLLM's own HTTP server: `vllm serve`, or `trl vllm-serve` since TRL 1.11.

`VllmServerEngine` is the engine. Requests and answers have the format of OpenAI's completions with token ids. Sampling
and stop parameters are in each request. Answers that show a default of the server (a stop id or limit of its own,
log-probs before the temperature) are refused. Weights go to the server by a safetensors file in a folder that both see.

Read in and tested with vLLM 0.31.0 (vllm/entrypoints/openai/completion/protocol.py and serving.py). docs/servers.md
explains how to start a server for training. `capabilities` lists what a server cannot do, before it is used.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import torch

from grpo_core.rollout.engine import (
    Capabilities,
    EngineError,
    check_answers,
    check_parameters,
    check_requests,
)
from grpo_core.rollout.http_client import LOST, HttpClient
from grpo_core.rollout.vllm_requests import check_temperature, sampling_arguments, stored_shapes
from grpo_core.types import Completion, Request, SamplingParams

_CLEAN_UP_S = 5
_CONCURRENT = 64  # calls at one time; vLLM batches them
_UNKNOWN = 2**31  # size of the vocabulary of a model whose files can't be read
_UPDATING = "grpo-core: an update is under way, or has failed"


class VllmServerEngine:
    """Engine that samples on a `vllm serve`: one HTTP call per completion, because a call has one seed.

    Each update stores a unique mark in the server (`/update_weight_version`), and each rollout after it ends by reading
    the mark. So a server that was restarted, or whose mark another trainer replaced, is detected before its tokens are
    used.

    Attributes:
        capabilities: The calls that the server supports with its version and start options.
        policy_version: The version sent last; -1 before the first update, or since one failed.
    """

    name = "vllm serve"

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float,
        token: str | None = None,
        folder: Path | None = None,
        sync: str = "auto",
    ) -> None:
        """Query the server's version, model and endpoints.

        Args:
            host: The server's.
            port: The server's.
            timeout_s: The time limit of one call, and of a whole rollout.
            token: Its --api-key.
            folder: Where weights are written; server and trainer see it under the same path. Each update deletes it
                with all its content. None: updates are refused.
            sync: `files` or `auto`: weights go by files, which the server reads. Others: updates are refused.

        Raises:
            EngineError: The server does not answer, is not a `vllm serve`, or is too old.
        """
        self.policy_version = -1
        self._http = HttpClient(self.name, host, port, timeout_s=timeout_s, token=token)
        self._server = inspect_server(self._http)
        self._folder = None if folder is None else folder.resolve()
        self._shapes = dict[str, tuple[int, ...]]()
        with contextlib.suppress(EngineError):  # this process may not see the model's files
            self._shapes = stored_shapes(Path(self._server.root), self._server.root)
        self._mark = ""
        # Each call has a new id: vLLM requires unique ids.
        self._nonce, self._calls = secrets.token_hex(6), itertools.count()
        self._closed, self._logprobs_checked = False, False
        self.capabilities = server_capabilities(self._server, folder, sync)

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Sample one completion per request, in the order of the requests."""
        self._check(requests, params)
        if not requests:
            return []
        if not self._logprobs_checked:
            check_logprobs(self._http, self._server)
            self._logprobs_checked = True
        completions = self._sample_all(requests, params)
        self._check_mark()
        return check_answers(completions, requests, self.name)

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Load a policy version while the server is paused, and drop the KV cache of the old one.

        If an update fails after the tensors were checked, `generate` is refused until an update succeeds.
        """
        place = f"{self.name} engine, update_weights"
        if self._closed:
            raise EngineError(f"{place}: the engine is closed")
        if not self.capabilities.update:
            raise EngineError(f"{place}: {self.capabilities.why_not['update']}")
        state = {name: tensor.detach() for name, tensor in tensors}
        # vLLM only logs a missing parameter. Where its files can't be read, the first update defines the model.
        shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        check_parameters(state, self._shapes or shapes, self.name)
        mark, deadline = f"grpo-core: {version}-{secrets.token_hex(6)}", self._http.deadline()
        self.policy_version, self._mark = -1, _UPDATING
        self._post("/pause?mode=wait", deadline=deadline)
        try:
            self._post("/update_weight_version", {"new_version": _UPDATING}, deadline=deadline)
            self._reload_from_file(state, version, deadline)
            self._reset_prefix_cache()
            self._post("/update_weight_version", {"new_version": mark}, deadline=deadline)
        except BaseException:
            with contextlib.suppress(EngineError):  # the first error is the one to report
                self._post("/resume", deadline=time.monotonic() + min(_CLEAN_UP_S, self._http.timeout_s))
            raise
        self._post("/resume", deadline=deadline)
        self.policy_version, self._mark, self._shapes = version, mark, self._shapes or shapes

    def _reset_prefix_cache(self) -> None:
        """Drop the server's prefix cache; the server refuses while a request uses it."""
        if self._post("/reset_prefix_cache").get("success") is False:  # reported since vLLM 0.26
            raise self._http.error("/reset_prefix_cache", "the cache was not dropped: requests still use it")

    def fingerprint(self) -> str | None:
        """Return None, because vLLM stores weights in the layout of its kernels."""
        return None

    def close(self) -> None:
        """Refuse further calls; the server keeps running."""
        self._closed = True

    def _reload_from_file(self, state: Mapping[str, torch.Tensor], version: int, deadline: float) -> None:
        """Write a safetensors file, make the server load it, and delete the folder.

        `reload_weights` repacks weights for the kernels; `load_weights` fails on a CPU.
        """
        from safetensors.torch import save_file

        assert self._folder is not None  # else `capabilities.update` is false
        target = self._folder / str(version)
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(target)}}
        try:
            # vLLM globs the folder: it must not hold a half-written file or another version.
            shutil.rmtree(self._folder, ignore_errors=True)
            target.mkdir(parents=True)
            copies = {name: tensor.cpu().contiguous() for name, tensor in state.items()}
            save_file(copies, target / "model.safetensors")
            self._http.json("POST", "/collective_rpc", call, deadline=deadline)
        except OSError as error:
            message = f"{self.name} engine, update_weights: can't write the weights to {target}: {error}"
            raise EngineError(message) from error
        except EngineError as error:
            raise type(error)(f"{error}; does the server see {target}?") from error
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _sample_all(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Sample all requests in threads; the first error cancels those that have not begun."""
        deadline = self._http.deadline()
        pool = ThreadPoolExecutor(min(len(requests), _CONCURRENT))
        try:
            return list(pool.map(lambda request: self._sample(request, params, deadline), requests))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _sample(self, request: Request, params: SamplingParams, deadline: float) -> Completion:
        """Sample one completion before the deadline; an error names the request."""
        call_id = f"{self._nonce}-{next(self._calls)}"
        body = completion_body(request, params, self._server, call_id)
        try:
            answer = self._http.json("POST", "/v1/completions", body, deadline=deadline)
        except EngineError as error:
            raise type(error)(f"{error} (request {request.id})") from error
        place = f"{self._http.location('/v1/completions')}: request {request.id}"
        return decode_answer(answer, request, params, self.policy_version, call_id, place)

    def _post(self, path: str, body: Any = None, *, deadline: float | None = None) -> Mapping[str, Any]:
        """Post to an endpoint and return its JSON object; some releases answer 200 with an empty body."""
        status, text = self._http.call("POST", path, {} if body is None else body, deadline=deadline)
        return self._http.parse_object(path, status, text if text or status != HTTPStatus.OK else b"{}")

    def _check_mark(self) -> None:
        """Raise EngineError if the server does not have the mark of our last weight update."""
        if not self._mark:
            return
        mark = self._http.json("GET", "/weight_info", repeat=True).get("weight_version")
        if mark != self._mark:
            raise self._http.error("/weight_info", f"{LOST} (it holds {mark!r}, not {self._mark!r})")

    def _check(self, requests: Sequence[Request], params: SamplingParams) -> None:
        """Raise EngineError for requests that vLLM would truncate or change silently."""
        place = f"{self.name} engine, generate"
        if self._closed:
            raise EngineError(f"{place}: the engine is closed")
        if self._mark == _UPDATING:
            raise EngineError(f"{place}: the last update failed; send the weights again")
        # vLLM 0.31 accepts the first id after the vocabulary.
        embedding = self._shapes.get("model.embed_tokens.weight", (_UNKNOWN,))
        longest, vocabulary = self._server.max_model_len, embedding[0]
        check_requests(requests, params, engine=self.name, vocabulary=vocabulary, max_model_len=longest)
        check_temperature(params, self.name)


# Parameters without which an answer can't be exact, or can't be checked to belong to its request.
_NEEDED = frozenset(
    {"seed", "stop_token_ids", "ignore_eos", "logprobs", "return_tokens_as_token_ids", "return_token_ids"}
)


@dataclass(frozen=True)
class VllmServer:
    """A running `vllm serve`.

    Attributes:
        version: vLLM's.
        model: The name it serves the model by.
        root: The model that the server was started with: a folder on its machine, or a name.
        max_model_len: Longest prompt and completion together, in tokens.
        paths: Its endpoints.
        fields: The parameters of a completion request.
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
        EngineError: It does not answer, is not `vllm serve`, or is too old.
    """
    try:
        schema = http.json("GET", "/openapi.json", repeat=True)
        fields = frozenset(schema["components"]["schemas"]["CompletionRequest"]["properties"])
        paths = frozenset(schema["paths"])
        version = str(http.json("GET", "/version", repeat=True)["version"])
        model = http.json("GET", "/v1/models", repeat=True)["data"][0]
        name, root, longest = str(model["id"]), str(model.get("root", "")), int(model["max_model_len"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        expected = "expected `vllm serve`, or `trl vllm-serve` of TRL 1.11 or later"
        raise http.error("", f"{expected}; its answers lack {error!r}") from error
    if missing := ", ".join(sorted(_NEEDED - fields)):
        message = f"vLLM {version} can't be asked with {missing}; expected a later release"
        raise http.error("/v1/completions", message)
    return VllmServer(version, name, root, longest, paths, fields)


def check_logprobs(http: HttpClient, server: VllmServer) -> None:
    """Check by samples that a server's log-probs are those after the temperature.

    If so, a temperature four times higher makes the differences between the likeliest ids four times smaller.

    Raises:
        EngineError: They are those before the temperature, or an answer is no completion.
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
    """Decode the answer to one call, if it is the answer to this very call.

    Raises:
        EngineError: It belongs to another call, is incomplete, or was shaped by something that wasn't requested.
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


_UPDATE_PATHS = {
    "/pause", "/resume", "/reset_prefix_cache", "/weight_info", "/update_weight_version", "/collective_rpc",
}  # fmt: skip


def server_capabilities(server: VllmServer, folder: Path | None, sync: str) -> Capabilities:
    """Return the capabilities of a server, with the reason for each that it lacks."""
    start = "start it with VLLM_SERVER_DEV_MODE=1"
    lacks = {
        "fingerprint": "vLLM holds weights in its kernels' own layout",
        "sleep": "other clients may be using the server",
    }
    if missing := sorted(_UPDATE_PATHS - server.paths):
        served = f"vLLM {server.version} serves no {', '.join(missing)}"
        lacks["update"] = f"{served}; {start} (and a release that has them: 0.31 does)"
    elif sync not in ("auto", "files"):
        lacks["update"] = f"weights don't go to it by rollout.sync = {sync!r}, but by files"
    elif folder is None:
        lacks["update"] = "no folder was given for the weights' files"
    able = Capabilities(seeds=True, fingerprint=True, sleep=True, truncation=True)
    return able.without(**lacks)
