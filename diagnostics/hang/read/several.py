"""Several files as one job, and processes of one file with numbers of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.hang import snapshot

if TYPE_CHECKING:
    from diagnostics.hang.snapshot import Process, Snapshot


def apart(processes: list[Process]) -> tuple[Process, ...]:
    """With numbers of their own, where a dump has none or the same twice."""
    found, seen = [], set()
    for process in processes:
        pid = process.pid
        while pid in seen:
            pid += 1
        seen.add(pid)
        found.append(replace(process, pid=pid))
    return tuple(found)


def joined(parts: list[tuple[str, Snapshot]]) -> Snapshot:
    """Several files as one job: bundles of several hosts, or a file a process."""
    bundles = sum(part.source == "live" for _, part in parts)
    placed: list[Snapshot] = []
    for name, part in parts:
        # Numbers of processes are those of a host.
        host = Path(name).stem if bundles > 1 else ""
        placed.append(_of_host(part, host) if host and part.source == "live" else part)
    processes = [process for part in placed for process in part.processes]
    if bundles <= 1:
        processes = list(apart(processes))
    whole = snapshot.joined(placed)
    return replace(whole, processes=tuple(processes))


def _of_host(part: Snapshot, host: str) -> Snapshot:
    """A bundle of one host among others: its addresses are numbered by itself, and mean nothing beside theirs."""
    if any(process.host for process in part.processes):
        return part

    def own(address: str) -> str:
        return f"{host} {address}" if address.startswith("address-") else address

    seen = part.on(host)
    return replace(
        seen,
        processes=tuple(replace(process, job=own(process.job)) for process in seen.processes),
        sockets=tuple(replace(s, local=own(s.local), remote=own(s.remote)) for s in seen.sockets),
        notes=(
            *seen.notes,
            "addresses of different bundles are not joined: look by --hosts or --ray for that",
        ),
    )
