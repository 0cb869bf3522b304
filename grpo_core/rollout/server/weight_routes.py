"""The control channel over HTTP: a client beside the server, or in a group with it, says here what it has sent.

Weights in the body of a request need none of this (see `grpo_core.rollout.server.weight_routes`).
"""

# mypy: disable-error-code="misc, untyped-decorator"
# mypy: disable-error-code="misc"
from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from grpo_core.config import LOOPBACK
from grpo_core.rollout.server.connections import EXTENSION
from grpo_core.rollout.weights.digest import BLOCK, Checksum
from grpo_core.rollout.weights.flat import PIECE, FlatError, tensors_in
from grpo_core.rollout.weights.sync import Receiver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
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


class Staging:
    """Memory for one upload, kept for the next: a system takes longer to give out memory than to fill it."""

    def __init__(self) -> None:
        self._free: torch.Tensor | None = None

    def take(self, size: int) -> torch.Tensor:
        """Memory of at least `size` bytes: the kept one, if nobody has it and it is large enough."""
        kept, self._free = self._free, None
        return kept if kept is not None and len(kept) >= size else torch.empty(size, dtype=torch.uint8)

    def give(self, memory: torch.Tensor) -> None:
        """Takes back what `take` gave."""
        self._free = memory


@asynccontextmanager
async def uploaded(
    request: Any, staging: Staging, *, timeout_s: float, sha256: str | None = None
) -> AsyncIterator[dict[str, torch.Tensor]]:
    """Receives a body of known length and gives the tensors in it, to be used inside the `with` only.

    Args:
        request: Starlette's, its Content-Length checked against the limits already.
        staging: Where to.
        timeout_s: For the whole upload.
        sha256: The body's, where the client has announced it; else the body ends with the checksum.

    Raises:
        HTTPException: 400: cut off, not what was sent, or no safetensors. 408: not all here after `timeout_s`.
    """
    size = int(request.headers["content-length"])
    memory = staging.take(size)
    whole, checksum = memory[:size], None if sha256 else Checksum()
    try:
        await _received(request, whole, checksum, timeout_s)
        if checksum is None:
            found = await asyncio.to_thread(lambda: hashlib.sha256(whole.numpy()).hexdigest())
            right = hmac.compare_digest(found.encode(), str(sha256).lower().encode())
        else:
            found, right = checksum.digest().hex(), size > Checksum.SIZE
            right = right and hmac.compare_digest(
                checksum.digest(), whole[-Checksum.SIZE :].numpy().tobytes()
            )
            whole = whole[: -Checksum.SIZE]
        if not right:
            raise HTTPException(
                400, f"checksum: of the {size} bytes that came it is {found}, not the announced one"
            )
        try:
            tensors = await asyncio.to_thread(tensors_in, whole)  # a header may take a moment to read
        except FlatError as error:
            raise HTTPException(400, f"the body is {error}") from error
        yield tensors
    finally:
        staging.give(memory)


async def _received(request: Any, whole: torch.Tensor, checksum: Checksum | None, timeout_s: float) -> None:
    at, summed, view = 0, 0, memoryview(whole.numpy())
    end = len(view) - Checksum.SIZE  # of what is summed

    def came(count: int) -> None:
        nonlocal at, summed
        at += count
        while checksum is not None and summed < end and (at >= end or at - summed >= PIECE):
            until = min(end, summed + PIECE)
            checksum.update(view[summed:until])
            summed = until

    try:
        await asyncio.wait_for(_fill(request, view, came), timeout_s)
    except (TimeoutError, asyncio.TimeoutError) as error:
        detail = f"{at} of {len(view)} bytes came in {timeout_s:g} s (rollout.timeout_s)"
        raise HTTPException(408, detail) from error
    except (ConnectionError, ClientDisconnect) as error:
        raise HTTPException(400, f"the upload ended after {at} of {len(view)} bytes") from error
    if at != len(view):
        raise HTTPException(400, f"{at} bytes came, {len(view)} were announced")


async def _fill(request: Any, view: memoryview, came: Callable[[int], None]) -> None:
    connection = request.scope.get("extensions", {}).get(EXTENSION)
    if connection is not None and _goes_around(request, connection):
        await _direct(connection, view, came)
        return
    at = 0
    async for chunk in request.stream():
        view[at : at + len(chunk)] = chunk
        at += len(chunk)
        came(len(chunk))


def _goes_around(request: Any, connection: Any) -> bool:
    """A body of so many bytes and no other framing, nobody waits for a word of ours, and nothing comes behind it.

    Not under TLS either: what the socket has read is not yet what has come.
    """
    headers = request.headers
    if connection.transport.get_extra_info("sslcontext") is not None:
        return False
    closes = headers.get("connection", "").strip().lower() == "close"
    return closes and "transfer-encoding" not in headers and not connection.cycle.waiting_for_100_continue


async def _direct(connection: Any, view: memoryview, came: Callable[[int], None]) -> None:
    cycle = connection.cycle
    begun, cycle.body = cycle.body, bytearray()  # what came with the headers
    view[: len(begun)] = begun
    came(len(begun))
    if len(begun) == len(view):
        return
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    reader = _Into(connection, view[len(begun) :], came, done)
    connection.transport.set_protocol(reader)
    connection.flow.resume_reading()  # the parser pauses it when nobody takes the body
    try:
        await done
    except asyncio.CancelledError:  # the clock
        reader.read_rest()
        raise
    finally:
        connection.transport.set_protocol(connection)


class _Into(asyncio.BufferedProtocol):
    """Reads a connection into memory until that is full; what else happens is the connection's own business.

    It is woken by a piece, not by each of a sender's segments (on loopback 64 KiB): a core that sleeps between them
    costs the sender more to wake than the bytes themselves. An end of the connection wakes it however little came.
    """

    def __init__(
        self, connection: Any, view: memoryview, came: Callable[[int], None], done: asyncio.Future[None]
    ) -> None:
        self._connection, self._view, self._came, self._done = connection, view, came, done
        self._socket, self._least = connection.transport.get_extra_info("socket"), 1
        self._wake_at(len(view))

    def _wake_at(self, count: int) -> None:
        """Never more than what is still to come, or nothing would."""
        least = max(1, min(count, PIECE))
        if least != self._least:
            self._least = least
            with suppress(OSError):  # a system without it wakes at any byte
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def read_rest(self) -> None:
        """Reads what came and was too little to wake it; from now on any byte does."""
        with suppress(OSError):  # nothing, or no connection
            self.buffer_updated(os.readv(self._socket.fileno(), [self.get_buffer(-1)]))
        self._wake_at(1)

    def get_buffer(self, _: int) -> memoryview:
        return self._view[:PIECE]

    def buffer_updated(self, count: int) -> None:
        self._view = self._view[count:]
        self._came(count)
        self._wake_at(len(self._view))
        if not len(self._view):
            self._connection.transport.set_protocol(self._connection)
            if not self._done.done():
                self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError(str(error)))
        self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


assert PIECE % BLOCK == 0  # the checksum is of whole blocks
