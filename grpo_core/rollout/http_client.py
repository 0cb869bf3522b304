"""Calls to a rollout server: each has one time limit, for all of it, and ends in an answer or in a named error."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import EngineError, EngineTimeoutError, EngineUnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LARGEST_ANSWER = 2**30  # bytes; a server that never stops talking is cut off here
_BUSY_S = 0.1  # the first pause after status 503; each further one is twice as long, up to 2 s


class HttpClient:
    """One server's address. Every call has a connection of its own: none is found dead later.

    Attributes:
        name: The engine's name, for messages.
        timeout_s: What one call may take, from the connection to the answer's last byte.
    """

    def __init__(
        self, name: str, host: str, port: int, *, timeout_s: float, token: str | None = None
    ) -> None:
        """Nothing is called yet; `token` goes with every call."""
        self.name, self.timeout_s = name, timeout_s
        self._host, self._port = host, port
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def where(self, path: str) -> str:
        """The engine and the address, for messages."""
        return f"{self.name} engine, http://{self._host}:{self._port}{path}"

    def deadline(self) -> float:
        """When a call that begins now must be over."""
        return time.monotonic() + self.timeout_s

    def local_address(self) -> str:
        """The address by which this machine is seen by the server's."""
        try:
            with socket.create_connection((self._host, self._port), timeout=self.timeout_s) as sock:
                return str(sock.getsockname()[0])
        except OSError as error:
            raise EngineUnreachableError(f"{self.where('')}: {type(error).__name__}: {error}") from error

    def json(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline: float | None = None,
        repeat: bool = False,
    ) -> dict[str, Any]:
        """The object that was answered with status 200.

        Args:
            method: GET or POST.
            path: With the query.
            body: Bytes, an upload, or a dictionary, which is sent as JSON.
            headers: More than those every call has.
            deadline: The call's own, where several share one.
            repeat: The call changes nothing, so it is asked once more if the connection is lost.

        Raises:
            EngineError: Refused, or no JSON object; subclasses: nobody there, or no answer in time.
        """
        status, text = self.call(method, path, body, headers=headers, deadline=deadline, repeat=repeat)
        return self.checked(path, status, text)

    def checked(self, path: str, status: int, text: bytes) -> dict[str, Any]:
        """The object in an answer, if its status is 200."""
        document = self.parsed(path, status, text)
        if status != http.client.OK:
            # One that knows another token may have been started again.
            kind = EngineUnreachableError if status == http.client.UNAUTHORIZED else EngineError
            raise kind(f"{self.where(path)}: status {status}: {_reason(document)}")
        if not isinstance(document, dict):
            raise EngineError(f"{self.where(path)}: expected a JSON object, got {text[:80]!r}")
        return document

    def parsed(self, path: str, status: int, text: bytes) -> Any:
        """An answer's JSON."""
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise EngineError(f"{self.where(path)}: status {status}, and no JSON: {text[:80]!r}") from error

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline: float | None = None,
        repeat: bool = False,
        patient: bool = True,
    ) -> tuple[int, bytes]:
        """Status and body, whatever the status; one of 503 is asked again while there is time: nothing was done.

        Not by who is not `patient`: to them 503 is an answer.
        """
        sent = {**self._headers, **(headers or {})}
        if isinstance(body, dict):
            body, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        deadline, pause_s = self.deadline() if deadline is None else deadline, _BUSY_S
        while True:
            try:
                status, text = self._once(method, path, body, sent, deadline)
            except TimeoutError as error:
                raise EngineTimeoutError(
                    f"{self.where(path)}: no answer in {self.timeout_s:g} s (rollout.timeout_s)"
                ) from error
            except (OSError, http.client.HTTPException, UnicodeError, OverflowError) as error:
                if repeat:
                    repeat = False
                    continue
                raise EngineUnreachableError(
                    f"{self.where(path)}: {type(error).__name__}: {error}; is the server up?"
                ) from error
            busy = patient and status == http.client.SERVICE_UNAVAILABLE
            if not busy or time.monotonic() + pause_s > deadline:
                return status, text
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 2.0)

    def _once(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], deadline: float
    ) -> tuple[int, bytes]:
        connection = _TimedConnection(self._host, self._port, deadline)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            # Of a known length: all of it, or IncompleteRead.
            known = response.length is not None
            if (response.length or 0) <= _LARGEST_ANSWER:
                text = response.read() if known else response.read(_LARGEST_ANSWER + 1)
                if len(text) <= _LARGEST_ANSWER:
                    _check_sum(response, text)
                    return response.status, text
        finally:
            connection.close()
        raise EngineError(f"{self.where(path)}: an answer of more than {_LARGEST_ANSWER} bytes")


