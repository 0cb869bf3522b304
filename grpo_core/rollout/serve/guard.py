"""What every call meets before its endpoint does: the token, the size of its body, the words of a refusal."""

# mypy: disable-error-code="misc, untyped-decorator"
from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from starlette.types import ASGIApp, Receive, Scope, Send


@dataclass(frozen=True)
class Limits:
    """What a client may send, and what it may wait for.

    Attributes:
        generate_bytes: Largest body of a call that uploads no weights.
        weights_bytes: Largest weight upload.
        waiting: Calls that may wait for the engine; further ones are told to come back.
        call_s: Seconds a call may wait for the engine and sample, and an upload may take to arrive.
    """

    generate_bytes: int = 16 * 2**20
    weights_bytes: int = 2**30
    waiting: int = 16
    call_s: float = 120.0


class RefusalAnswer(BaseModel):
    """Why a call was refused, in one line."""

    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": RefusalAnswer, "description": description}
    for status, description in {
        400: "The body is not what was announced.",
        401: "The token is missing or wrong.",
        411: "The body's length is not announced.",
        413: "The body is too large.",
        422: "The call asks for what the server or its engine doesn't do; nothing has changed.",
        503: "The server is busy, or the call took too long; it can be made again.",
    }.items()
}


class Guard:
    """Refuses, before a body is read, callers without the token and bodies over the limit."""

    def __init__(self, app: ASGIApp, token: str | None, limits: Limits) -> None:
        """`app` is what lies behind."""
        self._app, self._token, self._limits = app, token, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection."""
        answer = self._app
        if scope["type"] == "http":
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            refused = self._refused(scope["method"], scope["path"], headers)
            if refused is not None:
                answer = JSONResponse({"detail": refused[1]}, refused[0])
        await answer(scope, receive, send)

    def _refused(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        if self._token is not None and not _is_token(headers.get("authorization", ""), self._token):
            return 401, "the token is missing or wrong"
        if method not in ("POST", "PUT", "PATCH"):
            return None
        # The HTTP parser holds a body to its Content-Length, so checking the header is enough; but not where the
        # body comes in chunks, whose sizes then count instead.
        length = headers.get("content-length", "")
        if not length.isdecimal() or "transfer-encoding" in headers:
            return 411, "a Content-Length is needed, and no Transfer-Encoding"
        uploads = path.startswith("/weights")
        most = self._limits.weights_bytes if uploads else self._limits.generate_bytes
        if len(length) > 20 or int(length) > most:
            return 413, f"the body has {length[:20]} bytes, at most {most} are read"
        return None


def explain_refusals(app: FastAPI) -> None:
    """Gives what pydantic found wrong with a call in one line, like every other refusal."""

    @app.exception_handler(RequestValidationError)
    async def explain(_: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        return JSONResponse({"detail": "; ".join(map(_in_words, found[:3])) + more}, 422)


def _in_words(error: Any) -> str:
    # ascii(), as what came may hold half a surrogate pair, which no answer could.
    where = ".".join(
        part if part.isidentifier() or part.isdigit() else ascii(part) for part in map(str, error["loc"])
    )
    given = "" if error["type"] in ("missing", "json_invalid") else f" = {_short(error.get('input'))}"
    return f"{where}{given}: {error['msg']}"


def _short(value: Any) -> str:
    try:
        text = ascii(value)
    except ValueError:  # an integer of more digits than Python writes
        text = "a number of too many digits"
    return text if len(text) <= 80 else text[:77] + "..."


def _is_token(given: str, token: str) -> bool:
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
