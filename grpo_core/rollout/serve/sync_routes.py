"""The control channel over HTTP: a client beside the server, or in a group with it, says here what it has sent.

Weights in the body of a request need none of this (see `grpo_core.rollout.serve.uploads`).
"""

# mypy: disable-error-code="misc, untyped-decorator"
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from grpo_core.config import LOOPBACK
from grpo_core.rollout.weights.receive import Receiver

if TYPE_CHECKING:
    from pathlib import Path

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


def add_routes(
    app: FastAPI, owner: Any, limits: Any, *, timeout_s: float = 600, root: Path | None = None
) -> None:
    """Adds `/sync/open`, `/sync/begin` and `/sync/load` to a server.

    Args:
        app: The application; its guard has checked the token.
        owner: `await owner.call(function)` runs `function(engine)` in the engine's thread; `update`, where it has that,
            does so for what changes weights.
        limits: `limits.weights_bytes` is the largest version.
        timeout_s: The longest wait for a sender.
        root: For `files`: the folder below which they are; None: there is none.
    """
    receiver, update = Receiver(timeout_s=timeout_s, root=root), getattr(owner, "update", owner.call)

    def checked(size: int) -> None:
        if size > limits.weights_bytes + 2**20:  # shared memory has a page in front
            raise HTTPException(
                413, f"the version has {size} bytes, at most {limits.weights_bytes} are taken"
            )

    @app.post("/sync/open")
    async def sync_open(request: Request, body: OpenBody) -> dict[str, Any]:
        """Opens what a sender has made, in place of what an earlier one had made."""
        checked(body.size)
        client = request.client.host if request.client else ""
        if body.kind == "shm" and client not in LOOPBACK:
            raise HTTPException(422, f"shared memory is for a client on this machine, not at {client}")
        if body.kind in ("gloo", "nccl") and body.host != client:
            # Or a client could make this server connect to anybody.
            raise HTTPException(
                422, f"the group must be at the client's own address {client}, not at {body.host}"
            )
        return dict(await owner.call(lambda _: receiver.open(body.model_dump())))

    @app.post("/sync/begin")
    async def sync_begin(body: VersionBody) -> dict[str, Any]:
        """Begins to receive a version from a group; answers at once."""
        checked(body.size)
        return dict(await owner.call(lambda _: receiver.begin(body.model_dump())))

    @app.post("/sync/load")
    async def sync_load(body: VersionBody) -> dict[str, Any]:
        """Loads a version that has been sent."""
        checked(body.size)

        def load(engine: Any) -> dict[str, Any]:
            # A server may mark each update, so that a client knows whose weights it was answered from.
            return receiver.load(body.model_dump(), engine) | {"weights": getattr(engine, "weights", "")}

        return dict(await update(load))