class _TimedConnection(http.client.HTTPConnection):
    """A connection that is over at its deadline, even if the server sends a byte now and then."""

    def __init__(self, host: str, port: int, deadline: float) -> None:
        super().__init__(host, port, timeout=_left(deadline))
        self._deadline = deadline

    def connect(self) -> None:
        super().connect()
        plain = self.sock
        self.sock = _Socket(plain.family, plain.type, plain.proto, plain.detach())
        self.sock.deadline = self._deadline
        self.sock.settimeout(_left(self._deadline))  # `sendall` takes it as the limit of the whole upload


class _Socket(socket.socket):
    """Waits for each piece of an answer no longer than what is left for all of it."""

    deadline = 0.0

    def recv_into(self, *arguments: Any, **named: Any) -> int:
        self.settimeout(_left(self.deadline))
        return super().recv_into(*arguments, **named)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the call's time is over")
    return left


def _check_sum(response: http.client.HTTPResponse, text: bytes) -> None:
    """An answer that was changed on its way is a lost one, where its checksum was announced."""
    announced = response.getheader("X-Content-SHA256")
    if announced and announced.lower() != hashlib.sha256(text).hexdigest():
        raise ConnectionError("the answer has another checksum than announced")


def _reason(document: Any) -> Any:
    """What a server says was wrong: FastAPI's `detail`, vLLM's `error.message`, or all of it."""
    if isinstance(document, dict):
        error = document.get("error")
        if isinstance(error, dict) and "message" in error:
            return error["message"]
        return document.get("detail", error or document)
    return document


PROTOCOL = "grpo-doctor.serve.v1"
LOST = "the server lost the weights it was sent; it was started again, or somebody else has sent others"
SERVERS = {
    "grpo-core": f"`python -m grpo_core serve` ({PROTOCOL})",
    "vllm": "`vllm serve`",
    "trl": "`trl vllm-serve` of TRL 0.16 to 1.10",
}


def identify(http: HttpClient) -> str:
    """Who answers: a key of `SERVERS`. `trl vllm-serve` of TRL 1.11 and later is `vllm serve`, and found to be.

    Raises:
        EngineError: Nobody there, none of these, or ours with an `/info` that is not.
    """
    status, told = http.call("GET", "/info", repeat=True)
    if status == HTTPStatus.UNAUTHORIZED:
        http.checked("/info", status, told)
    if status == HTTPStatus.OK:
        info = http.parsed("/info", status, told)
        if isinstance(info, dict) and info.get("schema") == PROTOCOL:
            return "grpo-core"
    status, text = http.call("GET", "/openapi.json", repeat=True)
    paths = _paths(http.parsed("/openapi.json", status, text)) if status == HTTPStatus.OK else {}
    if {"/weights", "/fingerprint"} <= paths.keys():  # it speaks TRL's dialect, too
        raise EngineError(
            f"{http.where('/info')}: a server of {PROTOCOL} that does not say so: {told[:80]!r}"
        )
    for path, kind in (("/v1/completions", "vllm"), ("/generate/", "trl")):
        if path in paths:
            return kind
    raise EngineError(
        f"{http.where('')}: no rollout server answers there (/openapi.json: status {status}); "
        f"expected {', '.join(SERVERS.values())}"
    )


def _paths(document: Any) -> Mapping[str, Any]:
    paths = document.get("paths") if isinstance(document, dict) else None
    return paths if isinstance(paths, dict) else {}
