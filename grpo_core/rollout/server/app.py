"""Define the HTTP application of the rollout server, which samples token ids and loads weights.

`AccessControl` allows or refuses every call before its body is read. `EngineQueue` passes one call at a time to the
engine.
"""

# mypy: disable-error-code="misc, untyped-decorator"
from __future__ import annotations

import asyncio
import hashlib
from concurrent.futures import Executor
from http import HTTPStatus
from typing import Annotated, Any

import safetensors.torch
import torch
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field

from grpo_core.config import LOOPBACK
from grpo_core.rollout.engine import Engine, EngineError, check_answers
from grpo_core.rollout.http_client import PROTOCOL
from grpo_core.rollout.server.access import UPLOAD, AccessControl, Limits
from grpo_core.rollout.server.engine_queue import EngineQueue
from grpo_core.rollout.weights.sync import load_shared, load_tensors
from grpo_core.rollout.wire import decode_requests, encode_capabilities, encode_completions

TokenId = Annotated[int, Field(ge=0, lt=2**63, strict=True)]  # strict: "7" is no token id
# fail_fast: one error for each of a million entries would take gigabytes.
Sha256 = Annotated[str | None, Header(pattern="^[0-9a-fA-F]{64}$")]


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


class RefusalAnswer(BaseModel):
    """The reason why a call was refused, in one line."""

    detail: str


class MemoryBody(BaseModel):
    """A policy version in shared memory, which the sender has created."""

    name: Annotated[str, Field(max_length=200)]
    version: Annotated[int, Field(ge=0, lt=2**63)]


def create_app(
    engine: Engine,
    thread: Executor,
    *,
    token: str | None,
    limits: Limits,
    host: str = LOOPBACK[0],
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
        responses={
            status: {"model": RefusalAnswer, "description": HTTPStatus(status).phrase}
            for status in (400, 401, 403, 408, 411, 413, 422, 503)
        },
        redirect_slashes=False,
        # FastAPI's documentation pages run scripts of another site, which could read the server's answers.
        docs_url=None,
        redoc_url=None,
        dependencies=[Security(HTTPBearer(auto_error=False))] if token else [],
        exception_handlers={RequestValidationError: _explain_validation},
    )
    app.add_middleware(AccessControl, token=token, host=host, limits=limits)
    app.state.queue, app.state.uploading = EngineQueue(engine, thread, limits), asyncio.Lock()
    app.include_router(routes)
    return app


async def _explain_validation(_: Request, error: Exception) -> JSONResponse:
    """Answer with the first three errors that pydantic found, in one line."""
    assert isinstance(error, RequestValidationError)
    errors = [f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors()]
    rest = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
    return JSONResponse({"detail": "; ".join(errors[:3]) + rest}, 422)


routes = APIRouter()


def _queue(request: Request) -> Any:
    return request.app.state.queue


Queue = Annotated[EngineQueue, Depends(_queue)]


@routes.get("/health")
async def health() -> dict[str, str]:
    """Answer without calling the engine."""
    return {"status": "ok"}


@routes.get("/info")
async def info(queue: Queue) -> dict[str, Any]:
    """Describe the engine, its policy version, and how many calls run or wait."""
    return {
        "schema": PROTOCOL,
        "engine": queue.engine.name,
        "policy_version": queue.engine.policy_version,
        "capabilities": encode_capabilities(queue.engine.capabilities),
        "calls": queue.calls,
        "limits": vars(queue.limits),
    }


@routes.get("/fingerprint")
async def fingerprint(queue: Queue) -> dict[str, str | None]:
    """Compute the digest of the loaded weights; null if the engine can't read them."""
    digest, weights = await queue.call(lambda engine: (engine.fingerprint(), queue.weights))
    return {"fingerprint": digest, "weights": weights}


@routes.post("/generate")
async def generate(
    body: GenerateBody, request: Request, queue: Queue, x_content_sha256: Sha256 = None
) -> JSONResponse:
    """Sample one completion per request; check the body's checksum if there is one, and send the answer's."""
    if x_content_sha256 is not None:
        _check_sha256(await request.body(), x_content_sha256)
    requests, params = decode_requests(body.model_dump())

    def sample(engine: Engine) -> dict[str, Any]:
        completions = engine.generate(requests, params)
        # Refuses NaN and infinite log-probs, which JSON can't express.
        check_answers(completions, requests, engine.name, aborted=True)
        return {**encode_completions(completions), "weights": queue.weights}

    answer = JSONResponse(await queue.call(sample))
    answer.headers["X-Content-SHA256"] = hashlib.sha256(answer.body).hexdigest()
    return answer


@routes.post("/reset_prefix_cache")
async def reset_prefix_cache(queue: Queue) -> dict[str, bool]:
    """Drop the engine's cached keys and values; new weights do so by themselves."""
    await queue.call(lambda engine: engine.reset_prefix_cache())
    return {"reset": True}


_BINARY = {
    "required": True,
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}


@routes.post(UPLOAD, openapi_extra={"requestBody": _BINARY})
async def weights(
    request: Request,
    queue: Queue,
    x_policy_version: Annotated[int, Header(ge=0, lt=2**63)],
    x_content_sha256: Sha256 = None,
) -> dict[str, int | str]:
    """Load a policy version from a safetensors body, if all of it came and its checksum is right."""
    if x_content_sha256 is None:
        raise HTTPException(400, "the body's checksum is needed, in the header X-Content-SHA256")
    uploading = request.app.state.uploading
    if (
        uploading.locked()
    ):  # two uploads would need twice the memory, and the first would be overwritten at once
        raise HTTPException(503, "another upload is being received; try again later")
    async with uploading:
        data = await request.body()
        tensors = await asyncio.to_thread(_parse_upload, data, x_content_sha256)
        return await queue.update(tensors, x_policy_version)


def _parse_upload(data: bytes, expected: str) -> dict[str, torch.Tensor]:
    """Return an upload's tensors if the announced checksum is right.

    Raises:
        HTTPException: 400: the bytes have another checksum, are not safetensors, or have a type or a shape that torch
            lacks.
    """
    _check_sha256(data, expected)
    try:
        return load_tensors("the body", lambda: safetensors.torch.load(data))
    except EngineError as error:
        raise HTTPException(400, f"{error}; nothing was loaded") from error


def _check_sha256(data: bytes, expected: str) -> None:
    if (actual := hashlib.sha256(data).hexdigest()) != expected.lower():
        raise HTTPException(400, f"checksum: the {len(data)} bytes that came have {actual}, not {expected}")


@routes.post("/sync/load")
async def sync_load(request: Request, queue: Queue, body: MemoryBody) -> dict[str, int | str]:
    """Load a policy version from memory that a sender on this machine has made."""
    client = request.client.host if request.client else ""
    if client not in LOOPBACK:
        raise HTTPException(422, f"shared memory is for a client on this machine, not at {client}")
    try:
        tensors = load_shared(body.name, queue.limits.weights_bytes)
    except EngineError as error:
        raise HTTPException(422, str(error)) from error
    return await queue.update(tensors, body.version)
