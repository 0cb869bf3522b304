"""The rollout server's HTTP application: token ids in and out, weights in.

`AccessControl` decides about every call before its body is read, `EngineQueue` gives one call at a time to the engine.

A web page in a browser can call servers on the user's own machine, and with DNS rebinding even read their answers: the
Host header is then the page's own name. So on loopback the Host must be a loopback name, and calls that a browser marks
as another page's are refused.
"""

# mypy: disable-error-code="misc, untyped-decorator"
from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import reprlib
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

import torch
from fastapi import FastAPI, Header, HTTPException, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field

from grpo_core.config import LOOPBACK
from grpo_core.rollout.engine import EngineError, check_answers
from grpo_core.rollout.http_client import PROTOCOL
from grpo_core.rollout.server.engine_queue import EngineQueue
from grpo_core.rollout.weights.digest import Checksum
from grpo_core.rollout.weights.flat import PIECE, parse_tensors
from grpo_core.rollout.weights.sync import Receiver
from grpo_core.rollout.wire import decode_requests, encode_capabilities, encode_completions

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from grpo_core.rollout.engine import Engine

UPLOAD = "/weights"
_LOOPBACK_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]*)?", re.IGNORECASE | re.ASCII)
_WITH_BODY = ("POST", "PUT", "PATCH")
_SINGLE_HEADERS = (
    "authorization", "content-length", "host", "origin", "sec-fetch-site", "transfer-encoding", "x-content-sha256",
    "x-policy-version",
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """Limits of every call.

    Attributes:
        generate_bytes: Largest body, weight uploads excluded.
        weights_bytes: Largest weight upload.
        waiting: Calls that may run or wait for the engine; further ones get status 503.
        call_s: Seconds in which a body must arrive, and in which a call must wait and run.
    """

    generate_bytes: int = 64 * 2**20
    weights_bytes: int = 2**30
    waiting: int = 16
    call_s: float = 120.0


TokenId = Annotated[int, Field(ge=0, strict=True)]  # strict: "7" is no token id
# fail_fast: one error for each of a million entries would take gigabytes.
# One Field per field: pydantic 2.9 makes a field optional where one wraps another.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Sha256 = Annotated[str | None, Header(pattern="^[0-9a-fA-F]{64}$")]


class RequestBody(BaseModel):
    """One completion to sample."""

    id: Annotated[str, Field(min_length=1, max_length=200)]
    prompt_ids: Annotated[list[TokenId], Field(fail_fast=True, min_length=1)]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    prefix: TokenIds = []
    budget: Annotated[int, Field(ge=0)] = 0


class ParamsBody(BaseModel):
    """Sampling parameters; clients of earlier releases do not send those with a default."""

    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
    stop_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=64)]
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0


class GenerateBody(BaseModel):
    """A batch of requests with one set of parameters."""

    requests: Annotated[list[RequestBody], Field(fail_fast=True, min_length=1, max_length=4096)]
    params: ParamsBody


class RefusalAnswer(BaseModel):
    """Why a call was refused, in one line."""

    detail: str


class MemoryBody(BaseModel):
    """Shared memory that a sender has made."""

    name: Annotated[str, Field(max_length=200)]
    size: Annotated[int, Field(ge=1, lt=2**50)]


class VersionBody(BaseModel):
    """A version in the shared memory."""

    version: Annotated[int, Field(ge=0, lt=2**63)]
    size: Annotated[int, Field(ge=1, lt=2**50)]
    generation: Annotated[int, Field(ge=0, lt=2**63)]


def create_app(
    engine: Engine,
    thread: Executor,
    *,
    token: str | None,
    limits: Limits,
    on_update: str = "wait",
    host: str = LOOPBACK[0],
) -> FastAPI:
    """Create the application around an engine that was built in `thread`'s one worker.

    Args:
        engine: The engine.
        thread: Its thread.
        token: Callers must send it; None: no token is needed.
        limits: Limits of every call.
        on_update: `wait` or `abort`, see `EngineQueue`.
        host: The address that the server listens on.
    """
    app = FastAPI(
        title="grpo-doctor reference rollout server",
        version="1",
        responses={
            status: {"model": RefusalAnswer, "description": HTTPStatus(status).phrase}
            for status in (400, 401, 403, 408, 411, 413, 422, 503)
        },
        redirect_slashes=False,
        # These pages would run scripts of another site where the server's answers can be read.
        docs_url=None,
        redoc_url=None,
        dependencies=[Security(HTTPBearer(auto_error=False))] if token else [],
        exception_handlers={RequestValidationError: _explain_validation},
    )
    app.add_middleware(AccessControl, token=token, host=host, limits=limits)
    queue = EngineQueue(engine, thread, limits.waiting, call_s=limits.call_s, on_update=on_update)
    app.state.queue = queue
    _add_state_routes(app, queue, engine, {"on_update": on_update, "limits": vars(limits)})
    _add_sampling_routes(app, queue)
    _add_upload_route(app, queue)
    _add_sync_routes(app, queue, limits)
    return app


