"""The reference rollout server: one engine over HTTP, token ids in and out.

One thread owns the engine, so calls of several clients wait for each other and none is ever inside it at the
same time as another.
"""

# mypy: disable-error-code="misc, untyped-decorator"
from __future__ import annotations

import asyncio
import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

import grpo_core.types as core
from grpo_core.engines.base import EngineError
from grpo_core.engines.remote import PROTOCOL
from grpo_core.engines.wire import encode_completions
from grpo_core.serve.stamp import Stamped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Executor

    from grpo_core.engines.base import Engine


@dataclass(frozen=True)
class Limits:
    """What a client may send.

    Attributes:
        generate_bytes: Largest body of a generate call.
        weights_bytes: Largest weight upload.
        waiting: Calls that may wait for the engine; further ones are told to come back.
    """

    generate_bytes: int = 16 * 2**20
    weights_bytes: int = 2**30
    waiting: int = 16


class RequestBody(BaseModel):
    """One completion that is asked for."""

    id: Annotated[str, Field(min_length=1, max_length=200)]
    prompt_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    prefix: list[Annotated[int, Field(ge=0)]] = []
    budget: Annotated[int, Field(ge=0)] = 0


class ParamsBody(BaseModel):
    """How to sample: everything is said, nothing has a default."""

    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
    stop_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=64)]


class GenerateBody(BaseModel):
    """A batch of requests with one set of parameters."""

    requests: Annotated[list[RequestBody], Field(min_length=1, max_length=4096)]
    params: ParamsBody


class Owner:
    """The only way to the engine: its one thread, with a bounded queue before it."""

    def __init__(self, engine: Engine, thread: Executor, waiting: int) -> None:
        """`thread` has exactly one worker, which also built the engine."""
        self._engine, self._thread, self._free = engine, thread, waiting

    async def call(self, function: Callable[[Engine], Any]) -> Any:
        """Runs `function(engine)` in the engine's thread; what the engine refuses is status 422."""
        if self._free <= 0:
            raise HTTPException(503, "too many calls are waiting for the engine; try again later")
        self._free -= 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, function, self._engine)
        except EngineError as error:
            raise HTTPException(422, str(error)) from error
        finally:
            self._free += 1


def create_app(engine: Engine, thread: Executor, *, token: str | None, limits: Limits) -> FastAPI:
    """The application around an engine that was built in `thread`'s one worker."""
    app = FastAPI(title="grpo-doctor reference rollout server", version="1")
    stamped: Any = Stamped(engine)
    owner = Owner(stamped, thread, limits.waiting)
    _guard(app, token, limits)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Answers without asking the engine."""
        return {"status": "ok"}

    @app.get("/info")
    async def info() -> dict[str, Any]:
        """Who serves, and which policy version it holds."""
        return {
            "schema": PROTOCOL,
            "engine": engine.name,
            "policy_version": engine.policy_version,
            "capabilities": vars(engine.capabilities),
        }

    @app.get("/fingerprint")
    async def fingerprint() -> dict[str, Any]:
        """The digest of the weights held, computed now."""
        digest, weights = await owner.call(lambda _: (stamped.fingerprint(), stamped.weights))
        return {"fingerprint": digest, "weights": weights}

    @app.post("/generate")
    async def generate(
        body: GenerateBody, request: Request, x_content_sha256: Annotated[str | None, Header()] = None
    ) -> JSONResponse:
        """Samples one completion a request; checks the body's checksum if there is one, and gives its own."""
        if x_content_sha256 is not None:
            _check_sum(await request.body(), x_content_sha256)
        params = core.SamplingParams(
            body.params.max_tokens, body.params.temperature, tuple(body.params.stop_ids)
        )
        requests = [
            core.Request(entry.id, tuple(entry.prompt_ids), entry.seed, tuple(entry.prefix), entry.budget)
            for entry in body.requests
        ]
        completions, weights = await owner.call(
            lambda _: (stamped.generate(requests, params), stamped.weights)
        )
        answer = JSONResponse({**encode_completions(completions), "weights": weights})
        answer.headers["X-Content-SHA256"] = hashlib.sha256(answer.body).hexdigest()
        return answer

    @app.post("/weights")
    async def weights(
        request: Request,
        x_policy_version: Annotated[int, Header(ge=0)],
        x_content_sha256: Annotated[str, Header()],
    ) -> dict[str, Any]:
        """Loads a policy version from a safetensors body, if its checksum is right."""
        tensors = _tensors(await request.body(), x_content_sha256)

        def load(_: Engine) -> dict[str, Any]:
            stamped.update_weights(tensors.items(), x_policy_version)
            return {"policy_version": stamped.policy_version, "weights": stamped.weights}

        return dict(await owner.call(load))

    return app


def _guard(app: FastAPI, token: str | None, limits: Limits) -> None:
    """Refuses, before a body is read, callers without the token and bodies over the limit."""

    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        given = request.headers.get("authorization", "")
        if token is not None and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return JSONResponse({"detail": "the token is missing or wrong"}, 401)
        if request.method in ("POST", "PUT", "PATCH"):
            # The HTTP parser holds a body to its Content-Length, so checking the header is enough.
            length = request.headers.get("content-length", "")
            if not length.isdecimal():
                return JSONResponse({"detail": "a Content-Length is needed"}, 411)
            most = limits.weights_bytes if request.url.path == "/weights" else limits.generate_bytes
            if int(length) > most:
                return JSONResponse({"detail": f"the body has {length} bytes, at most {most} are read"}, 413)
        return await go_on(request)


def _check_sum(body: bytes, expected: str) -> None:
    found = hashlib.sha256(body).hexdigest()
    if not hmac.compare_digest(found.encode(), expected.lower().encode()):
        raise HTTPException(
            400, f"checksum: {len(body)} bytes with SHA-256 {found} came, {expected} was announced"
        )


def _tensors(body: bytes, expected: str) -> dict[str, Any]:
    import safetensors
    import safetensors.torch

    _check_sum(body, expected)
    try:
        return dict(safetensors.torch.load(body))
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise HTTPException(400, f"the body is not safetensors: {error}") from error
