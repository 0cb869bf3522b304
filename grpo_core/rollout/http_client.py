"""Call a rollout server over HTTP: each call has one time limit, and ends with an answer or an EngineError.

While the server answers 503, the call is repeated until the limit. With `repeat`, it is also repeated once after a
failed connection or an answer with a wrong checksum. Bodies are sent with a CRC-32; an answer that has one is checked
against it. Answers of more than 1 GiB are refused.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import EngineError, EngineTimeoutError
from grpo_core.rollout.wire import CHECKSUM, checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PROTOCOL = "grpo-doctor.serve.v1"
LOST = "the server lost the weights it was sent; it was started again, or somebody else has sent others"
_MAX_ANSWER = 2**30  # bytes; a server that never stops sending is cut off here
_BUSY_S = 0.1  # the first pause after status 503; each further one is twice as long, up to 2 s


class HttpClient:
    """Client of one server. Every call opens a new connection, so that none can be stale.

    Attributes:
        name: The engine's name, for messages.
        timeout_s: Time limit of one call with its repeats, from connecting to the last byte of the answer.
        death: Function that returns how the server's process ended; None while it runs, or if unknown.
    """

    def __init__(
        self, name: str, host: str, port: int, *, timeout_s: float, token: str | None = None
    ) -> None:
        """Store the address and the token, which every call sends; no call is made yet."""
        self.name, self.timeout_s = name, timeout_s
        self.death: Callable[[], str | None] = lambda: None
        self._host, self._port = host, port
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def location(self, path: str) -> str:
        """Return the engine and the address, for messages."""
        return f"{self.name} engine, http://{self._host}:{self._port}{path}"

    def error(self, path: str, message: str, kind: type[EngineError] = EngineError) -> EngineError:
        """Return an error that begins with the location."""
        return kind(f"{self.location(path)}: {message}")

    def deadline(self) -> float:
        """Return the deadline of a call that begins now."""
        return time.monotonic() + self.timeout_s

    def json(self, method: str, path: str, body: Any = None, **options: Any) -> dict[str, Any]:
        """Call the server, and return the JSON object of an answer with status 200; for the arguments see `call`.

        Raises:
            EngineTimeoutError: There was no answer in time.
            EngineError: The server can't be reached or refused the call, or its answer is no JSON object.
        """
        return self.parse_object(path, *self.call(method, path, body, **options))

    def parse_object(self, path: str, status: int, text: bytes) -> dict[str, Any]:
        """Return the JSON object of an answer; raise EngineError for a status other than 200 or other data."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.error(path, f"status {status}, and no JSON: {text[:80]!r}") from error
        if status != HTTPStatus.OK:
            raise self.error(path, f"status {status}: {_refusal_reason(document)}")
        if not isinstance(document, dict):
            raise self.error(path, f"expected a JSON object, got {text[:80]!r}")
        return document

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline: float | None = None,
        repeat: bool = False,
    ) -> tuple[int, bytes]:
        """Return status and body, also for error statuses; repeat the call after status 503 while there is time.

        Args:
            method: GET or POST.
            path: With the query.
            body: Bytes, an upload, or a dictionary, which is sent as JSON. Its checksum is sent, too.
            headers: Besides those of every call.
            deadline: A deadline that several calls share; by default this call has `timeout_s`.
            repeat: Whether to repeat the call once if the connection fails, because it changes nothing.

        Raises:
            EngineTimeoutError: There was no answer in time.
            EngineError: The connection failed, or the answer is too large or has a wrong checksum.
        """
        all_headers = {**self._headers, **(headers or {})}
        if isinstance(body, dict):
            body, all_headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        if body is not None:
            all_headers[CHECKSUM] = checksum(body)
        deadline, pause_s = self.deadline() if deadline is None else deadline, _BUSY_S
        while True:
            try:
                status, text = self._call_once(method, path, body, all_headers, deadline)
            except TimeoutError as error:
                message = f"no answer in {self.timeout_s:g} s (rollout.timeout_s)"
                raise self.error(path, message, EngineTimeoutError) from error
            except (OSError, http.client.HTTPException, UnicodeError, OverflowError) as error:
                if repeat:
                    repeat = False
                    continue
                death = self.death()
                reason = f"{type(error).__name__}: {error}; is the server up?"
                raise self.error(path, f"its process ended with {death}" if death else reason) from error
            if status != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() + pause_s > deadline:
                return status, text
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 2.0)

    def _call_once(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], deadline: float
    ) -> tuple[int, bytes]:
        """Make one call on a new connection, cut off at the deadline; return status and body."""
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        connection = http.client.HTTPConnection(self._host, self._port, timeout=remaining_s)
        timer = threading.Timer(remaining_s, _cut_off, [connection])
        timer.daemon = True
        timer.start()
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            too_long = (response.length or 0) > _MAX_ANSWER
            # With a known length: all of it, or IncompleteRead.
            text = b"" if too_long else response.read(_MAX_ANSWER + 1 if response.length is None else None)
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() >= deadline:
                raise TimeoutError from error
            raise
        finally:
            timer.cancel()
            connection.close()
        if time.monotonic() >= deadline:  # an answer of unknown length, cut off
            raise TimeoutError
        if too_long or len(text) > _MAX_ANSWER:
            raise self.error(path, f"an answer of more than {_MAX_ANSWER} bytes")
        announced = response.getheader(CHECKSUM)
        if announced and announced != checksum(text):
            raise ConnectionError("the answer has another checksum than announced")
        return response.status, text


def _cut_off(connection: http.client.HTTPConnection) -> None:
    """End a call, even if the server sends a byte now and then."""
    with contextlib.suppress(OSError, AttributeError):  # not connected yet, or closed by now
        connection.sock.shutdown(socket.SHUT_RDWR)


def _refusal_reason(document: Any) -> Any:
    """Return the server's error text: FastAPI's `detail`, vLLM's `error.message`, or the whole body."""
    if isinstance(document, dict):
        error = document.get("error")
        if isinstance(error, dict) and "message" in error:
            return error["message"]
        return document.get("detail", error or document)
    return document
