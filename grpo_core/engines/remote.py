"""An engine behind HTTP: the client of `python -m grpo_core serve`, and who it is that answers at an address."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from typing import TYPE_CHECKING, Any

from grpo_core.engines.base import Capabilities, EngineError
from grpo_core.engines.calls import Http
from grpo_core.engines.wire import decode_completions, encode_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from grpo_core.types import Completion, Request, SamplingParams

PROTOCOL = "grpo-doctor.serve.v1"
KINDS = {
    "grpo-core": f"`python -m grpo_core serve` ({PROTOCOL})",
    "vllm": "`vllm serve`",
    "trl": "`trl vllm-serve` of TRL 0.16 to 1.10",
}


def identify(http: Http) -> str:
    """Who answers: a key of `KINDS`. `trl vllm-serve` of TRL 1.11 and later is `vllm serve`, and found to be.

    Raises:
        EngineError: Nobody there, or none of these.
    """
    status, text = http.call("GET", "/info", repeat=True)
    if status == 401:
        raise EngineError(
            f"{http.where('/info')}: status 401: {text[:80]!r}; is GRPO_CORE_TOKEN the server's?"
        )
    if status == 200:
        info = http.parsed("/info", status, text)
        if isinstance(info, dict) and info.get("schema") == PROTOCOL:
            return "grpo-core"
    status, text = http.call("GET", "/openapi.json", repeat=True)
    paths = _paths(http.parsed("/openapi.json", status, text)) if status == 200 else {}
    for path, kind in (("/v1/completions", "vllm"), ("/generate/", "trl")):
        if path in paths:
            return kind
    raise EngineError(
        f"{http.where('')}: no rollout server answers there (/openapi.json: status {status}); "
        f"expected {', '.join(KINDS.values())}"
    )


def _paths(document: Any) -> Mapping[str, Any]:
    paths = document.get("paths") if isinstance(document, dict) else None
    return paths if isinstance(paths, dict) else {}


class RemoteEngine:
    """Samples on a server of our own. Every call has a time limit."""

    name = "remote"

    def __init__(self, host: str, port: int, *, timeout_s: float, token: str | None = None) -> None:
        """Asks the server who it is.

        Raises:
            EngineError: Nobody there, or something else than a rollout server.
        """
        self._http = Http(self.name, host, port, timeout_s=timeout_s, token=token)
        info = self._http.json("GET", "/info", repeat=True)
        where = self._http.where("/info")
        if info.get("schema") != PROTOCOL:
            raise EngineError(f"{where}: expected a server of {PROTOCOL}, found {info.get('schema')!r}")
        try:
            self.name = self._http.name = f"remote {info['engine']}"
            known = {field.name for field in dataclasses.fields(Capabilities)}
            offered = {key: value for key, value in dict(info["capabilities"]).items() if key in known}
            able = Capabilities(**offered)
            self._capabilities = able.without(sleep="other clients use the server") if able.sleep else able
            self._version = int(info["policy_version"])
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"{where}: not what a server of {PROTOCOL} says: {error!r}") from error
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
        self._aborted.clear()
        self._running.set()
        try:
            answer = self._http.json("POST", "/generate", encode_requests(requests, params), repeat=True)
        finally:
            self._running.clear()
        return decode_completions(answer, requests, self.name, aborted=self._aborted.is_set())

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Uploads all parameters as safetensors, with a checksum that the server compares."""
        import safetensors.torch

        self._check_open("update_weights")
        body = safetensors.torch.save({name: tensor.detach().cpu() for name, tensor in tensors})
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Policy-Version": str(version),
            "X-Content-SHA256": hashlib.sha256(body).hexdigest(),
        }
        answer = self._http.json("POST", "/weights", body, headers=headers)
        if type(answer.get("policy_version")) is not int:
            raise EngineError(f"{self._http.where('/weights')}: no policy version in the answer: {answer}")
        self._version = answer["policy_version"]

    def fingerprint(self) -> str | None:
        """That of the weights the server holds, computed now."""
        digest = self._http.json("GET", "/fingerprint", repeat=True).get("fingerprint")
        return None if digest is None else str(digest)

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

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise EngineError(f"{self.name} engine, {call}: the engine is closed")
