"""The rollout server's HTTP application: token ids in and out, weights in.

`AccessControl` decides about every call before its body is read, `EngineQueue` gives one call at a time to the engine.
"""

# mypy: disable-error-code="misc, untyped-decorator"
from __future__ import annotations

import asyncio
import hashlib
import hmac
import reprlib
from concurrent.futures import Executor
from http import HTTPStatus
from typing import Annotated, Any

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
from grpo_core.rollout.weights.digest import checksum
from grpo_core.rollout.weights.flat import parse_tensors
from grpo_core.rollout.weights.sync import Receiver
from grpo_core.rollout.wire import decode_requests, encode_capabilities, encode_completions

TokenId = Annotated[int, Field(ge=0, strict=True)]  # strict: "7" is no token id
# fail_fast: one error for each of a million entries would take gigabytes.
# One Field per field: pydantic 2.9 makes a field optional where one wraps another.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Sha256 = Annotated[str | None, Header(pattern="^[0-9a-fA-F]{64}$")]
Blocks = Annotated[str | None, Header(pattern="^[0-9a-fA-F]{32}$")]


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


class Service:
    """What the routes share.

    Attributes:
        engine: The engine, for what can be read at any time.
        queue: The way to call it.
        settings: What `/info` says besides the engine.
        limits: Limits of every call.
        receiver: Receives weights through shared memory.
        uploading: Held by the one upload that is received.
    """

    def __init__(self, engine: Engine, thread: Executor, limits: Limits, on_update: str) -> None:
        self.engine, self.limits = engine, limits
        self.queue = EngineQueue(engine, thread, limits.waiting, call_s=limits.call_s, on_update=on_update)
        self.settings = {"on_update": on_update, "limits": vars(limits)}
        self.receiver, self.uploading = Receiver(), asyncio.Lock()

    def check_size(self, size: int) -> None:
        """Refuse a version that is too large; shared memory begins with a page of its own."""
        if size > self.limits.weights_bytes + 2**20:
            raise HTTPException(
                413, f"the version has {size} bytes, at most {self.limits.weights_bytes} are read"
            )


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
    app.state.service = Service(engine, thread, limits, on_update)
    app.include_router(routes)
    return app


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


routes = APIRouter()


def _service(request: Request) -> Any:
    return request.app.state.service


Shared = Annotated[Service, Depends(_service)]


@routes.get("/health")
async def health() -> dict[str, str]:
    """Answer without calling the engine."""
    return {"status": "ok"}


@routes.get("/info")
async def info(service: Shared) -> dict[str, Any]:
    """Describe the engine, its policy version, and how many calls run or wait."""
    return {
        "schema": PROTOCOL,
        "engine": service.engine.name,
        "policy_version": service.engine.policy_version,
        "capabilities": encode_capabilities(service.engine.capabilities),
        "calls": service.queue.calls,
        **service.settings,
    }


@routes.get("/fingerprint")
async def fingerprint(service: Shared) -> dict[str, str | None]:
    """Compute the digest of the loaded weights; null if the engine can't read them."""
    digest, weights = await service.queue.call(lambda engine: (engine.fingerprint(), service.queue.weights))
    return {"fingerprint": digest, "weights": weights}


@routes.post("/generate")
async def generate(
    body: GenerateBody, request: Request, service: Shared, x_content_sha256: Sha256 = None
) -> JSONResponse:
    """Sample one completion per request; check the body's checksum if there is one, and send the answer's."""
    if x_content_sha256 is not None:
        data = await request.body()
        _compare(len(data), hashlib.sha256(data).hexdigest(), x_content_sha256)
    requests, params = decode_requests(body.model_dump())

    def sample(engine: Engine) -> dict[str, Any]:
        completions = engine.generate(requests, params)
        # Refuses NaN and infinite log-probs, which JSON can't express.
        check_answers(completions, requests, engine.name, aborted=True)
        return {**encode_completions(completions), "weights": service.queue.weights}

    answer = JSONResponse(await service.queue.call(sample))
    answer.headers["X-Content-SHA256"] = hashlib.sha256(answer.body).hexdigest()
    return answer


