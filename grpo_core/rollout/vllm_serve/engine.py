"""An engine that is vLLM's own server: `vllm serve`, and `trl vllm-serve` of TRL 1.11 and later, which runs it.

Run with vLLM 0.31.0. What it takes to start one for training is in docs/servers.md; what a server lacks is told by
`capabilities`, before use.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import (
    Capabilities,
    EngineError,
    EngineUnreachableError,
    check_answers,
    check_parameters,
    check_requests,
)
from grpo_core.rollout.http_client import LOST, HttpClient
from grpo_core.rollout.vllm_requests import SLICES, check_temperature
from grpo_core.rollout.vllm_serve.protocol import (
    VllmServer,
    check_logprobs,
    completion,
    look,
    question,
)
from grpo_core.rollout.vllm_serve.transfer import choose_transfer
from grpo_core.rollout.weights.flat import stored_shapes
from grpo_core.types import Completion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from grpo_core.types import Request, SamplingParams

_CLEAN_UP_S = 5
CONCURRENT = 64  # calls at one time; vLLM batches what it has been asked
UNKNOWN = 2**31  # a limit that this side can't see: the server checks it
_UPDATING = "grpo-core: an update is under way, or has failed"


class VllmServerEngine:
    """Samples on a `vllm serve`. One HTTP call a completion, since a call has one seed.

    Each update leaves a mark of its own in the server (`/update_weight_version`), and each rollout ends by reading it:
    a server that was started again, or was given weights by somebody else, is noticed before its tokens are used.
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
        """Asks the server who it is and what it can do.

        Args:
            host: The server's.
            port: The server's.
            timeout_s: What one call, a whole rollout among them, may take.
            token: Its --api-key.
            folder: Where weights are written for the server to read; None: they aren't.
            sync: `files`, `gloo`, `shm`, or `auto`: gloo where the server has our receiver, else files.
            name: For messages.

        Raises:
            EngineError: Nobody there, or not a `vllm serve` that can be asked exactly.
        """
        self.name = name
        self._http = HttpClient(name, host, port, timeout_s=timeout_s, token=token)
        self._server = look(self._http)
        self._transfer, why = choose_transfer(self._http, self._server, folder, sync)
        self._vocabulary, self._shapes = stored_model(self._server)
        self._version, self._mark = -1, ""
        # Each call has an id of its own, also when it is asked again: vLLM wants them unique.
        self._nonce, self._calls, self._running = secrets.token_hex(6), itertools.count(), set[str]()
        self._aborting, self._idle = threading.Event(), threading.Event()
        self._idle.set()
        self._closed, self._checked = False, False
        self._capabilities = capabilities(self._server, why)

    @property
    def capabilities(self) -> Capabilities:
        """What this server's version, and the way it was started, allow."""
        return self._capabilities

    @property
    def policy_version(self) -> int:
        """The version this engine has sent last; -1 before the first update, or since one failed."""
        return self._version

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Samples one completion a request, in the order of the requests."""
        self._check(requests, params)
        if not requests:
            return []
        if not self._checked:
            check_logprobs(self._http, self._server)
            self._checked = True
        self._aborting.clear()
        self._idle.clear()
        try:
            completions = self._asked(requests, params)
            self._check_mark()
            return check_answers(completions, requests, self.name, aborted=self._aborting.is_set())
        finally:
            self._running.clear()
            self._idle.set()

    def abort(self) -> None:
        """Ends the running `generate`, from another thread: each completion is what there is of it."""
        if not self._capabilities.abort:
            raise EngineError(f"{self.name} engine, abort: {self._capabilities.why_not['abort']}")
        if self._idle.is_set():
            return
        self._aborting.set()
        deadline = self._http.deadline()
        # More than once: a call that is on its way is not known to the server yet.
        while not self._idle.is_set() and time.monotonic() < deadline:
            self._abort_at_server()
            self._idle.wait(0.1)

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Loads a policy version while the server is paused, and drops the keys and values of the old one."""
        where = f"{self.name} engine, update_weights"
        if self._closed:
            raise EngineError(f"{where}: the engine is closed")
        if self._transfer is None:
            raise EngineError(f"{where}: {self._capabilities.why_not['update']}")
        given = {name: tensor.detach() for name, tensor in tensors}
        # vLLM only logs a parameter that did not come. Where its files can't be seen, the first update is the model.
        shapes = {name: tuple(tensor.shape) for name, tensor in given.items()}
        check_parameters(given, self._shapes or shapes, self.name)
        mark, deadline = f"grpo-core: {version}-{secrets.token_hex(6)}", self._http.deadline()
        self._version, self._mark = -1, _UPDATING
        self._post("/pause?mode=wait", deadline=deadline)
        try:
            self._post("/update_weight_version", {"new_version": _UPDATING}, deadline=deadline)
            self._transfer.send(given, version, deadline)
            self.reset_prefix_cache()
            self._post("/update_weight_version", {"new_version": mark}, deadline=deadline)
        except BaseException:
            self._tried("/resume")  # what went wrong first is what is told
            raise
        self._post("/resume", deadline=deadline)
        self._version, self._mark, self._shapes = version, mark, self._shapes or shapes

    def reset_prefix_cache(self) -> None:
        """Has the server forget cached keys and values; refused while somebody's requests hold them."""
        answer = self._post("/reset_prefix_cache")
        if answer.get("success") is False:  # told since vLLM 0.26
            raise EngineError(
                f"{self._http.where('/reset_prefix_cache')}: the cache was not dropped: requests still use it"
            )

    def fingerprint(self) -> str | None:
        """None: see `capabilities.why_not`."""
        return None

    def close(self) -> None:
        """Takes down the way weights went; the server runs on, further calls are refused."""
        self._closed = True
        if self._transfer is not None:
            self._transfer.close()

    def _asked(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        deadline = self._http.deadline()
        with ThreadPoolExecutor(min(len(requests), CONCURRENT)) as pool:
            calls = [pool.submit(self._one, request, params, deadline) for request in requests]
            try:
                for call in wait(calls, return_when=FIRST_EXCEPTION).done:
                    call.result()
            except BaseException:
                for call in calls:
                    call.cancel()
                self._abort_at_server()  # or we would wait here for answers that nobody wants
                raise
            return [call.result() for call in calls]

    def _one(self, request: Request, params: SamplingParams, deadline: float) -> Completion:
        """One completion. Asked once more if the connection is lost: that changes nothing at the server."""
        try:
            return self._once(request, params, deadline)
        except EngineUnreachableError:
            return self._once(request, params, deadline)

    def _once(self, request: Request, params: SamplingParams, deadline: float) -> Completion:
        if self._aborting.is_set():
            return Completion(request.id, (), (), (), "abort")
        call_id = f"{self._nonce}-{next(self._calls)}"
        body = question(request, params, self._server, call_id)
        self._running.add(call_id)
        try:
            answer = self._http.json("POST", "/v1/completions", body, deadline=deadline)
        except EngineError as error:
            kind = type(error) if self._healthy() else EngineUnreachableError
            # Its id stays among the running: the server may still be at it.
            raise kind(f"{error} (request {request.id})") from error
        self._running.discard(call_id)
        where = self._http.where("/v1/completions")
        return completion(answer, request, params, self._version, call_id, where)

    def _healthy(self) -> bool:
        """Whether vLLM's engine lives: its front end outlives it by a moment, and answers 500 to everything."""
        try:
            deadline = time.monotonic() + _CLEAN_UP_S
            return self._http.call("GET", "/health", deadline=deadline, patient=False)[0] == HTTPStatus.OK
        except EngineError:
            return True  # the call's own error says it all

    def _abort_at_server(self) -> None:
        """Best effort; without ids vLLM would abort everybody's requests."""
        ids = [f"cmpl-{call_id}-0" for call_id in self._running.copy()]
        if ids and self._capabilities.abort:
            self._tried("/abort_requests", {"request_ids": ids})

    def _tried(self, path: str, body: Any = None) -> None:
        """Cleaning up: in a few seconds, or not at all."""
        with contextlib.suppress(EngineError):
            self._post(path, body, deadline=time.monotonic() + min(_CLEAN_UP_S, self._http.timeout_s))

    def _post(self, path: str, body: Any = None, *, deadline: float | None = None) -> Mapping[str, Any]:
        """Calls an endpoint for training; some releases answer with an empty body."""
        status, text = self._http.call("POST", path, {} if body is None else body, deadline=deadline)
        if status == 200 and not text:
            return {}
        return self._http.checked(path, status, text)

    def _check_mark(self) -> None:
        if not self._mark:
            return
        held = self._http.json("GET", "/weight_info", repeat=True).get("weight_version")
        if held != self._mark:
            raise EngineUnreachableError(
                f"{self._http.where('/weight_info')}: {LOST} (it holds {held!r}, not {self._mark!r})"
            )

    def _check(self, requests: Sequence[Request], params: SamplingParams) -> None:
        """Refuses what vLLM would cut short, or change without a word."""
        where = f"{self.name} engine, generate"
        if self._closed:
            raise EngineError(f"{where}: the engine is closed")
        if self._mark == _UPDATING:
            raise EngineError(f"{where}: the last update failed; send the weights again")
        check_requests(
            requests,
            params,
            engine=self.name,
            vocabulary=self._vocabulary or UNKNOWN,
            max_model_len=self._server.max_model_len,
        )
        check_temperature(params, self.name)


connect = VllmServerEngine


def capabilities(server: VllmServer, no_update: str) -> Capabilities:
    """What a server allows; `no_update` is why it takes no weights, if it doesn't."""
    lacks = {
        "fingerprint": "vLLM holds weights in its kernels' own layout",
        "sleep": "other clients may be using the server",
    }
    if no_update:
        lacks["update"] = no_update
    if "/abort_requests" not in server.paths:
        lacks["abort"] = (
            f"vLLM {server.version} serves no /abort_requests; start it with VLLM_SERVER_DEV_MODE=1"
        )
    able = Capabilities(seeds=True, fingerprint=True, sleep=True, abort=True, why_not={"slices": SLICES})
    return able.without(**lacks)


def stored_model(server: VllmServer) -> tuple[int, dict[str, tuple[int, ...]]]:
    """Size of the vocabulary, and names and shapes of the tensors of the model's files; 0 and {} where we see none."""
    folder = Path(server.root)
    size, shapes = 0, dict[str, tuple[int, ...]]()
    with contextlib.suppress(OSError, ValueError, EngineError):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        size = int(config.get("vocab_size") or config.get("text_config", {}).get("vocab_size") or 0)
        shapes = stored_shapes(folder, server.root)
    return size, shapes
