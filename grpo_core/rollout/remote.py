"""An engine behind HTTP: the client of `python -m grpo_core serve`."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import EngineError, EngineUnreachableError
from grpo_core.rollout.http_client import LOST, PROTOCOL, SERVERS, HttpClient, identify
from grpo_core.rollout.weights.digest import Checksum
from grpo_core.rollout.weights.sync import open_sender
from grpo_core.rollout.wire import decode_capabilities, decode_completions, encode_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch

    from grpo_core.config import RolloutConfig
    from grpo_core.rollout.engine import Capabilities, Engine
    from grpo_core.rollout.weights.flat import Flat
    from grpo_core.types import Completion, Request, SamplingParams


class RemoteEngine:
    """Samples on a server of our own. Every call has a time limit."""

    name = "remote"

    def __init__(
        self, host: str, port: int, *, timeout_s: float, token: str | None = None, sync: str = "auto"
    ) -> None:
        """Asks the server who it is. `sync`: how weights go, `auto` being `http`.

        Raises:
            EngineError: Nobody there, or something else than a rollout server.
        """
        self._http = HttpClient(self.name, host, port, timeout_s=timeout_s, token=token)
        info = self._http.json("GET", "/info", repeat=True)
        where = self._http.where("/info")
        if info.get("schema") != PROTOCOL:
            raise EngineError(f"{where}: expected a server of {PROTOCOL}, found {info.get('schema')!r}")
        self._version: int = self._field("/info", info, "policy_version", int)
        self.name = self._http.name = f"remote {self._field('/info', info, 'engine', str)}"
        able = decode_capabilities(self._field("/info", info, "capabilities", dict), self.name)
        self._capabilities = able.without(sleep="other clients use the server") if able.sleep else able
        self._stamp: str | None = None
        self._sender = open_sender("http" if sync == "auto" else sync, self._sync, timeout_s=timeout_s)
        self._running, self._aborted, self._closed = threading.Event(), threading.Event(), False

    @property
    def capabilities(self) -> Capabilities:
        """Those of the engine behind the server."""
        return self._capabilities

    @property
    def policy_version(self) -> int:
        """As the server reported after the last update."""
        return self._version

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Samples one completion a request, in the order of the requests."""
        self._check_open("generate")
        if not requests:
            return []
        body = json.dumps(encode_requests(requests, params)).encode()
        headers = {"Content-Type": "application/json", "X-Content-SHA256": hashlib.sha256(body).hexdigest()}
        self._aborted.clear()
        self._running.set()
        try:
            answer = self._http.json("POST", "/generate", body, headers=headers, repeat=True)
        finally:
            self._running.clear()
        self._check_stamp("/generate", answer)
        completions = decode_completions(answer, requests, self.name, aborted=self._aborted.is_set())
        if self._stamp is not None and {v for one in completions for v in one.versions} - {self._version}:
            raise EngineUnreachableError(f"{self._http.where('/generate')}: {LOST}")
        return completions

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Sends all parameters, in the body of a request or as `sync` has it, with a checksum that is compared."""
        self._check_open("update_weights")
        self._version = self._sender.send(tensors, version)

    def _sync(self, method: str, arguments: dict[str, Any], payload: Flat | None = None, /) -> dict[str, Any]:
        """A sender's call of the server."""
        path = "/" + method.replace("_", "/")
        if payload is None:
            answer = self._http.json("POST", path, arguments)
        else:
            path, body = "/weights", Upload(payload)
            headers = {**body.headers, "X-Policy-Version": str(arguments["version"])}
            answer = self._http.json("POST", path, body, headers=headers)
            answer["version"] = self._field(path, answer, "policy_version", int)
        if method == "sync_load":
            self._stamp = str(answer.get("weights", ""))
        return answer

    def fingerprint(self) -> str | None:
        """That of the weights the server holds, computed now."""
        answer = self._http.json("GET", "/fingerprint", repeat=True)
        self._check_stamp("/fingerprint", answer)
        kinds = (str,) if self._capabilities.fingerprint else (str, type(None))
        digest: str | None = self._field("/fingerprint", answer, "fingerprint", *kinds)
        return digest

    def abort(self) -> None:
        """From another thread: the running `generate` returns at once what it has.

        The server has one engine: what another client has it sample at that moment is ended, too.
        """
        if not self._capabilities.abort:
            why = self._capabilities.why_not.get("abort", "the server doesn't say why")
            raise EngineError(f"{self.name} engine, abort: {why}")
        if self._running.is_set():
            self._aborted.set()
            self._http.json("POST", "/abort")

    def reset_prefix_cache(self) -> None:
        """Makes the server's engine forget cached keys and values."""
        self._http.json("POST", "/reset_prefix_cache")

    def close(self) -> None:
        """Nothing is held between calls; further ones are refused."""
        self._closed = True

    def _check_stamp(self, path: str, answer: Mapping[str, Any]) -> None:
        """Whether an answer is about the weights sent last, where the server says: others may bear the same version."""
        if self._stamp and answer.get("weights") != self._stamp:
            raise EngineUnreachableError(f"{self._http.where(path)}: {LOST}")

    def _field(self, path: str, answer: Mapping[str, Any], name: str, *kinds: type) -> Any:
        value = answer.get(name)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise EngineError(
                f"{self._http.where(path)}: no {name} that can be used in the answer: {str(answer)[:200]}"
            )
        return value

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise EngineError(f"{self.name} engine, {call}: the engine is closed")


