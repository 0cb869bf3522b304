"""Control access to the rollout server: refuse requests before their body is read, and close idle connections.

Requests are refused by Host, Origin, Sec-Fetch-Site, token, target and length of the body; the body must arrive in
time. `UVICORN_OPTIONS` limits connections: their number, the time to the first request, and one request on each.

A web page in a browser can send requests to servers on the user's own machine. With DNS rebinding it can even read the
answers; the Host header is then the page's own name. So a server on loopback requires a loopback name as Host. Servers
on any address refuse requests that the browser marks as another origin's (Origin, Sec-Fetch-Site).
"""

# mypy: disable-error-code="misc"
from __future__ import annotations

import asyncio
import hmac
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h11
from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from uvicorn.protocols.http.h11_impl import H11Protocol

from grpo_core.config import LOOPBACK

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

UPLOAD = "/weights"
CONNECTIONS = 64  # at a time; further calls are answered with status 503
_LOOPBACK_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]*)?", re.IGNORECASE | re.ASCII)
Refusal = tuple[int, str]


@dataclass(frozen=True)
class Limits:
    """Limits of requests.

    Attributes:
        generate_bytes: Largest body, weight uploads excluded.
        weights_bytes: Largest weight upload.
        waiting: Number of requests that may run or wait for the engine; further ones get status 503.
        call_s: Seconds in which a body must arrive, and in which a request must wait and run.
    """

    generate_bytes: int = 64 * 2**20
    weights_bytes: int = 2**30
    waiting: int = 16
    call_s: float = 120.0


class AccessControl:
    """ASGI middleware that refuses requests before their body is read, and gives other bodies a deadline."""

    def __init__(self, app: ASGIApp, *, token: str | None, host: str, limits: Limits) -> None:
        """Store the app and the rules; `host` is the address that the server listens on."""
        self._app, self._token, self._limits, self._loopback = app, token, limits, host in LOOPBACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with a refusal, or pass the request on, with a deadline for its body."""
        if scope["type"] != "http":  # no route is a WebSocket
            await self._app(scope, receive, send)
        elif refusal := self.refusal(scope):
            status, detail = refusal
            await JSONResponse({"detail": detail}, status)(scope, receive, send)
        else:
            try:
                await self._app(scope, _with_deadline(receive, self._limits.call_s), send)
            except asyncio.CancelledError:  # by a second Ctrl-C, or after the grace period of the first
                with suppress(RuntimeError):  # a part of the answer is sent already
                    await JSONResponse({"detail": "the server is stopping"}, 503)(scope, receive, send)

    def refusal(self, scope: Scope) -> Refusal | None:
        """Return status and reason of a refusal; None if the request is allowed."""
        headers = Headers(scope=scope)
        return self._caller_refusal(scope["path"], headers) or self._body_refusal(scope, headers)

    def _caller_refusal(self, path: str, headers: Headers) -> Refusal | None:
        """Return the refusal by Host, Origin, Sec-Fetch-Site or token, if any; `/health` needs no token."""
        host = headers.get("host", "")
        if self._loopback and not _LOOPBACK_HOST.fullmatch(host):
            return 403, "the Host is not a name of this server"
        if headers.get("origin", f"http://{host}").lower() != f"http://{host}".lower():
            return 403, "calls of other web pages are not answered (Origin)"
        if headers.get("sec-fetch-site", "none").lower() not in ("none", "same-origin"):
            return 403, "calls of other web pages are not answered (Sec-Fetch-Site)"
        needed = ("" if path == "/health" else self._token) or ""
        scheme, _, value = headers.get("authorization", "").partition(" ")
        has_token = scheme.lower() == "bearer" and hmac.compare_digest(value.encode(), needed.encode())
        if needed and not has_token:
            return 401, "the token is missing or wrong"
        return None

    def _body_refusal(self, scope: Scope, headers: Headers) -> Refusal | None:
        """Return the refusal of a malformed target, or of a body over the limit or of unknown length, if any."""
        if not scope["path"].startswith("/"):
            return 400, "the target must be a path of this server"
        length = headers.get("content-length", "" if scope["method"] == "POST" else "0")
        if "transfer-encoding" in headers or not length.isdecimal():
            return 411, "a Content-Length is needed, and no Transfer-Encoding"
        # The HTTP parser holds a body to its Content-Length, so checking the header is enough.
        limit = self._limits.weights_bytes if scope["path"] == UPLOAD else self._limits.generate_bytes
        if len(length) > 20 or int(length) > limit:
            return 413, f"the body has {length[:20]} bytes, at most {limit} are read"
        return None


def _with_deadline(receive: Receive, limit_s: float) -> Receive:
    """Wrap `receive` with a deadline: the whole body must arrive within `limit_s` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s

    async def receive_part() -> Message:
        try:
            message = await asyncio.wait_for(receive(), max(deadline - loop.time(), 0.001))
        except (TimeoutError, asyncio.TimeoutError) as error:  # two classes on Python 3.10
            raise HTTPException(408, f"the body did not arrive in {limit_s:g} s") from error
        if message["type"] == "http.disconnect":
            raise HTTPException(400, "the connection ended before the body did")
        return message

    return receive_part


class HttpConnection(H11Protocol):
    """An HTTP connection that serves one request, whose headers must arrive in time.

    A connection without a request needs no token. So that such connections leave room for requests in
    `limit_concurrency`, at most `max_idle` stay longer than `patience_s`.
    """

    head_s, max_idle, patience_s = 20.0, CONNECTIONS // 2, 1.0

    def connection_made(self, transport: Any) -> None:
        """Close the connection if no request comes in `head_s` seconds, or in `patience_s` if many are idle."""
        super().connection_made(transport)
        self.loop.call_later(self.patience_s, self.close_idle, self.max_idle)
        self.loop.call_later(self.head_s, self.close_idle, 0)

    def close_idle(self, most: int) -> None:
        """Close the connection if it has no request and more than `most` connections have none."""
        idle = [each for each in self.connections if each.cycle is None and not each.transport.is_closing()]
        if self in idle and len(idle) > most:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed data; in the middle of an answer only by closing the connection."""
        with suppress(h11.LocalProtocolError):
            super().send_400_response(msg)
        self.transport.close()


# One request for each connection: later bytes on it can't be taken for another request.
UVICORN_OPTIONS: dict[str, Any] = {
    "http": HttpConnection,
    "ws": "none",
    "lifespan": "off",  # the application has no such handlers, and a second Ctrl-C would print a traceback
    "limit_concurrency": CONNECTIONS,
    "backlog": CONNECTIONS,  # each accepted connection takes a file descriptor
    "headers": [("Connection", "close")],
    "server_header": False,
    "proxy_headers": False,  # the client's address is that of the connection, not one from a header
    "log_level": "error",  # a log line for each malformed call would let any client fill the disk
}
