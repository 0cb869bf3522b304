"""What NCCL's RAS tells of a job that is still there: asked where a process of the job listens, over loopback alone.

A text protocol (NCCL 2.24; JSON from 2.28 on): lines of commands, a line of answer each, and after STATUS a document
until the end. Every process of a node listens at the same port, and each knows all ranks of the job.
"""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.hang.read import served
from diagnostics.hang.snapshot import Collective

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.hang.look.around import Surroundings
    from diagnostics.hang.snapshot import Process

PORT = 28028
ADDRESS = "NCCL_RAS_ADDR"
LIMIT_S = 1.0
MOST_BYTES = 8 * 2**20
_COMMANDS = b"CLIENT PROTOCOL 2\nTIMEOUT 1\nSET FORMAT json\nVERBOSE STATUS\n"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}  # noqa: S104 - whoever listens there listens on loopback, too


def listening(around: Surroundings, pids: Iterable[int]) -> tuple[str, int] | None:
    """Where a process of the job listens for RAS's clients on loopback, by the kernel's list; None if none does."""
    here = _namespace("self")
    for pid in sorted(pids):
        item = around.processes[pid]
        told = item.environment.get(ADDRESS, "").rpartition(":")[2]
        port = int(told) if told.isdecimal() else PORT
        for one in around.descriptors.get(pid) or ():
            found = around.sockets.get(one.inode) if one.kind == "socket" else None
            if found is None or found.kind != "tcp" or found.state != "LISTEN":
                continue
            host, _, number = found.local.rpartition(":")
            address = _EVERYWHERE.get(host, host.strip("[]"))
            if int(number) == port and (address == "::1" or address.startswith("127.")):
                return (address, port) if _namespace(str(pid)) == here else None
    return None


def ask(address: tuple[str, int], limit_s: float = LIMIT_S) -> Any:
    """What RAS answers, as a document; None if it gives no JSON in time, or too much of it."""
    end = time.monotonic() + limit_s
    parts: list[bytes] = []
    with contextlib.suppress(OSError), socket.create_connection(address, limit_s) as link:
        link.sendall(_COMMANDS)
        while (left := end - time.monotonic()) > 0 and sum(map(len, parts)) <= MOST_BYTES:
            link.settimeout(left)
            parts.append(link.recv(1 << 16))
            if not parts[-1]:
                return _document(b"".join(parts))
    return None


def _document(answer: bytes) -> Any:
    text = answer.decode("utf-8", errors="replace")
    with contextlib.suppress(ValueError, RecursionError):
        return given.parsed(text[text.index("{") :])
    return None


def collectives(document: Any, processes: Iterable[Process]) -> tuple[Collective, ...]:
    """How much each rank of ours has begun, where that differs: then it says who is behind; else it says nothing."""
    ranks = {process.pid: process.rank for process in processes if process.rank is not None}
    try:
        told = served.telling(document)[0] if served.is_ras(document) else []
    except (TypeError, ValueError, AttributeError):
        return ()
    if len({one.begun for one in told}) < 2:
        return ()
    return tuple(Collective(ranks[one.pid], "", one.begun, -1) for one in told if one.pid in ranks)


def _namespace(pid: str) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    return ""
