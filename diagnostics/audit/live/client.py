"""HTTP client of the audited server: one-line errors, a deadline for each whole call, a size limit for each answer."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import httpx

from diagnostics import safe_io
from diagnostics.audit.model import AuditError, NotAvailableError
from diagnostics.output.redact import mask_and_cut

_MAX_BYTES = 1 << 26
_KEYS = ("VLLM_API_KEY", "GRPO_CORE_TOKEN")


class RefusedError(AuditError):
    """Raised when a server answers with an error status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Client:
    """Calls of one server, counted.

    Attributes:
        address: URL without credentials.
        requests: Calls so far.
        tokens: Tokens that these calls cost the engine, counted by the callers.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        """Parse the URL.

        Raises:
            AuditError: It is not an HTTP address.
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise AuditError(f"--server {url!r}: not an address: {error}") from error
        if parts.scheme not in ("http", "https") or not host:
            raise AuditError(f"--server {url!r}: expected an address as http://127.0.0.1:8000")
        port = port or (443 if parts.scheme == "https" else 80)
        shown_host = f"[{host}]" if ":" in host else host
        self.address = f"{parts.scheme}://{shown_host}:{port}{parts.path.rstrip('/').removesuffix('/v1')}"
        self.requests = self.tokens = 0
        self._timeout_s = timeout_s
        self._user, token = unquote(parts.username or ""), unquote(parts.password or "")
        self._token = token or next((os.environ[name] for name in _KEYS if os.environ.get(name)), "")

    def get(self, path: str) -> Any:
        """Return a path's answer: JSON, or text if it is none."""
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer to a JSON body."""
        return self._call("POST", path, json.dumps(body).encode())

    def try_call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the answer; None if the server refuses."""
        try:
            return self.get(path) if body is None else self.post(path, body)
        except RefusedError:
            return None

    def _call(self, method: str, path: str, body: bytes | None) -> Any:
        self.requests += 1
        with _Deadline(self._timeout_s) as deadline:
            try:
                status, content = self._exchange(deadline, method, path, body)
            except httpx.HTTPError as error:
                raise self._failure(error, path, expired=deadline.expired) from error
        return self._parse(status, content, path)

    def _failure(self, error: httpx.HTTPError, path: str, *, expired: bool) -> AuditError:
        if expired or isinstance(error, httpx.TimeoutException):
            why = f"no complete answer in {self._timeout_s:g} s (--timeout): it may be paused, asleep or busy"
            return NotAvailableError(f"{self.address}{path}: {why}")
        if isinstance(error, httpx.ConnectError):
            return AuditError(f"{self.address}: no server listens there ({error})")
        return AuditError(f"{self.address}{path}: {str(error) or type(error).__name__}")

    def _exchange(self, deadline: _Deadline, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        login = httpx.BasicAuth(self._user, self._token) if self._token and self._user else None
        if self._token and not login:
            headers["Authorization"] = f"Bearer {self._token}"
        parts, size = [], 0
        options: dict[str, Any] = {"headers": headers, "auth": login, "extensions": {"trace": deadline.trace}}
        with (
            httpx.Client(timeout=self._timeout_s, trust_env=False) as client,
            client.stream(method, self.address + path, content=body, **options) as response,
        ):
            for part in response.iter_bytes():
                size += len(part)
                parts.append(part)
                if size > _MAX_BYTES:
                    raise AuditError(
                        f"{self.address}{path}: its answer is longer than {_MAX_BYTES >> 20} MiB"
                    )
            return response.status_code, b"".join(parts)

    def _parse(self, status: int, content: bytes, path: str) -> Any:
        text = content.decode("utf-8", "replace")
        try:
            value = safe_io.parse_json(text) if text else {}
        except (ValueError, RecursionError):
            value = text
        if status in (401, 403):
            raise RefusedError(
                f"{self.address}{path}: a key is required ({status}): set {' or '.join(_KEYS)}", status
            )
        if status == 503:
            raise NotAvailableError(f"{self.address}{path}: it is busy (503): {_error_text(value)}")
        if not 200 <= status < 300:
            raise RefusedError(f"{self.address}{path}: refused ({status}): {_error_text(value)}", status)
        return value


class _Deadline:
    """Shut down a call's socket at the deadline of the whole call.

    httpx's timeouts hold for each read, so dripped headers or endless 100 Continue answers would last for ever.
    """

    def __init__(self, timeout_s: float) -> None:
        self.expired = False
        self._sockets: list[Any] = []
        self._timer = threading.Timer(timeout_s, self._stop)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """Remember the sockets that httpcore opens (its `trace` extension)."""
        if event.endswith("connect_tcp.complete"):
            self._sockets.append(info["return_value"].get_extra_info("socket"))
            if self.expired:  # connecting took longer than the whole call may
                self._stop()

    def _stop(self) -> None:
        self.expired = True
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _error_text(value: Any) -> str:
    """Return what a refusal says, on one line."""
    for key in ("error", "message", "detail"):
        value = value.get(key, value) if isinstance(value, dict) else value
    return mask_and_cut(" ".join(str(value).split()), 300)