class AccessControl:
    """Middleware that refuses calls before anything of their body is read."""

    def __init__(self, app: ASGIApp, *, token: str | None, host: str, limits: Limits) -> None:
        """`host` is the address that the server listens on."""
        self._app, self._token, self._limits, self._loopback = app, token, limits, host in LOOPBACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refusal, or pass the call on."""
        if scope["type"] != "http":  # no route is a WebSocket
            await self._app(scope, receive, send)
        elif refusal := self.refusal(scope):
            status, detail = refusal  # the connection is closed: nothing behind this call is read
            await JSONResponse({"detail": detail}, status, {"Connection": "close"})(scope, receive, send)
        else:
            await self._app(scope, _with_deadline(receive, self._limits.call_s), send)

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and reason; None: the call may go on."""
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            key = name.decode("latin-1").lower()
            if key in headers and key in _SINGLE_HEADERS:
                return 400, f"the header {key} is there more than once"
            headers[key] = value.decode("latin-1")
        return self._caller_refusal(scope["path"], headers) or self._body_refusal(scope, headers)

    def _caller_refusal(self, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
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


async def _explain_validation(_: Request, error: Exception) -> JSONResponse:
    """Answer the first errors that pydantic found, in one line."""
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    rest = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
    return JSONResponse({"detail": "; ".join(map(_describe_error, errors[:3])) + rest}, 422)


def _describe_error(error: Any) -> str:
    value = "" if error["type"] in ("missing", "json_invalid") else f" = {shorten(error.get('input'))}"
    return f"{'.'.join(map(str, error['loc']))}{value}: {error['msg']}"


def shorten(value: Any) -> str:
    """Show a value in at most 80 ASCII characters, without reading the rest of a long list.

    >>> shorten({"regex": ["a+"] * 1000000})
    "{'regex': ['a+', 'a+', 'a+', 'a+', 'a+', 'a+', ...]}"
    """
    text = reprlib.repr(value).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 80 else text[:77] + "..."


def _add_state_routes(app: FastAPI, queue: EngineQueue, engine: Engine, settings: dict[str, Any]) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Answer without calling the engine."""
        return {"status": "ok"}

    @app.get("/info")
    async def info() -> dict[str, Any]:
        """Describe the engine, its policy version, and how many calls run or wait."""
        return {
            "schema": PROTOCOL,
            "engine": engine.name,
            "policy_version": engine.policy_version,
            "capabilities": encode_capabilities(engine.capabilities),
            "calls": queue.calls,
            **settings,
        }

    @app.get("/fingerprint")
    async def fingerprint() -> dict[str, str | None]:
        """Compute the digest of the loaded weights; null if the engine can't read them."""
        digest, weights = await queue.call(lambda engine: (engine.fingerprint(), queue.weights))
        return {"fingerprint": digest, "weights": weights}


def _add_sampling_routes(app: FastAPI, queue: EngineQueue) -> None:
    @app.post("/generate")
    async def generate(body: GenerateBody, request: Request, x_content_sha256: Sha256 = None) -> JSONResponse:
        """Sample one completion per request; check the body's checksum if there is one, and send the answer's."""
        if x_content_sha256 is not None:
            data = await request.body()
            _check_checksum(len(data), hashlib.sha256(data).hexdigest(), x_content_sha256)
        requests, params = decode_requests(body.model_dump())

        def sample(engine: Engine) -> dict[str, Any]:
            completions = engine.generate(requests, params)
            # Refuses NaN and infinite log-probs, which JSON can't express.
            check_answers(completions, requests, engine.name, aborted=True)
            return {**encode_completions(completions), "weights": queue.weights}

        answer = JSONResponse(await queue.call(sample))
        answer.headers["X-Content-SHA256"] = hashlib.sha256(answer.body).hexdigest()
        return answer

    @app.post("/abort")
    async def abort() -> dict[str, bool]:
        """Make the running call end with what it has, reason `abort`; when none runs, nothing happens."""
        queue.abort()
        return {"aborted": True}

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> dict[str, bool]:
        """Drop the engine's cached keys and values; new weights do so by themselves."""
        await queue.call(lambda engine: engine.reset_prefix_cache())
        return {"reset": True}


def _add_upload_route(app: FastAPI, queue: EngineQueue) -> None:
    one_at_a_time = asyncio.Lock()
    content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

    @app.post(UPLOAD, openapi_extra={"requestBody": {"required": True, "content": content}})
    async def weights(
        request: Request,
        x_policy_version: Annotated[int, Header(ge=0, lt=2**63)],
        x_content_sha256: Sha256 = None,
    ) -> dict[str, int | str]:
        """Load a policy version from a safetensors body, if all of it came and its checksum is right.

        Without `X-Content-SHA256`, the body ends with the checksum of `grpo_core.rollout.remote.Upload`.
        """
        if one_at_a_time.locked():  # two would take twice the memory, and one would be overwritten at once
            raise HTTPException(503, "another upload is being received; try again later")
        async with one_at_a_time:
            memory = await _read_body(request)
            tensors = await asyncio.to_thread(_verified_tensors, memory, x_content_sha256)

            def load(engine: Engine) -> dict[str, int | str]:
                engine.update_weights(tensors.items(), x_policy_version)
                return {"policy_version": engine.policy_version, "weights": queue.weights}

            return dict(await queue.update(load))


async def _read_body(request: Request) -> torch.Tensor:
    """Return the body's bytes [N]; `AccessControl` has checked its length and limits its time."""
    memory, end = torch.empty(int(request.headers["content-length"]), dtype=torch.uint8), 0
    view = memoryview(memory.numpy())
    async for chunk in request.stream():
        view[end : end + len(chunk)] = chunk
        end += len(chunk)
    return memory[:end]


def _verified_tensors(memory: torch.Tensor, sha256: str | None) -> dict[str, torch.Tensor]:
    """Return an upload's tensors if its checksum is right: the announced SHA-256, or the checksum at its end.

    Raises:
        HTTPException: 400: the bytes are not those that were sent, or no safetensors.
    """
    if sha256 is not None:
        data, expected = memory, sha256
        actual = hashlib.sha256(data.numpy()).hexdigest()
    else:
        data, checksum = memory[: -Checksum.SIZE], Checksum()
        expected = memory[-Checksum.SIZE :].numpy().tobytes().hex()
        for piece in data.split(PIECE):
            checksum.update(memoryview(piece.numpy()))
        actual = checksum.digest().hex()
    _check_checksum(len(memory), actual, expected)
    try:
        return parse_tensors(data, "the body")
    except EngineError as error:
        raise HTTPException(400, str(error)) from error


def _check_checksum(size: int, actual: str, expected: str) -> None:
    if not hmac.compare_digest(actual, expected.lower()):
        raise HTTPException(400, f"checksum: the {size} bytes that came have {actual}, not {expected}")


def _add_sync_routes(app: FastAPI, queue: EngineQueue, limits: Limits) -> None:
    """Add the routes by which a client on this machine sends weights through shared memory."""
    receiver = Receiver()

    def check_size(size: int) -> None:
        if size > limits.weights_bytes + 2**20:  # shared memory begins with a page of its own
            raise HTTPException(413, f"the version has {size} bytes, at most {limits.weights_bytes} are read")

    @app.post("/sync/open")
    async def sync_open(request: Request, body: MemoryBody) -> dict[str, Any]:
        """Map the memory that a sender has made, in place of an earlier one."""
        check_size(body.size)
        client = request.client.host if request.client else ""
        if client not in LOOPBACK:
            raise HTTPException(422, f"shared memory is for a client on this machine, not at {client}")
        return dict(await queue.call(lambda _: receiver.open(body.model_dump())))

    @app.post("/sync/load")
    async def sync_load(body: VersionBody) -> dict[str, Any]:
        """Load a version from the shared memory."""
        check_size(body.size)

        def load(engine: Engine) -> dict[str, Any]:
            return receiver.load(body.model_dump(), engine) | {"weights": queue.weights}

        return dict(await queue.update(load))
