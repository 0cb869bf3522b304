"""HTTP to the server that is asked: one line of error, a deadline for each call, a limit for each answer."""

from __future__ import annotations

import base64
import http.client
import json
import os
import time
from typing import Any
from urllib.parse import unquote, urlsplit

from diagnostics import given
from diagnostics.audit.errors import AuditError, NotAskedError
from diagnostics.collect.secrets import cut

_MOST_BYTES = 1 << 26
# Where a server's own key stands, as its users set it.
_KEYS = ("VLLM_API_KEY", "GRPO_CORE_TOKEN")


class RefusedError(AuditError):
    """Raised when a server answers, and not with what was asked for; carries the status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Client:
    """Calls of one server, counted.

    Attributes:
        address: Where it is, without what lets one in.
        requests: Calls so far.
        tokens: What these cost the engine, as far as the calls said.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        """Raises AuditError of an address that is none."""
        given = url if "://" in url else f"http://{url}"
        try:
            parts = urlsplit(given)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise AuditError(f"--server {url!r}: no address: {error}") from error
        if parts.scheme not in ("http", "https") or not host:
            raise AuditError(f"--server {url!r}: expected an address as http://127.0.0.1:8000")
        self._secure = parts.scheme == "https"
        self._host, self._port = host, port or (443 if self._secure else 80)
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._token = unquote(parts.password or "") or next(
            (os.environ[name] for name in _KEYS if os.environ.get(name)), ""
        )
        self._user, self._timeout_s = unquote(parts.username or ""), timeout_s
        self.address = f"{parts.scheme}://{host}:{self._port}{self._path}"
        self.requests = self.tokens = 0

    def get(self, path: str) -> Any:
        """What a path answers: JSON, or text where it is none."""
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The same of a call with a body."""
        return self._call("POST", path, json.dumps(body).encode())

    def tried(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The same, None where the server has no such path or keeps it to itself."""
        try:
            return self.get(path) if body is None else self.post(path, body)
        except RefusedError:
            return None

    def _call(self, method: str, path: str, body: bytes | None) -> Any:
        self.requests += 1
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        began = time.monotonic()
        connection = kind(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request(method, self._path + path, body, self._headers(body))
            answer = connection.getresponse()
            content = self._read(answer, began, path)
        except ConnectionRefusedError as error:
            raise AuditError(f"{self.address}: nobody listens there") from error
        except TimeoutError as error:
            raise NotAskedError(
                f"{self.address}{path}: no answer in {self._timeout_s:g} s; it may be paused, asleep or busy"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            told = str(error) or type(error).__name__
            raise AuditError(f"{self.address}{path}: {told}") from error
        finally:
            connection.close()
        return self._understood(answer.status, content, path)

    def _read(self, answer: http.client.HTTPResponse, began: float, path: str) -> bytes:
        """All of an answer; a server that sends a byte now and then has no more time than another."""
        parts, size = [], 0
        while part := answer.read1(1 << 16):
            size += len(part)
            parts.append(part)
            if size > _MOST_BYTES:
                raise AuditError(f"{self.address}{path}: its answer is longer than {_MOST_BYTES >> 20} MiB")
            if time.monotonic() - began > self._timeout_s:
                raise TimeoutError
        return b"".join(parts)

    def _headers(self, body: bytes | None) -> dict[str, str]:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._token and self._user:
            both = base64.b64encode(f"{self._user}:{self._token}".encode()).decode()
            headers["Authorization"] = f"Basic {both}"
        elif self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _understood(self, status: int, content: bytes, path: str) -> Any:
        text = content.decode("utf-8", "replace")
        try:
            value = given.parsed(text) if text else {}
        except (ValueError, RecursionError):
            value = text
        if status in (401, 403):
            keys = " or ".join(_KEYS)
            raise RefusedError(f"{self.address}{path}: it wants a key ({status}): set {keys}", status)
        if status == 503:
            raise NotAskedError(f"{self.address}{path}: it is busy (503): {_said(value)}")
        if status >= 400:
            raise RefusedError(f"{self.address}{path}: refused ({status}): {_said(value)}", status)
        return value


def _said(value: Any) -> str:
    """What a refusal says, on one line."""
    told = value
    for key in ("error", "message", "detail"):
        told = told.get(key, told) if isinstance(told, dict) else told
    return cut(" ".join(str(told).split()), 300)
