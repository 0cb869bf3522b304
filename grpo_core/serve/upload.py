"""Weights as they come in: hashed on the way, in memory once, and never near the engine before they are whole."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import tempfile
from typing import IO, TYPE_CHECKING

import safetensors
import safetensors.torch
from fastapi import HTTPException
from starlette.requests import ClientDisconnect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import torch
    from fastapi import Request


@contextlib.asynccontextmanager
async def received(
    request: Request, announced: str, limit_s: float
) -> AsyncIterator[dict[str, torch.Tensor]]:
    """The tensors of a safetensors body whose SHA-256 was announced; they lie in the bytes that came.

    Raises:
        HTTPException: 400: other bytes than announced, or no safetensors. 408: not all here after `limit_s`.
    """
    length = int(request.headers["content-length"])
    with _memory() as file:
        try:
            found = await asyncio.wait_for(_fill(file, request), limit_s)
        except asyncio.TimeoutError as error:
            detail = f"{file.tell()} of {length} bytes came in {limit_s:g} s (rollout.timeout_s)"
            raise HTTPException(408, detail) from error
        except ClientDisconnect as error:
            raise HTTPException(400, f"the upload ended after {file.tell()} of {length} bytes") from error
        except OSError as error:
            raise HTTPException(503, f"no room for {length} bytes: {error}") from error
        if not hmac.compare_digest(found, announced.lower()):
            detail = f"checksum: {file.tell()} bytes with SHA-256 {found} came, {announced} was announced"
            raise HTTPException(400, detail)
        yield _tensors(file)


async def _fill(file: IO[bytes], request: Request) -> str:
    digest = hashlib.sha256()
    async for chunk in request.stream():
        digest.update(chunk)
        file.write(chunk)
    file.flush()
    return digest.hexdigest()


def _memory() -> IO[bytes]:
    """A file without a disk below it, where the system has such; else a temporary one."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("weights"), "w+b")
    return tempfile.NamedTemporaryFile()


def _tensors(file: IO[bytes]) -> dict[str, torch.Tensor]:
    path = file.name if isinstance(file.name, str) else f"/proc/self/fd/{file.fileno()}"
    try:
        return dict(safetensors.torch.load_file(path))
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise HTTPException(400, f"the body is not safetensors: {error}") from error
