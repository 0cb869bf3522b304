"""Implement the engines that sample on grpo_core's own rollout server: a running one or the trainer's child process.

`engine_for` connects to a running server, which may also be `vllm serve`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any

import torch

from grpo_core.config import Config, RolloutConfig
from grpo_core.rollout import wire
from grpo_core.rollout.engine import Engine, EngineError
from grpo_core.rollout.http_client import LOST, PROTOCOL, HttpClient
from grpo_core.rollout.server.process import ServerProcess
from grpo_core.rollout.vllm_server_engine import VllmServerEngine
from grpo_core.rollout.weights.transport import Sender, TensorFile
from grpo_core.types import Completion, Request, SamplingParams


class RemoteEngine:
    """Engine that samples on our own rollout server. Every call has a time limit.

    Attributes:
        capabilities: Those of the engine behind the server, except sleep.
        policy_version: Version that the server reported at connection or after this client's last update.
    """

    def __init__(
        self, host: str, port: int, *, timeout_s: float, token: str | None = None, sync: str = "http"
    ) -> None:
        """Read the server's `/info`; `sync` is the transport of weights, see `grpo_core.rollout.weights.transport`.

        Raises:
            EngineError: No server answers, it is not a rollout server, or `sync` is unknown.
        """
        self._http = HttpClient("remote", host, port, timeout_s=timeout_s, token=token)
        status, text = self._http.call("GET", "/info", repeat=True)
        info = {} if status == HTTPStatus.NOT_FOUND else self._http.parse_object("/info", status, text)
        if info.get("schema") != PROTOCOL:
            mismatch = f"expected a server of {PROTOCOL}, got {info.get('schema')!r}"
            raise self._http.error("/info", f"{mismatch}; for `vllm serve` set rollout.server = 'vllm'")
        self.policy_version: int = self._field("/info", info, "policy_version", int)
        self.name = self._http.name = f"remote {self._field('/info', info, 'engine', str)}"
        able = wire.decode_capabilities(self._field("/info", info, "capabilities", dict), self.name)
        self.capabilities = able.without(sleep="other clients use the server") if able.sleep else able
        self._weights: str | None = None  # the server's name for the weights that were sent last
        self._sender = Sender(sync, self._load_shared, self._upload)
        self._closed = False

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Sample one completion per request, in order; an error if the server lost the weights that were sent."""
        self._check_open("generate")
        if not requests:
            return []
        answer = self._http.json("POST", "/generate", wire.encode_requests(requests, params), repeat=True)
        self._check_weights("/generate", answer)
        completions = wire.decode_completions(answer, requests, self.name)
        versions = {version for completion in completions for version in completion.versions}
        if self._weights is not None and versions - {self.policy_version}:
            raise self._http.error("/generate", LOST)
        return completions

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Send all parameters, through shared memory or in the body of a request with a checksum."""
        self._check_open("update_weights")
        self.policy_version = self._sender.send(tensors, version)

    def _load_shared(self, name: str, version: int) -> int:
        """Make the server load shared memory as a policy version."""
        answer = self._http.json("POST", "/sync/load", {"name": name, "version": version})
        return self._accept("/sync/load", answer)

    def _upload(self, file: TensorFile, version: int) -> int:
        """Send a file of weights as a policy version."""
        headers = {"X-Policy-Version": str(version)}
        return self._accept("/weights", self._http.json("POST", "/weights", file.to_bytes(), headers=headers))

    def _accept(self, path: str, answer: Mapping[str, Any]) -> int:
        """Store the server's id of the new weights; return the version in its answer."""
        self._weights = str(answer.get("weights", ""))
        return int(self._field(path, answer, "policy_version", int))

    def fingerprint(self) -> str | None:
        """Return the digest of the weights that the server holds, computed now; None if its engine can't read them."""
        answer = self._http.json("GET", "/fingerprint", repeat=True)
        self._check_weights("/fingerprint", answer)
        kinds = (str,) if self.capabilities.fingerprint else (str, type(None))
        digest: str | None = self._field("/fingerprint", answer, "fingerprint", *kinds)
        return digest

    def close(self) -> None:
        """Refuse further sampling and updates; the server keeps running."""
        self._closed = True

    def _check_weights(self, path: str, answer: Mapping[str, Any]) -> None:
        """Check that an answer comes from the weights sent last, not from another client's of the same version."""
        if self._weights and answer.get("weights") != self._weights:
            raise self._http.error(path, LOST)

    def _field(self, path: str, answer: Mapping[str, Any], name: str, *kinds: type) -> Any:
        """Return a field of an answer; raises EngineError if it is missing or of another type."""
        value = answer.get(name)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise self._http.error(path, f"no {name} that can be used in the answer: {str(answer)[:200]}")
        return value

    def _check_open(self, method: str) -> None:
        if self._closed:
            raise EngineError(f"{self.name} engine, {method}: the engine is closed")


class ProcessEngine(RemoteEngine):
    """Engine in a child process: a server for this trainer alone, so that it samples while the trainer trains.

    `start_generate` and `finish_generate` are the two halves of `generate`.

    Attributes:
        pid: The child's process id.
    """

    def __init__(self, config: Config, model_dir: Path | str) -> None:
        """Start the child and wait until its engine is ready."""
        rollout = config.rollout
        self._server = ServerProcess(config, model_dir)
        self.pid = self._server.pid
        self._pool = ThreadPoolExecutor(1, "rollouts")
        self._in_flight: deque[Future[list[Completion]]] = deque()
        try:
            host, port, token = self._server.host, self._server.port, self._server.token
            super().__init__(host, port, timeout_s=rollout.timeout_s, token=token, sync=rollout.sync)
        except BaseException:
            self._server.close()
            raise
        self.name = self._http.name = f"{rollout.engine} (own process)"
        self._http.death = self._server.death

    def start_generate(self, requests: Sequence[Request], params: SamplingParams) -> None:
        """Start sampling in the background, behind earlier calls."""
        self._in_flight.append(self._pool.submit(super().generate, list(requests), params))

    def finish_generate(self) -> list[Completion]:
        """Wait for the completions of the oldest `start_generate`.

        Raises:
            EngineError: The child died, failed or answered something else, or nothing was started.
        """
        if not self._in_flight:
            raise EngineError(f"{self.name} engine: finish_generate without start_generate")
        return self._in_flight.popleft().result()

    def close(self) -> None:
        """End the child, and the call that it is sampling for."""
        super().close()
        self._server.close()
        self._pool.shutdown()


def engine_for(
    options: RolloutConfig, host: str, port: int, folder: Path, *, token: str | None = None
) -> Engine:
    """Return the engine for the server at an address; the server must accept weights and seeds.

    Args:
        options: Settings; only `server`, `sync` and `timeout_s` are used.
        host: Host of the server.
        port: Port of the server.
        folder: Folder for the weights of a server that reads files; each update deletes it with all its content.
        token: Token of the server.

    Raises:
        EngineError: No server answers, or it can't be used for training; the message says what it lacks and why.
    """
    connection: dict[str, Any] = {"timeout_s": options.timeout_s, "token": token}
    engine: Engine
    if options.server == "vllm":
        engine = VllmServerEngine(host, port, folder=folder, sync=options.sync, **connection)
    else:
        sync = "http" if options.sync == "auto" else options.sync
        engine = RemoteEngine(host, port, sync=sync, **connection)
    for name in ("update", "seeds"):
        if not getattr(engine.capabilities, name):
            reason = engine.capabilities.why_not.get(name, "it doesn't say why")
            raise EngineError(f"{engine.name} engine: it can't be trained with ({name}): {reason}")
    return engine