class Upload:
    """The body of a request, for `http.client.HTTPConnection.request`; the same again each time it is sent.

    Attributes:
        headers: What goes with it.
    """

    def __init__(self, flat: Flat) -> None:
        """Reads nothing yet."""
        self._flat = flat
        self.headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(flat.size + Checksum.SIZE),
            "Connection": "close",
        }

    def __iter__(self) -> Iterator[memoryview | bytes]:
        """Piece by piece, each to be sent before the next."""
        checksum = Checksum()
        for piece in self._flat.pieces():
            checksum.update(piece)
            yield piece
        yield checksum.digest()


def engine_for(
    options: RolloutConfig, host: str, port: int, folder: Path, *, token: str | None = None
) -> Engine:
    """The engine for whoever answers there, if it is whom `rollout.server` names.

    Args:
        options: `server`, `sync` and `timeout_s` count.
        host: The server's.
        port: The server's.
        folder: Where weights may be written for a server that reads them.
        token: The server's.

    Raises:
        EngineError: Nobody there, or somebody else.
    """
    http = HttpClient("remote", host, port, timeout_s=options.timeout_s, token=token)
    found = identify(http)
    # From TRL 1.11 on, `trl vllm-serve` runs `vllm serve`, and nothing tells them apart.
    if options.server not in ("auto", found) and (options.server, found) != ("trl", "vllm"):
        raise EngineError(
            f"{http.where('')}: rollout.server = {options.server!r} is {SERVERS[options.server]}, but "
            f"{SERVERS[found]} answers; set rollout.server = {found!r} or 'auto'"
        )
    if found == "grpo-core":
        return RemoteEngine(host, port, timeout_s=options.timeout_s, token=token, sync=options.sync)
    if found == "trl":
        raise EngineError(
            f"{http.where('')}: {SERVERS['trl']} takes weights by NCCL alone, so it can't be trained with; use TRL "
            "1.11 or later, `vllm serve`, or `python -m grpo_core serve`"
        )
    name = "trl vllm-serve" if options.server == "trl" else "vllm serve"
    from grpo_core.rollout.vllm_serve.engine import connect

    engine: Engine = connect(
        host, port, timeout_s=options.timeout_s, token=token, folder=folder, sync=options.sync, name=name
    )
    return engine


def check_trainable(engine: Engine) -> None:
    """Refuses, before a step is made, an engine that can't give what training takes.

    Raises:
        EngineError: It takes no weights, or no seeds; says why.
    """
    able = engine.capabilities
    for need, has in (("update", able.update), ("seeds", able.seeds)):
        if not has:
            why = able.why_not.get(need, "it doesn't say why")
            raise EngineError(f"{engine.name} engine: it can't be trained with ({need}): {why}")
