"""Who may call: by the token, by the name the server was called by, and not from a page in somebody's browser.

A page that a user looks at may call servers on the user's own machine, and by DNS rebinding even read what they
answer: then the Host is the page's own name. So only names are answered that nobody else can point here, and nothing
that a browser marks as another page's call.
"""

# mypy: disable-error-code="misc, untyped-decorator"
from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from grpo_core.config import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastapi import FastAPI, Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LIVENESS = ("/health", "/health/")
_ONCE = (
    "authorization", "content-length", "host", "origin", "sec-fetch-site", "transfer-encoding", "x-content-sha256",
    "x-policy-version",
)  # fmt: skip
_OWN_PAGES = ("none", "same-origin")  # typed by a person, or from an answer of ours


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
        """Status and reason; None: it may go on.

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
        name = _name(host)
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


def _name(host: str) -> str:
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


_UPLOAD = "/weights"  # its endpoint reads the body itself, into memory of its own


@dataclass(frozen=True)
class Limits:
    """What a client may send, and what it may wait for.

    Attributes:
        generate_bytes: Largest body of a call that uploads no weights.
        weights_bytes: Largest weight upload.
        waiting: Calls that may wait for the engine; further ones are told to come back.
        call_s: Seconds a call may wait for the engine and sample, and an upload may take to arrive.
        held_bytes: Of all bodies that are held at a time, uploads aside.
        body_s: Seconds the body of a call that uploads no weights may take to arrive.
    """

    generate_bytes: int = 16 * 2**20
    weights_bytes: int = 2**30
    waiting: int = 16
    call_s: float = 120.0
    held_bytes: int = 64 * 2**20
    body_s: float = 30.0


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


_WITH_BODY = ("POST", "PUT", "PATCH")
_LENGTH = "a Content-Length is needed, and no Transfer-Encoding"


def _unclear(scope: Scope, headers: dict[str, list[str]]) -> tuple[int, str] | None:
    """Status and reason where somebody between may see other calls than we do: nothing more is read of these."""
    if not scope["path"].startswith("/"):
        return 400, "what is called is a path of this server"
    if "transfer-encoding" in headers:
        return 411, _LENGTH
    if scope["method"] not in _WITH_BODY and headers.get("content-length", ["0"])[0].strip("0"):
        return 400, f"a call by {scope['method'][:20]} has no body"
    return None


class Guard:
    """Refuses, before a body is read, callers who may not call and bodies over the limit; reads the others."""

    def __init__(self, app: ASGIApp, callers: Callers, limits: Limits) -> None:
        """`app` is what lies behind."""
        self._app, self._callers, self._limits = app, callers, limits
        self._bodies = Bodies(limits.held_bytes, limits.body_s)

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
        if (unclear := _unclear(scope, headers)) is not None:
            answer = JSONResponse({"detail": unclear[1]}, unclear[0], {"connection": "close"})
            await answer(scope, receive, send)
            return
        local = (scope.get("server") or ("",))[0]
        refused = self._callers.refused(scope["path"], headers, local)
        if refused is None and scope["method"] in _WITH_BODY:
            refused = self._too_large(scope["path"], headers)
            if refused is None and scope["path"] != _UPLOAD:
                await self._with_body(scope, receive, send, int(headers["content-length"][0]))
                return
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await JSONResponse({"detail": refused[1]}, refused[0])(scope, receive, send)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send, size: int) -> None:
        try:
            self._bodies.admit(size)
        except BodyError as error:
            await _refusal(error)(scope, receive, send)
            return
        try:
            again = await self._bodies.read(receive, size)
            await self._app(scope, again, send)
        except BodyError as error:
            await _refusal(error)(scope, receive, send)
        finally:
            self._bodies.release(size)

    def _too_large(self, path: str, headers: dict[str, list[str]]) -> tuple[int, str] | None:
        # The HTTP parser holds a body to its Content-Length, so checking the header is enough; but not where the
        # body comes in chunks, whose sizes then count instead.
        length = headers.get("content-length", [""])[0]
        if not (length.isascii() and length.isdecimal()):
            return 411, _LENGTH
        most = self._limits.weights_bytes if path == _UPLOAD else self._limits.generate_bytes
        if len(length) > 20 or int(length) > most:
            return 413, f"the body has {length[:20]} bytes, at most {most} are read"
        return None


def _refusal(error: BodyError) -> JSONResponse:
    status, detail = error.args
    # The rest of the body is not waited for.
    return JSONResponse({"detail": detail}, status, {"Connection": "close"})


def explain_refusals(app: FastAPI) -> None:
    """Gives what pydantic found wrong with a call in one line, like every other refusal."""

    @app.exception_handler(RequestValidationError)
    async def explain(_: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        return JSONResponse({"detail": "; ".join(map(_in_words, found[:3])) + more}, 422)


def _in_words(error: Any) -> str:
    where = ".".join(
        part if len(part) <= 80 and (part.isidentifier() or part.isdigit()) else shortly(part)
        for part in map(str, error["loc"])
    )
    given = "" if error["type"] in ("missing", "json_invalid") else f" = {shortly(error.get('input'))}"
    return f"{where}{given}: {error['msg']}"


def shortly(value: Any, depth: int = 3) -> str:
    """A value of a call in at most 80 characters, of which no more is looked at than is shown.

    In ASCII, as what came may hold half a surrogate pair, which no answer could.

    >>> shortly({"regex": ["a+"] * 1000000})
    "{'regex': ['a+', 'a+', 'a+', 'a+', 'a+', 'a+', 'a+', 'a+', ...]}"
    """
    if isinstance(value, str):
        text = ascii(value[:81])
    elif isinstance(value, dict) and depth:
        shown = [f"{shortly(k, 0)}: {shortly(v, depth - 1)}" for k, v in itertools.islice(value.items(), 8)]
        text = "{" + ", ".join([*shown, *["..."][: len(value) > 8]]) + "}"
    elif isinstance(value, list) and depth:
        shown = [shortly(entry, depth - 1) for entry in value[:8]]
        text = "[" + ", ".join([*shown, *["..."][: len(value) > 8]]) + "]"
    elif isinstance(value, (dict, list)):
        text = "..."
    else:
        try:
            text = ascii(value)
        except ValueError:  # an integer of more digits than Python writes
            text = "a number of too many digits"
    return text if len(text) <= 80 else text[:77] + "..."


# Of one body: what is parsed at one go takes memory, and everybody's time, by these and not by its bytes.
MOST_VALUES, MOST_CONTAINERS = 2**21, 2**17


class BodyError(Exception):
    """Raised when a body is not taken; carries a status and why."""


class Bodies:
    """What is held of all of them."""

    def __init__(self, most_bytes: int, timeout_s: float) -> None:
        """`most_bytes` of all that are held at a time; `timeout_s` for one to arrive."""
        self._most, self._timeout_s, self._held = most_bytes, timeout_s, 0

    def admit(self, size: int) -> None:
        """Takes the place of one, until `release`.

        Raises:
            BodyError: 503: there is no room.
        """
        if self._held + size > self._most:
            raise BodyError(503, "the bodies of other calls take all the room; try again later")
        self._held += size

    def release(self, size: int) -> None:
        """Gives it back."""
        self._held -= size

    async def read(self, receive: Receive, size: int) -> Receive:
        """Reads one of a known size, and gives what tells it to an application.

        Raises:
            BodyError: 408: it was too slow. 413: it has too many parts.
        """
        body, came = bytearray(), asyncio.get_running_loop().time()
        ended: Message | None = None
        while len(body) < size and ended is None:
            left = came + self._timeout_s - asyncio.get_running_loop().time()
            try:
                message = await asyncio.wait_for(receive(), max(left, 0))
            except (TimeoutError, asyncio.TimeoutError) as error:
                detail = f"{len(body)} of {size} bytes came in {self._timeout_s:g} s"
                raise BodyError(408, detail) from error
            if message["type"] != "http.request":
                ended = message
                break
            body += message.get("body", b"")
        _check_parts(body)
        told: list[Any] = [{"type": "http.request", "body": bytes(body), "more_body": ended is not None}]
        if ended is not None:
            told.append(ended)

        async def again() -> Any:
            return told.pop(0) if told else await receive()

        return again


def _check_parts(body: bytearray) -> None:
    values, containers = body.count(b","), body.count(b"[") + body.count(b"{")
    if values > MOST_VALUES or containers > MOST_CONTAINERS:
        raise BodyError(
            413,
            f"the body has {values} commas and {containers} brackets, at most {MOST_VALUES} and {MOST_CONTAINERS} "
            "are read; ask in several calls",
        )
