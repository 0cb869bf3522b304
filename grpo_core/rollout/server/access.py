"""Access control of the rollout server: refuse requests before their body is read, and close slow connections.

A web page in a browser can send requests to servers on the user's own machine. With DNS rebinding it can even read the
answers; the Host header is then the page's own name. So a server on loopback requires a loopback name as Host, and
refuses requests that the browser marks as cross-site (Origin, Sec-Fetch-Site).
"""

# mypy: disable-error-code="misc"
from __future__ import annotations

import asyncio
import base64
import hmac
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h11
from fastapi import HTTPException
from fastapi.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from grpo_core.config import LOOPBACK

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

UPLOAD = "/weights"
_HEAD_S = 20.0  # seconds in which the headers of a request must arrive
_LOOPBACK_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]*)?", re.IGNORECASE | re.ASCII)
_WITH_BODY = ("POST", "PUT", "PATCH")
_SINGLE_HEADERS = (
    "authorization", "content-length", "host", "origin", "sec-fetch-site", "transfer-encoding", "x-content-blocks",
    "x-content-sha256", "x-policy-version",
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """Limits of every request.

    Attributes:
        generate_bytes: Largest body, weight uploads excluded.
        weights_bytes: Largest weight upload.
        waiting: Requests that may run or wait for the engine; further ones get status 503.
        call_s: Seconds in which a body must arrive, and in which a request must wait and run.
    """

    generate_bytes: int = 64 * 2**20
    weights_bytes: int = 2**30
    waiting: int = 16
    call_s: float = 120.0


class AccessControl:
    """ASGI middleware that refuses requests before their body is read."""

    def __init__(self, app: ASGIApp, *, token: str | None, host: str, limits: Limits) -> None:
        """`host` is the address that the server listens on."""
        self._app, self._token, self._limits, self._loopback = app, token, limits, host in LOOPBACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with a refusal, or pass the request on."""
        if scope["type"] != "http":  # no route is a WebSocket
            await self._app(scope, receive, send)
        elif refusal := self.refusal(scope):
            status, detail = refusal  # the connection is closed: nothing behind this call is read
            await JSONResponse({"detail": detail}, status, {"Connection": "close"})(scope, receive, send)
        else:
            await self._app(scope, _with_deadline(receive, self._limits.call_s), send)

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and reason of a refusal; None if the request is allowed."""
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            key = name.decode("latin-1").lower()
            if key in headers and key in _SINGLE_HEADERS:
                return 400, f"the header {key} is there more than once"
            headers[key] = value.decode("latin-1")
        return self._caller_refusal(scope["path"], headers) or self._body_refusal(scope, headers)

    def _caller_refusal(self, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        """Refuse by Host, Origin, Sec-Fetch-Site and token."""
        host = headers.get("host", "")
        if self._loopback and not _LOOPBACK_HOST.fullmatch(host):
            return 403, "the Host is not a name of this server"
        if headers.get("origin", f"http://{host}").lower() != f"http://{host}".lower():
            return 403, "calls of other web pages are not answered (Origin)"
        if headers.get("sec-fetch-site", "none").lower() not in ("none", "same-origin"):
            return 403, "calls of other web pages are not answered (Sec-Fetch-Site)"
        authorization = headers.get("authorization", "")
        if self._token and path not in ("/health", "/health/") and not _has_token(authorization, self._token):
            return 401, "the token is missing or wrong"
        return None

    def _body_refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Refuse bodies over the limit, and lengths that a proxy could read differently (request smuggling)."""
        path, length = scope["path"], headers.get("content-length", "")
        if not path.startswith("/"):
            return 400, "the target must be a path of this server"
        if scope["method"] not in _WITH_BODY and ("transfer-encoding" in headers or length.strip("0")):
            return 400, f"a {scope['method'][:20]} call has no body"
        if "transfer-encoding" in headers or (scope["method"] in _WITH_BODY and not length.isdecimal()):
            return 411, "a Content-Length is needed, and no Transfer-Encoding"
        # The HTTP parser holds a body to its Content-Length, so checking the header is enough.
        limit = self._limits.weights_bytes if path == UPLOAD else self._limits.generate_bytes
        if len(length) > 20 or int(length or 0) > limit:
            return 413, f"the body has {length[:20]} bytes, at most {limit} are read"
        return None


def _has_token(authorization: str, token: str) -> bool:
    """Compare a Bearer token, or the password of a Basic login as in `http://any:TOKEN@host`."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "basic":
        with suppress(ValueError):  # binascii.Error is one
            password = base64.b64decode(value, validate=True).decode("utf-8", "replace").partition(":")[2]
            return hmac.compare_digest(password.encode(), token.encode())
    return scheme.lower() == "bearer" and hmac.compare_digest(value.encode(), token.encode())


def _with_deadline(receive: Receive, limit_s: float) -> Receive:
    """Wrap `receive`: a body must arrive within `limit_s`, however slowly it comes."""
    loop, complete = asyncio.get_running_loop(), False
    deadline = loop.time() + limit_s

    async def receive_part() -> Message:
        nonlocal complete
        if complete:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(deadline - loop.time(), 0.001))
        except (TimeoutError, asyncio.TimeoutError) as error:  # two classes on Python 3.10
            detail = f"the body did not arrive in {limit_s:g} s"
            raise HTTPException(408, detail, {"Connection": "close"}) from error
        if message["type"] == "http.disconnect":
            raise HTTPException(400, "the connection ended before the body did")
        complete = not message.get("more_body", False)
        return message

    return receive_part


class HttpConnection(H11Protocol):
    """An HTTP connection that closes if headers arrive too slowly; malformed requests get 400, without a traceback."""

    head_s = _HEAD_S
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer for the headers of the first request."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Read data; the timer runs from the first byte of a request's headers to the last."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        super().connection_lost(exc)
        if self._head_timer is not None:
            self._head_timer.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answer 400 unless an answer has begun; close the connection and disconnect the request that runs on it."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.close()

    def _watch_head(self) -> None:
        """Start the timer while headers are incomplete, and stop it when they are complete."""
        incomplete = self.conn.their_state is h11.IDLE
        if incomplete and self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self.transport.close)
        elif not incomplete and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
