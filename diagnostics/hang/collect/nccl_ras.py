"""Query NCCL's RAS service of a running job over loopback, and read its JSON.

RAS speaks a text protocol (NCCL 2.24; JSON from 2.28 on): one line per command, one line per answer, and after STATUS
a document until the connection ends. Every process of a node listens at the same port and knows all ranks of the job.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from diagnostics import safe_io
from diagnostics.hang.collect import proc
from diagnostics.hang.collect.peers import Host
from diagnostics.hang.collect.sockets import network_namespace
from diagnostics.hang.snapshot import Collective, Process

PORT = 28028
ADDRESS_VARIABLE = "NCCL_RAS_ADDR"
TIMEOUT_S = 1.0
MAX_BYTES = 8 * 2**20
_COMMANDS = b"CLIENT PROTOCOL 2\nTIMEOUT 1\nSET FORMAT json\nVERBOSE STATUS\n"
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}  # noqa: S104 - who listens there listens on loopback too


@dataclass(frozen=True)
class RasRank:
    """A rank of a communicator, its process, and how many collectives it has started."""

    rank: int
    started: int
    pid: int


def find_service(host: Host, pids: Iterable[int]) -> tuple[str, int] | None:
    """Return the loopback address where a process of the job serves RAS; None if none does."""
    current = network_namespace("self")
    for pid in sorted(pids):
        value = host.processes[pid].environment.get(ADDRESS_VARIABLE, "").rpartition(":")[2]
        port = proc.small_int(value) or PORT
        for item in host.descriptors.get(pid) or ():
            listener = host.sockets.get(item.inode) if item.kind == "socket" else None
            if listener is None or listener.kind != "tcp" or listener.state != "LISTEN":
                continue
            name, _, number = listener.local.rpartition(":")
            address = _ANY_ADDRESS.get(name, name.strip("[]"))
            if int(number) == port and (address == "::1" or address.startswith("127.")):
                return (address, port) if network_namespace(str(pid)) == current else None
    return None


def query(address: tuple[str, int], timeout_s: float = TIMEOUT_S) -> Any:
    """Return the document RAS sends; None if it sends no JSON in time, or too much."""
    end = time.monotonic() + timeout_s
    parts: list[bytes] = []
    with contextlib.suppress(OSError), socket.create_connection(address, timeout_s) as connection:
        connection.sendall(_COMMANDS)
        while (remaining := end - time.monotonic()) > 0 and sum(map(len, parts)) <= MAX_BYTES:
            connection.settimeout(remaining)
            parts.append(connection.recv(1 << 16))
            if not parts[-1]:
                return _parse_document(b"".join(parts))
    return None


def _parse_document(data: bytes) -> Any:
    text = data.decode("utf-8", errors="replace")
    with contextlib.suppress(ValueError, RecursionError):
        return safe_io.parse_json(text[text.index("{") :])
    return None


def collectives_of(document: Any, processes: Iterable[Process]) -> tuple[Collective, ...]:
    """Return how many collectives each of our ranks has started, if the counts differ."""
    ranks = {process.pid: process.rank for process in processes if process.rank is not None}
    try:
        counts = uneven_communicator(document)[0] if is_ras_document(document) else []
    except (TypeError, ValueError, AttributeError):
        return ()
    if len({rank.started for rank in counts}) < 2:
        return ()
    return tuple(Collective(ranks[rank.pid], "", rank.started, -1) for rank in counts if rank.pid in ranks)


def is_ras_document(document: Any) -> bool:
    """Return whether a JSON document looks like NCCL's RAS."""
    return isinstance(document, dict) and isinstance(document.get("communicators"), list)


def uneven_communicator(document: dict[str, Any]) -> tuple[list[RasRank], list[int]]:
    """Return (ranks, ranks without an answer) of the communicator that differs most: uneven ones, then the largest."""
    best: tuple[tuple[bool, int], list[RasRank], list[int]] = ((False, 0), [], [])
    for communicator in document["communicators"]:
        ranks = []
        for item in communicator.get("ranks", ()):
            counts = item.get("collective_counts") or item.get("coll_op_counts") or {}
            if isinstance(item.get("rank"), int) and isinstance(counts, dict):
                started = sum(int(count) for count in counts.values())
                ranks.append(RasRank(item["rank"], started, int(item.get("pid", 0))))
        missing = [
            item.get("rank") for item in communicator.get("missing_ranks", ()) if isinstance(item, dict)
        ]
        uneven = len({rank.started for rank in ranks}) > 1 or bool(missing)
        if ranks and (uneven, len(ranks)) > best[0]:
            best = ((uneven, len(ranks)), ranks, [rank for rank in missing if isinstance(rank, int)])
    return best[1], best[2]
