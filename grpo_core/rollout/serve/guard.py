"""What every call meets before its endpoint does: who may call, the size of its body, the words of a refusal."""

# mypy: disable-error-code="misc, untyped-decorator"
from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from grpo_core.rollout.serve.bodies import Bodies, BodyError

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from grpo_core.rollout.serve.callers import Callers

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
