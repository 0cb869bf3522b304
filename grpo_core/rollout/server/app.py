"""Define the HTTP application of the rollout server (FastAPI), which samples token ids and loads weights.

`create_app` creates it. Routes: `/health`, `/info`, `/generate`, `/fingerprint`, `/weights` (an upload), `/sync/load`
(shared memory). `AccessControl` decides about a call before its body is read, `EngineThread` gives one call at a time
to the engine.
"""

# mypy: disable-error-code="misc, untyped-decorator"
from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Annotated, Any

import safetensors.torch
import torch
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from grpo_core.config import LOOPBACK
from grpo_core.rollout import wire
from grpo_core.rollout.engine import Engine, EngineError, check_answers
from grpo_core.rollout.http_client import PROTOCOL
from grpo_core.rollout.server.access import UPLOAD, AccessControl, Limits
from grpo_core.rollout.weights.transport import load_shared, load_tensors

TokenId = Annotated[int, Field(ge=0, lt=2**63, strict=True)]  # strict: "7" is no token id
Crc32 = Annotated[str | None, Header(pattern="^[0-9a-f]{8}$")]


# fail_fast: one error for each of a million entries would take gigabytes.
class RequestBody(BaseModel):
    """One completion to sample."""

    id: Annotated[str, Field(min_length=1, max_length=200)]
    prompt_ids: Annotated[list[TokenId], Field(fail_fast=True, min_length=1)]
    seed: Annotated[int, Field(ge=0, lt=2**63)]


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


class SharedMemoryBody(BaseModel):
    """A policy version in shared memory, which the sender has created."""

    name: Annotated[str, Field(max_length=200)]
    version: Annotated[int, Field(ge=0, lt=2**63)]


class EngineThread:
    """Runs the calls of an engine in its one thread, in the order in which they came.

    A call is never sampled from two versions: weights wait for the call before them.

    Attributes:
        engine: The engine, for properties that can be read at any time.
        limits: Limits of every request.
        calls: Number of calls that wait for an answer, updates excluded.
        weights: Id of the loaded weights, sent with completions, digests and updates: a new random text at each update,
            empty before the first. Two clients may both upload a version 3; by the id a client notices answers from the
            other's weights.
        stopping: Set while the server ends; calls without an answer then get status 503.
    """

    def __init__(self, engine: Engine, thread: Executor, limits: Limits) -> None:
        """`thread` has exactly one worker, which also built the engine."""
        self.engine, self.limits, self._thread = engine, limits, thread
        self.calls, self.weights, self.stopping = 0, "", asyncio.Event()

    async def call(self, function: Callable[[Engine], Any]) -> Any:
        """Run `function(engine)` in the engine's thread.

        Raises:
            HTTPException: 422: the engine refused or failed. 503: too many calls wait, this one took too long, or the
                server stops.
        """
        if self.calls >= self.limits.waiting:
            raise HTTPException(503, "too many calls are waiting for the engine; try again later")
        self.calls += 1
        try:
            return await self._run(function)
        finally:
            self.calls -= 1

    async def update(self, tensors: Mapping[str, torch.Tensor], version: int) -> dict[str, int | str]:
        """Load a policy version, also if too many calls wait; raises the other errors of `call`."""

        def load(engine: Engine) -> dict[str, int | str]:
            previous, self.weights = self.weights, secrets.token_hex(8)
            try:
                engine.update_weights(tensors.items(), version)
            except EngineError:
                self.weights = previous  # a refused update changes nothing
                raise
            return {"policy_version": engine.policy_version, "weights": self.weights}

        return dict(await self._run(load))

    async def _run(self, function: Callable[[Engine], Any]) -> Any:
        """Wait for the engine's thread to run a function, for at most `call_s` seconds or until the server stops."""
        future = self._thread.submit(function, self.engine)
        answer, stopping = asyncio.wrap_future(future), asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait(
                {answer, stopping}, timeout=self.limits.call_s, return_when=asyncio.FIRST_COMPLETED
            )
            if answer.done():
                return answer.result()
        except EngineError as error:
            raise HTTPException(422, str(error)) from error
        finally:
            stopping.cancel()
            answer.cancel()  # a call that waits; one that runs goes on to its end
        if self.stopping.is_set():
            raise HTTPException(503, "the server is stopping")
        raise HTTPException(503, f"no answer of the engine in {self.limits.call_s:g} s (rollout.timeout_s)")


def create_app(
    engine: Engine, thread: Executor, *, token: str | None, limits: Limits, host: str = LOOPBACK[0]
) -> FastAPI:
    """Create the application around an engine that was built in the one worker of `thread`.

    Args:
        engine: The engine that samples.
        thread: Executor with the engine's thread.
        token: Token that callers must send; None if no token is needed.
        limits: Limits of every call.
        host: The address that the server listens on.
    """
    app = FastAPI(
        title="grpo-doctor reference rollout server",
        version="1",
        redirect_slashes=False,
        # FastAPI's documentation pages run scripts of another site, which could read the server's answers.
        docs_url=None,
        redoc_url=None,
        exception_handlers={RequestValidationError: _explain_validation},
    )
    app.add_middleware(AccessControl, token=token, host=host, limits=limits)
    app.state.engine_thread, app.state.uploading = EngineThread(engine, thread, limits), asyncio.Lock()
    app.include_router(routes)
    return app


