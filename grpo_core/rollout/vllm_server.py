"""Implement the engine that samples on vLLM's own HTTP server: `vllm serve`, or TRL's since TRL 1.11.

Tested with vLLM 0.31.0. docs/servers.md explains how to start a server for training. `capabilities` lists the calls
that a server does not support.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any

import torch

from grpo_core.rollout.engine import (
    Capabilities,
    EngineError,
    EngineUnreachableError,
    check_answers,
    check_parameters,
    check_requests,
)
from grpo_core.rollout.http_client import LOST, HttpClient
from grpo_core.rollout.vllm_requests import check_temperature, stored_shapes
from grpo_core.rollout.vllm_server_api import (
    VllmServer,
    check_logprobs,
    completion_body,
    decode_answer,
    inspect_server,
)
from grpo_core.types import Completion, Request, SamplingParams

_CLEAN_UP_S = 5
_CONCURRENT = 64  # calls at one time; vLLM batches them
_UNKNOWN = 2**31  # size of the vocabulary, which only the server knows and checks
_UPDATING = "grpo-core: an update is under way, or has failed"


class VllmServerEngine:
    """Engine that samples on a `vllm serve`: one HTTP call per completion, because a call has one seed.

    Each update stores a unique mark in the server (`/update_weight_version`), and each rollout ends by reading it. So a
    server that was restarted, or got weights from another trainer, is detected before its tokens are used.

    Attributes:
        capabilities: The calls that the server supports with its version and start options.
        policy_version: The version sent last; -1 before the first update, or since one failed.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float,
        token: str | None = None,
        folder: Path | None = None,
        sync: str = "auto",
        name: str = "vllm serve",
    ) -> None:
        """Query the server's version, model and endpoints.

        Args:
            host: Host of the server.
            port: Port of the server.
            timeout_s: Time limit of one call, and of a whole rollout.
            token: The --api-key of the server.
            folder: Folder for weights, with the same path for server and trainer. None: no update is possible.
            sync: Transport of weights; with `files` or `auto` the server reads files, others allow no update.
            name: Name of the engine in messages.

        Raises:
            EngineError: The server does not answer, or is not a `vllm serve` whose parameters can all be set.
        """
        self.name, self.policy_version = name, -1
        self._http = HttpClient(name, host, port, timeout_s=timeout_s, token=token)
        self._server = inspect_server(self._http)
        self._folder = None if folder is None else folder.resolve()
        self._shapes = dict[str, tuple[int, ...]]()
        with contextlib.suppress(EngineError):  # this process may not see the model's files
            self._shapes = stored_shapes(Path(self._server.root), self._server.root)
        self._mark = ""
        # Each call has a new id, also when it is repeated: vLLM requires unique ids.
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
        """Load a policy version while the server is paused, and drop the KV cache of the old one."""
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
            self.reset_prefix_cache()
            self._post("/update_weight_version", {"new_version": mark}, deadline=deadline)
        except BaseException:
            with contextlib.suppress(EngineError):  # the first error is the one to report
                self._post("/resume", deadline=time.monotonic() + min(_CLEAN_UP_S, self._http.timeout_s))
            raise
        self._post("/resume", deadline=deadline)
        self.policy_version, self._mark, self._shapes = version, mark, self._shapes or shapes

    def reset_prefix_cache(self) -> None:
        """Drop the server's prefix cache; the server refuses while a request uses it."""
        answer = self._post("/reset_prefix_cache")
        if answer.get("success") is False:  # reported since vLLM 0.26
            raise self._http.error("/reset_prefix_cache", "the cache was not dropped: requests still use it")

    def fingerprint(self) -> str | None:
        """Return None, because vLLM stores weights in the layout of its kernels."""
        return None

    def close(self) -> None:
        """Refuse further calls; the server keeps running."""
        self._closed = True

    def _reload_from_file(self, state: Mapping[str, torch.Tensor], version: int, deadline: float) -> None:
        """Write a safetensors file and make the server load it.

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
        """Sample one completion; if the connection is lost, try once more, because a repeated call changes nothing."""
        try:
            return self._sample_once(request, params, deadline)
        except EngineUnreachableError:
            return self._sample_once(request, params, deadline)

    def _sample_once(self, request: Request, params: SamplingParams, deadline: float) -> Completion:
        call_id = f"{self._nonce}-{next(self._calls)}"
        body = completion_body(request, params, self._server, call_id)
        try:
            answer = self._http.json("POST", "/v1/completions", body, deadline=deadline)
        except EngineError as error:
            kind = type(error) if self._is_healthy() else EngineUnreachableError
            raise kind(f"{error} (request {request.id})") from error
        place = f"{self._http.location('/v1/completions')}: request {request.id}"
        return decode_answer(answer, request, params, self.policy_version, call_id, place)

    def _is_healthy(self) -> bool:
        """Return whether vLLM's engine runs, or True if the check fails.

        After a crash of the engine, vLLM's HTTP front end answers with status 500 for a moment.
        """
        try:
            deadline = time.monotonic() + _CLEAN_UP_S
            return self._http.call("GET", "/health", deadline=deadline, patient=False)[0] == HTTPStatus.OK
        except EngineError:
            return True  # the call's own error is sufficient

    def _post(self, path: str, body: Any = None, *, deadline: float | None = None) -> Mapping[str, Any]:
        """Post to an endpoint and return its JSON object; some releases answer 200 with an empty body."""
        status, text = self._http.call("POST", path, {} if body is None else body, deadline=deadline)
        return self._http.parse_object(path, status, text if text or status != HTTPStatus.OK else b"{}")

    def _check_mark(self) -> None:
        """Raise EngineUnreachableError if the server does not have the mark of our last weight update."""
        if not self._mark:
            return
        mark = self._http.json("GET", "/weight_info", repeat=True).get("weight_version")
        if mark != self._mark:
            message = f"{LOST} (it holds {mark!r}, not {self._mark!r})"
            raise self._http.error("/weight_info", message, EngineUnreachableError)

    def _check(self, requests: Sequence[Request], params: SamplingParams) -> None:
        """Raise EngineError for requests that vLLM would truncate or change silently."""
        place = f"{self.name} engine, generate"
        if self._closed:
            raise EngineError(f"{place}: the engine is closed")
        if self._mark == _UPDATING:
            raise EngineError(f"{place}: the last update failed; send the weights again")
        longest = self._server.max_model_len
        check_requests(requests, params, engine=self.name, vocabulary=_UNKNOWN, max_model_len=longest)
        check_temperature(params, self.name)


_UPDATE_PATHS = {
    "/pause", "/resume", "/reset_prefix_cache", "/weight_info", "/update_weight_version", "/collective_rpc",
}  # fmt: skip


def server_capabilities(server: VllmServer, folder: Path | None, sync: str) -> Capabilities:
    """Return the capabilities of a server, with the reason for each that it lacks."""
    start = "start it with VLLM_SERVER_DEV_MODE=1"
    lacks = {
        "fingerprint": "vLLM holds weights in its kernels' own layout",
        "sleep": "other clients may be using the server",
        "abort": "other clients may be using the server",
    }
    if missing := sorted(_UPDATE_PATHS - server.paths):
        served = f"vLLM {server.version} serves no {', '.join(missing)}"
        lacks["update"] = f"{served}; {start} (and a release that has them: 0.31 does)"
    elif sync not in ("auto", "files"):
        lacks["update"] = f"weights don't go to it by rollout.sync = {sync!r}, but by files"
    elif folder is None:
        lacks["update"] = "no folder was given for the weights' files"
    able = Capabilities(seeds=True, fingerprint=True, sleep=True, abort=True, truncation=True)
    return able.without(**lacks)
