"""An engine behind HTTP: the client of `python -m grpo_core serve`."""

from __future__ import annotations

import dataclasses
import hashlib
import http.client
import json
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from grpo_core.engines.base import Capabilities, EngineError, EngineTimeoutError, EngineUnreachableError
from grpo_core.engines.wire import decode_completions, encode_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch

    from grpo_core.types import Completion, Request, SamplingParams

PROTOCOL = "grpo-doctor.serve.v1"
LOST = "the server lost the weights it was sent; it was started again, or somebody else has sent others"


class RemoteEngine:
    """Samples on a server. Every call has a time limit, and a new connection: none is found dead later."""

    name = "remote"

    def __init__(self, host: str, port: int, *, timeout_s: float, token: str | None = None) -> None:
        """Asks the server who it is.

        Raises:
            EngineError: Nobody there, or something else than a rollout server.
        """
        self._host, self._port, self._timeout_s, self._token = host, port, timeout_s, token
        info = self._json("GET", "/info")
        if info.get("schema") != PROTOCOL:
            raise EngineError(
                f"{self._where('/info')}: expected a server of {PROTOCOL}, found {info.get('schema')!r}"
            )
        can = self._field("/info", info, "capabilities", dict)
        known = {
            field.name: can[field.name] for field in dataclasses.fields(Capabilities) if field.name in can
        }
        self._capabilities = Capabilities(**{"seeds": False, "fingerprint": False, **known, "sleep": False})
        self._version: int = self._field("/info", info, "policy_version", int)
        self.name = f"remote {self._field('/info', info, 'engine', str)}"
        self._weights = ""

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
        body = json.dumps(encode_requests(requests, params)).encode()
        headers = {"Content-Type": "application/json", "X-Content-SHA256": hashlib.sha256(body).hexdigest()}
        answer = self._json("POST", "/generate", body, headers)
        self._check_weights("/generate", answer)
        completions = decode_completions(answer, requests, self.name)
        if self._weights and any(set(completion.versions) != {self._version} for completion in completions):
            raise EngineUnreachableError(f"{self._where('/generate')}: {LOST}")
        return completions

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Uploads all parameters as safetensors, with a checksum that the server compares."""
        import safetensors.torch

        body = safetensors.torch.save({name: tensor.detach().cpu() for name, tensor in tensors})
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Policy-Version": str(version),
            "X-Content-SHA256": hashlib.sha256(body).hexdigest(),
        }
        answer = self._json("POST", "/weights", body, headers)
        self._weights = self._field("/weights", answer, "weights", str)
        self._version = self._field("/weights", answer, "policy_version", int)

    def fingerprint(self) -> str | None:
        """That of the weights the server holds, computed now."""
        answer = self._json("GET", "/fingerprint")
        self._check_weights("/fingerprint", answer)
        kind = (str,) if self._capabilities.fingerprint else (str, type(None))
        digest: str | None = self._field("/fingerprint", answer, "fingerprint", *kind)
        return digest

    def close(self) -> None:
        """Nothing is held between calls."""

    def _check_weights(self, path: str, answer: dict[str, Any]) -> None:
        """Whether it is about the weights sent last: others may bear the same version."""
        if self._weights and answer.get("weights") != self._weights:
            raise EngineUnreachableError(f"{self._where(path)}: {LOST}")

    def _field(self, path: str, answer: dict[str, Any], name: str, *kinds: type) -> Any:
        if not isinstance(answer.get(name), kinds):
            raise EngineError(
                f"{self._where(path)}: no {name} that can be used in the answer: {str(answer)[:200]}"
            )
        return answer.get(name)

    def _where(self, path: str) -> str:
        return f"{self.name} engine, http://{self._host}:{self._port}{path}"

    def _json(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        authorization = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            connection.connect()
            with _limited(connection.sock, self._timeout_s):
                connection.request(method, path, body, {**(headers or {}), **authorization})
                response = connection.getresponse()
                status, text = response.status, response.read()
        except TimeoutError as error:
            raise EngineTimeoutError(
                f"{self._where(path)}: no answer in {self._timeout_s:g} s (rollout.timeout_s)"
            ) from error
        except (OSError, http.client.HTTPException, MemoryError, OverflowError) as error:
            raise EngineUnreachableError(
                f"{self._where(path)}: {type(error).__name__}: {error}; is the server up?"
            ) from error
        finally:
            connection.close()
        announced = response.getheader("X-Content-SHA256")
        if announced and announced != hashlib.sha256(text).hexdigest():
            raise EngineUnreachableError(
                f"{self._where(path)}: the answer has another checksum than announced"
            )
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise EngineError(f"{self._where(path)}: status {status}, and no JSON: {text[:80]!r}") from error
        if status != http.client.OK:
            detail = document.get("detail", document) if isinstance(document, dict) else document
            raise EngineError(f"{self._where(path)}: status {status}: {detail}")
        if not isinstance(document, dict):
            raise EngineError(f"{self._where(path)}: expected a JSON object, got {text[:80]!r}")
        return document


@contextmanager
def _limited(sock: socket.socket, timeout_s: float) -> Iterator[None]:
    """One time limit for a whole call: a socket's own begins anew with each byte that comes.

    Raises:
        TimeoutError: It is over.
    """
    over = threading.Event()

    def end() -> None:
        over.set()
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, end)
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        if over.is_set():
            raise TimeoutError from error
        raise
    finally:
        timer.cancel()
    if over.is_set():  # an answer that ends within its head is an empty one to http.client
        raise TimeoutError