@routes.post("/abort")
async def abort(service: Shared) -> dict[str, bool]:
    """Make the running call end with what it has, reason `abort`; when none runs, nothing happens."""
    service.queue.abort()
    return {"aborted": True}


@routes.post("/reset_prefix_cache")
async def reset_prefix_cache(service: Shared) -> dict[str, bool]:
    """Drop the engine's cached keys and values; new weights do so by themselves."""
    await service.queue.call(lambda engine: engine.reset_prefix_cache())
    return {"reset": True}


_BINARY = {
    "required": True,
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}


@routes.post(UPLOAD, openapi_extra={"requestBody": _BINARY})
async def weights(
    request: Request,
    service: Shared,
    x_policy_version: Annotated[int, Header(ge=0, lt=2**63)],
    x_content_sha256: Sha256 = None,
    x_content_blocks: Blocks = None,
) -> dict[str, int | str]:
    """Load a policy version from a safetensors body, if all of it came and its checksum is right.

    The checksum is SHA-256, or the faster one of `grpo_core.rollout.weights.digest.checksum`.
    """
    if service.uploading.locked():  # two would take twice the memory, and one would be overwritten at once
        raise HTTPException(503, "another upload is being received; try again later")
    async with service.uploading:
        memory = await _read_body(request)
        tensors = await asyncio.to_thread(_verified_tensors, memory, x_content_sha256, x_content_blocks)

        def load(engine: Engine) -> dict[str, int | str]:
            engine.update_weights(tensors.items(), x_policy_version)
            return {"policy_version": engine.policy_version, "weights": service.queue.weights}

        return dict(await service.queue.update(load))


async def _read_body(request: Request) -> torch.Tensor:
    """Return the body's bytes [N]; `AccessControl` has checked its length and limits its time."""
    memory, end = torch.empty(int(request.headers["content-length"]), dtype=torch.uint8), 0
    view = memoryview(memory.numpy())
    async for chunk in request.stream():
        view[end : end + len(chunk)] = chunk
        end += len(chunk)
    return memory[:end]


def _verified_tensors(
    memory: torch.Tensor, sha256: str | None, blocks: str | None
) -> dict[str, torch.Tensor]:
    """Return an upload's tensors if the announced checksum is right.

    Raises:
        HTTPException: 400: the bytes are not those that were sent, or no safetensors.
    """
    if blocks is not None:
        _compare(len(memory), checksum(memory), blocks)
    elif sha256 is not None:
        _compare(len(memory), hashlib.sha256(memory.numpy()).hexdigest(), sha256)
    else:
        raise HTTPException(400, "the body's checksum is needed, in the header X-Content-SHA256")
    try:
        return parse_tensors(memory, "the body")
    except EngineError as error:
        raise HTTPException(400, str(error)) from error


def _compare(size: int, actual: str, expected: str) -> None:
    if not hmac.compare_digest(actual, expected.lower()):
        raise HTTPException(400, f"checksum: the {size} bytes that came have {actual}, not {expected}")


@routes.post("/sync/open")
async def sync_open(request: Request, service: Shared, body: MemoryBody) -> dict[str, Any]:
    """Map the memory that a sender on this machine has made, in place of an earlier one."""
    service.check_size(body.size)
    client = request.client.host if request.client else ""
    if client not in LOOPBACK:
        raise HTTPException(422, f"shared memory is for a client on this machine, not at {client}")
    return dict(await service.queue.call(lambda _: service.receiver.open(body.model_dump())))


@routes.post("/sync/load")
async def sync_load(service: Shared, body: VersionBody) -> dict[str, Any]:
    """Load a version from the shared memory."""
    service.check_size(body.size)

    def load(engine: Engine) -> dict[str, Any]:
        return service.receiver.load(body.model_dump(), engine) | {"weights": service.queue.weights}

    return dict(await service.queue.update(load))
