"""What every call meets before its endpoint: who may call, the size of its body and the time it may take to arrive.

A web page that a user looks at may call servers on the user's own machine, and with DNS rebinding even read their
answers: the Host is then the page's own name. So the Host must be a name that nobody else can point here, and calls
that a browser marks as another page's are refused.
"""

# mypy: disable-error-code="misc, untyped-decorator"
from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from grpo_core.config import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastapi import FastAPI, Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

UPLOAD = "/weights"
LIVENESS = ("/health", "/health/")
MOST_VALUES, MOST_CONTAINERS = (
    2**21,
    2**17,
)  # in a body: parsing takes time and memory by these, not by its bytes
_WITH_BODY = ("POST", "PUT", "PATCH")
_LENGTH = "a Content-Length is needed, and no Transfer-Encoding"
_OWN_PAGES = ("none", "same-origin")  # typed by a person, or from an answer of ours
_ONCE = (
    "authorization", "content-length", "host", "origin", "sec-fetch-site", "transfer-encoding", "x-content-sha256",
    "x-policy-version",
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """What a client may send, and what it may wait for.

    Attributes:
        generate_bytes: Largest body of a call that uploads no weights.
        weights_bytes: Largest weight upload.
        waiting: Calls that may wait for the engine; further ones are told to come back.
        call_s: Seconds a call may wait for the engine and sample, and an upload may take to arrive.
        body_s: Seconds the body of a call that uploads no weights may take to arrive.
        held_bytes: Of all bodies that are held at a time, uploads aside.
    """

    generate_bytes: int = 16 * 2**20
    weights_bytes: int = 2**30
    waiting: int = 16
    call_s: float = 120.0
    body_s: float = 30.0
    held_bytes: int = 64 * 2**20


class RefusalAnswer(BaseModel):
    """Why a call was refused, in one line."""

    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": RefusalAnswer, "description": description}
    for status, description in {
        400: "The body is not what was announced.",
        401: "The token is missing or wrong.",
        403: "The call came from a web page, or by a name that is not this server's.",
        408: "The body did not come in time.",
        411: "The body's length is not announced.",
        413: "The body is too large.",
        422: "The call asks for what the server or its engine doesn't do; nothing has changed.",
        503: "The server is busy, or the call took too long; it can be made again.",
    }.items()
}


class Callers:
    """Whom a server answers.

    Attributes:
        token: What a call must have; None: anybody's calls are taken.
    """

    def __init__(self, token: str | None, host: str) -> None:
        """`host` is the address the server was told to listen at."""
        self.token, self._names = token, {*LOOPBACK, host.lower()}
        self._loopback = host in LOOPBACK

    def refused(self, path: str, headers: Mapping[str, Sequence[str]], local: str) -> tuple[int, str] | None:
        """Status and reason; None: the call may go on.

        Args:
            path: What is called.
            headers: By name in small letters.
            local: The address of this machine that was called.
        """
        for name in _ONCE:
            if len(headers.get(name, ())) > 1:
                return 400, f"the header {name} is there more than once"
        value = {name: found[0] for name, found in headers.items()}
        authorized = self.token is not None and is_token(value.get("authorization", ""), self.token)
        # Beyond loopback a name may be that of a service; who has the token is no page.
        if not (authorized and not self._loopback) and not self._is_ours(value.get("host", ""), local):
            return 403, "the Host is not a name of this server"
        if "origin" in value and value["origin"].lower() != f"http://{value.get('host', '').lower()}":
            return 403, "calls of other web pages are not answered (Origin)"
        if value.get("sec-fetch-site", "none").lower() not in _OWN_PAGES:
            return 403, "calls of other web pages are not answered (Sec-Fetch-Site)"
        if self.token is None or authorized or path in LIVENESS:
            return None
        return 401, "the token is missing or wrong"

    def _is_ours(self, host: str, local: str) -> bool:
        name = _host_name(host)
        return name in self._names or (name != "" and _address(name) == _address(local) != "")


def is_token(given: str, token: str) -> bool:
    """By `Bearer`, or as the password of `http://anybody:TOKEN@host`: TRL's client has no other way."""
    kind, _, value = given.partition(" ")
    if kind.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode("utf-8", "replace").partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    elif kind.lower() != "bearer":
        return False
    return hmac.compare_digest(value.encode(), token.encode())


