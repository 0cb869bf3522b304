"""How weights reach the server: in the body of a POST, or announced here when they went another way."""

# mypy: disable-error-code="misc, untyped-decorator"
from __future__ import annotations

import asyncio
import hashlib
import hmac
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from fastapi import FastAPI, Header, HTTPException, Request
from pydantic import BaseModel, Field

from grpo_core.config import LOOPBACK
from grpo_core.rollout.server.guard import UPLOAD, Limits
from grpo_core.rollout.weights.digest import Checksum
from grpo_core.rollout.weights.flat import PIECE, FlatError, tensors_in
from grpo_core.rollout.weights.sync import Receiver

if TYPE_CHECKING:
    from grpo_core.rollout.engine import Engine
    from grpo_core.rollout.server.engine_queue import EngineQueue

Kind = Literal["shm", "gloo", "nccl", "files"]


class OpenBody(BaseModel):
    """What a sender has made for the engine to open."""

    kind: Kind
    name: Annotated[str, Field(max_length=200)] = ""
    size: Annotated[int, Field(ge=0, lt=2**50)] = 0
    host: Annotated[str, Field(max_length=200)] = ""
    port: Annotated[int, Field(ge=0, lt=2**16)] = 0


class VersionBody(BaseModel):
    """A version that is on its way, or is there."""

    kind: Kind
    version: Annotated[int, Field(ge=0, lt=2**63)]
    size: Annotated[int, Field(ge=1, lt=2**50)]
    generation: Annotated[int, Field(ge=0, lt=2**63)] = 0
    name: Annotated[str, Field(max_length=200)] = ""
    checksum: Annotated[str, Field(max_length=64)] = ""


def add_upload(app: FastAPI, engines: EngineQueue) -> None:
    """Adds `POST /weights`."""
    one_at_a_time = asyncio.Lock()
    body = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

    @app.post(UPLOAD, openapi_extra={"requestBody": {"required": True, "content": body}})
    async def weights(
        request: Request,
        x_policy_version: Annotated[int, Header(ge=0, lt=2**63)],
        x_content_sha256: Annotated[str | None, Header(pattern="^[0-9a-fA-F]{64}$")] = None,
    ) -> dict[str, int | str]:
        """Loads a policy version from a safetensors body, if all of it came and its checksum is right.

        Without `X-Content-SHA256`, the body ends with the checksum of `grpo_core.rollout.remote.Upload`.
        """
        if one_at_a_time.locked():  # two would take twice the memory, and one would be overwritten at once
            raise HTTPException(503, "another upload is under way; try again later")
        async with one_at_a_time:
            memory = await _received(request)
            tensors = await asyncio.to_thread(checked_tensors, memory, x_content_sha256)

            def load(engine: Any) -> dict[str, int | str]:
                engine.update_weights(tensors.items(), x_policy_version)
                return {"policy_version": engine.policy_version, "weights": engine.weights}

            return dict(await engines.update(load))


async def _received(request: Request) -> torch.Tensor:
    """The body's bytes [N]; the guard has checked its length, and limits its time."""
    memory, at = torch.empty(int(request.headers["content-length"]), dtype=torch.uint8), 0
    view = memoryview(memory.numpy())
    async for chunk in request.stream():
        view[at : at + len(chunk)] = chunk
        at += len(chunk)
    return memory[:at]


def checked_tensors(memory: torch.Tensor, sha256: str | None) -> dict[str, torch.Tensor]:
    """The tensors in an upload, if its checksum is right: the announced one, or the one at its end.

    Raises:
        HTTPException: 400: the bytes are not what was sent, or no safetensors.
    """
    if sha256 is not None:
        data, expected = memory, sha256.lower()
        found = hashlib.sha256(data.numpy()).hexdigest()
    else:
        data, checksum = memory[: -Checksum.SIZE], Checksum()
        expected = memory[-Checksum.SIZE :].numpy().tobytes().hex()
        for piece in data.split(PIECE):
            checksum.update(memoryview(piece.numpy()))
        found = checksum.digest().hex() if len(data) else "that of nothing"
    if not hmac.compare_digest(found, expected):
        raise HTTPException(
            400, f"checksum: of the {len(memory)} bytes that came it is {found}, not the announced one"
        )
    try:
        return tensors_in(data)
    except FlatError as error:
        raise HTTPException(400, f"the body is {error}") from error


def add_announcements(app: FastAPI, engines: EngineQueue, limits: Limits) -> None:
    """Adds `/sync/open`, `/sync/begin` and `/sync/load`: a client says here what it has sent by another way."""
    receiver = Receiver(timeout_s=limits.call_s)

    def check_size(size: int) -> None:
        if size > limits.weights_bytes + 2**20:  # shared memory has a page in front
            raise HTTPException(
                413, f"the version has {size} bytes, at most {limits.weights_bytes} are taken"
            )

    @app.post("/sync/open")
    async def sync_open(request: Request, body: OpenBody) -> dict[str, Any]:
        """Opens what a sender has made, in place of what an earlier one had made."""
        check_size(body.size)
        client = request.client.host if request.client else ""
        if body.kind == "shm" and client not in LOOPBACK:
            raise HTTPException(422, f"shared memory is for a client on this machine, not at {client}")
        if body.kind in ("gloo", "nccl") and body.host != client:
            # Or a client could make this server connect to anybody.
            raise HTTPException(
                422, f"the group must be at the client's own address {client}, not at {body.host}"
            )
        return dict(await engines.call(lambda _: receiver.open(body.model_dump())))

    @app.post("/sync/begin")
    async def sync_begin(body: VersionBody) -> dict[str, Any]:
        """Begins to receive a version from a group; answers at once."""
        check_size(body.size)
        return dict(await engines.call(lambda _: receiver.begin(body.model_dump())))

    @app.post("/sync/load")
    async def sync_load(body: VersionBody) -> dict[str, Any]:
        """Loads a version that has been sent."""
        check_size(body.size)

        def load(engine: Engine) -> dict[str, Any]:
            return receiver.load(body.model_dump(), engine) | {"weights": getattr(engine, "weights", "")}

        return dict(await engines.update(load))