async def _explain_validation(_: Request, error: Exception) -> JSONResponse:
    """Answer with the first three errors that pydantic found, in one line."""
    assert isinstance(error, RequestValidationError)
    errors = [f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors()]
    rest = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
    return JSONResponse({"detail": "; ".join(errors[:3]) + rest}, 422)


routes = APIRouter()


def _thread(request: Request) -> Any:
    return request.app.state.engine_thread


Thread = Annotated[EngineThread, Depends(_thread)]


@routes.get("/health")
async def health() -> dict[str, str]:
    """Answer without calling the engine."""
    return {"status": "ok"}


@routes.get("/info")
async def info(engine_thread: Thread) -> dict[str, Any]:
    """Describe the engine, its policy version, the limits, and how many calls run or wait."""
    return {
        "schema": PROTOCOL,
        "engine": engine_thread.engine.name,
        "policy_version": engine_thread.engine.policy_version,
        "capabilities": wire.encode_capabilities(engine_thread.engine.capabilities),
        "calls": engine_thread.calls,
        "limits": vars(engine_thread.limits),
    }


@routes.get("/fingerprint")
async def fingerprint(engine_thread: Thread) -> dict[str, str | None]:
    """Compute the digest of the loaded weights; null if the engine can't read them."""
    digest, weights = await engine_thread.call(lambda engine: (engine.fingerprint(), engine_thread.weights))
    return {"fingerprint": digest, "weights": weights}


@routes.post("/generate")
async def generate(
    body: GenerateBody, request: Request, engine_thread: Thread, x_content_crc32: Crc32 = None
) -> JSONResponse:
    """Sample one completion per request; check the body's checksum if there is one, and send the answer's."""
    if x_content_crc32 is not None:
        _check_checksum(await request.body(), x_content_crc32)
    requests, params = wire.decode_requests(body.model_dump())

    def sample(engine: Engine) -> dict[str, Any]:
        completions = engine.generate(requests, params)
        # Refuses NaN and infinite log-probs, which JSON can't express.
        check_answers(completions, requests, engine.name)
        return {**wire.encode_completions(completions), "weights": engine_thread.weights}

    answer = JSONResponse(await engine_thread.call(sample))
    answer.headers[wire.CHECKSUM] = wire.checksum(answer.body)
    return answer


@routes.post(UPLOAD)
async def weights(
    request: Request,
    engine_thread: Thread,
    x_policy_version: Annotated[int, Header(ge=0, lt=2**63)],
    x_content_crc32: Crc32 = None,
) -> dict[str, int | str]:
    """Load a policy version from a safetensors body with the announced checksum; one upload is received at a time."""
    if x_content_crc32 is None:
        raise HTTPException(400, "the body's checksum is needed, in the header X-Content-CRC32")
    uploading = request.app.state.uploading
    if uploading.locked():  # two would need twice the memory, and the first would be overwritten at once
        raise HTTPException(503, "another upload is being received; try again later")
    async with uploading:
        data = await request.body()
        tensors = await asyncio.to_thread(_parse_upload, data, x_content_crc32)
        return await engine_thread.update(tensors, x_policy_version)


def _parse_upload(data: bytes, expected: str) -> dict[str, torch.Tensor]:
    """Return an upload's tensors if the announced checksum is right.

    Raises:
        HTTPException: 400: the bytes have another checksum, are not safetensors, or have a type or a shape that torch
            lacks.
    """
    _check_checksum(data, expected)
    try:
        return load_tensors("the body", lambda: safetensors.torch.load(data))
    except EngineError as error:
        raise HTTPException(400, f"{error}; nothing was loaded") from error


def _check_checksum(data: bytes, expected: str) -> None:
    if (actual := wire.checksum(data)) != expected:
        raise HTTPException(400, f"checksum: the {len(data)} bytes that came have {actual}, not {expected}")


@routes.post("/sync/load")
async def sync_load(request: Request, engine_thread: Thread, body: SharedMemoryBody) -> dict[str, int | str]:
    """Load a policy version from memory that a sender on this machine has made."""
    client = request.client.host if request.client else ""
    if client not in LOOPBACK:
        raise HTTPException(422, f"shared memory is for a client on this machine, not at {client}")
    try:
        tensors = load_shared(body.name, engine_thread.limits.weights_bytes)
    except EngineError as error:
        raise HTTPException(422, str(error)) from error
    return await engine_thread.update(tensors, body.version)