class Guard:
    """Refuses callers who may not call, and bodies over the limit, before anything of the body is read."""

    def __init__(self, app: ASGIApp, callers: Callers, limits: Limits) -> None:
        """`app` is what lies behind."""
        self._app, self._callers, self._limits = app, callers, limits
        self._held = 0  # bytes of bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # nothing here is a WebSocket
            await send({"type": "websocket.close", "code": 1008})
            return
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        local = (scope.get("server") or ("",))[0]
        refused = _ambiguous(scope, headers) or self._callers.refused(scope["path"], headers, local)
        with_body = scope["method"] in _WITH_BODY
        if refused is None and with_body:
            refused = self._too_large(scope["path"], headers)
        if refused is not None:  # nothing behind it on the connection is read
            answer = JSONResponse({"detail": refused[1]}, refused[0], {"Connection": "close"})
            await answer(scope, receive, send)
        elif with_body:
            await self._with_body(scope, receive, send, int(headers["content-length"][0]))
        else:
            await self._app(scope, receive, send)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send, size: int) -> None:
        if scope["path"] == UPLOAD:
            await self._app(scope, _limited(receive, size, self._limits.call_s, parsed=False), send)
            return
        self._held += size
        try:
            await self._app(scope, _limited(receive, size, self._limits.body_s, parsed=True), send)
        finally:
            self._held -= size

    def _too_large(self, path: str, headers: dict[str, list[str]]) -> tuple[int, str] | None:
        # The HTTP parser holds a body to its Content-Length, so checking the header is enough.
        length = headers.get("content-length", [""])[0]
        if not (length.isascii() and length.isdecimal()):
            return 411, _LENGTH
        most = self._limits.weights_bytes if path == UPLOAD else self._limits.generate_bytes
        if len(length) > 20 or int(length) > most:
            return 413, f"the body has {length[:20]} bytes, at most {most} are read"
        if path != UPLOAD and self._held + int(length) > self._limits.held_bytes:
            return 503, "the bodies of other calls take all the room; try again later"
        return None


def _ambiguous(scope: Scope, headers: dict[str, list[str]]) -> tuple[int, str] | None:
    """Status and reason where a proxy in between may see other calls than we do (request smuggling)."""
    if not scope["path"].startswith("/"):
        return 400, "what is called is a path of this server"
    if "transfer-encoding" in headers:
        return 411, _LENGTH
    if scope["method"] not in _WITH_BODY and headers.get("content-length", ["0"])[0].strip("0"):
        return 400, f"a call by {scope['method'][:20]} has no body"
    return None


def _limited(receive: Receive, size: int, limit_s: float, *, parsed: bool) -> Receive:
    """`receive` for a body that must be there in `limit_s`, however slowly it comes, and is cheap to parse."""
    arrived, values, containers = 0, 0, 0
    ended, deadline = False, asyncio.get_running_loop().time() + limit_s

    async def next_part() -> Message:
        nonlocal arrived, values, containers, ended
        if ended:
            return await receive()
        left = deadline - asyncio.get_running_loop().time()
        try:
            message = await asyncio.wait_for(receive(), max(left, 0.001))
        except (TimeoutError, asyncio.TimeoutError) as error:  # two classes on Python 3.10
            detail = f"{arrived} of {size} bytes came in {limit_s:g} s"
            raise HTTPException(408, detail, {"Connection": "close"}) from error
        if message["type"] == "http.disconnect":
            raise HTTPException(400, f"the body ended after {arrived} of {size} bytes")
        part = message.get("body", b"")
        arrived, ended = arrived + len(part), not message.get("more_body", False)
        if parsed:
            values, containers = values + part.count(b","), containers + part.count(b"[") + part.count(b"{")
            if values > MOST_VALUES or containers > MOST_CONTAINERS:
                detail = f"more than {MOST_VALUES} commas or {MOST_CONTAINERS} brackets; ask in several calls"
                raise HTTPException(413, detail, {"Connection": "close"})
        return message

    return next_part


def explain_refusals(app: FastAPI) -> None:
    """Gives what pydantic found wrong with a call in one line, like every other refusal."""

    @app.exception_handler(RequestValidationError)
    async def explain(_: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        return JSONResponse({"detail": "; ".join(map(_describe, found[:3])) + more}, 422)


def _describe(error: Any) -> str:
    where = ".".join(
        part if len(part) <= 80 and (part.isidentifier() or part.isdigit()) else shorten(part)
        for part in map(str, error["loc"])
    )
    given = "" if error["type"] in ("missing", "json_invalid") else f" = {shorten(error.get('input'))}"
    return f"{where}{given}: {error['msg']}"


def shorten(value: Any) -> str:
    """A value of a call in at most 80 ASCII characters; of a long list no more is read than is shown.

    >>> shorten({"regex": ["a+"] * 1000000})
    "{'regex': ['a+', 'a+', 'a+', 'a+', 'a+', 'a+', ...]}"
    """
    text = reprlib.repr(value).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 80 else text[:77] + "..."


def _host_name(host: str) -> str:
    """Without the port, and without an IPv6 address's brackets; empty where it is no host."""
    name, bracket, port = host.lower().partition("]")
    if name.startswith("["):
        return name[1:] if bracket and (not port or port.startswith(":")) else ""
    name, _, port = host.lower().partition(":")
    return name if not port or port.isdecimal() else ""


def _address(name: str) -> str:
    """In one spelling; empty where it is none."""
    try:
        found = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(found, "ipv4_mapped", None) or found)
