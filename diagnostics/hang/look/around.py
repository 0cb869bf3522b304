"""What is around the processes of a job: all descriptors and sockets of the host, and who is at their other ends."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from diagnostics.hang.look import find, proc, sockets
from diagnostics.hang.snapshot import Descriptor, Lock, Process, Socket

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class Surroundings:
    """All processes of the host, and which of them has which inode open."""

    processes: dict[int, find.Found]
    descriptors: dict[int, tuple[Descriptor, ...] | None]
    sockets: dict[int, Socket]
    clocks: proc.Clocks = field(default_factory=proc.Clocks)

    def owners(self) -> dict[int, set[int]]:
        """Who has an inode open."""
        owners: dict[int, set[int]] = {}
        for pid, items in self.descriptors.items():
            for item in items or ():
                if item.kind in {"socket", "pipe"}:
                    owners.setdefault(item.inode, set()).add(pid)
        return owners


def survey(around: Surroundings, pids: Iterable[int]) -> None:
    """Reads descriptors of all processes that may be read, and all sockets."""
    around.descriptors = {pid: proc.descriptors(pid) for pid in around.processes}
    around.sockets = sockets.all_sockets(pids)


def connected(around: Surroundings, chosen: set[int]) -> set[int]:
    """Processes at the other end of the chosen ones' TCP connections, with all below them, again and again."""
    owners = around.owners()
    ours = find.ancestors(around.processes, os.getpid())
    found: set[int] = set()
    listening: dict[str, list[int]] = {}
    for one in around.sockets.values():
        if one.state == "LISTEN" and one.kind == "tcp":
            listening.setdefault(one.local.rpartition(":")[2], []).append(one.inode)
    left = list(chosen)
    while left:
        for item in around.descriptors.get(left.pop()) or ():
            peer = around.sockets.get(item.inode)
            if item.kind != "socket" or peer is None or peer.kind != "tcp" or peer.state == "LISTEN":
                continue
            # Nobody has the other end of what was not accepted yet: who listens there then.
            ends = [peer.peer] if peer.peer else listening.get(peer.remote.rpartition(":")[2], [])
            more = set().union(*(owners.get(end, set()) for end in ends)) - chosen - found - ours
            more = {pid for pid in more if around.processes[pid].python}
            more = find.below(around.processes, more) - chosen - found - ours
            found |= more
            left += more
    return found


def resolved(around: Surroundings, items: tuple[Descriptor, ...] | None) -> tuple[Descriptor, ...]:
    """Descriptors with the kind of their sockets."""
    known = around.sockets
    return tuple(
        replace(d, kind=known[d.inode].kind) if d.kind == "socket" and d.inode in known else d
        for d in items or ()
    )


def holders(around: Surroundings, found: list[Process]) -> set[int]:
    """Further processes that something here waits for: at the other end of a pipe, or holding a file's lock."""
    owners = around.owners()
    ours = {os.getpid()}
    inodes, files = set(), set()
    for process in found:
        waited = {fd for thread in process.threads for fd in thread.waits_fds}
        files |= {d.inode for d in process.fds if d.kind == "file" and d.fd in waited}
        for item in process.fds:
            if item.fd in waited and item.kind in {"pipe", "unix"}:
                inodes |= {item.inode, around.sockets[item.inode].peer if item.kind == "unix" else item.inode}
    held = {pid for pid, inode, *_ in _listed() if pid and (inode in files)}
    wants = {t for p in found for t in p.threads if any("filelock" in f.path for f in t.frames)}
    if wants:
        held |= {
            pid for pid, inode, *_ in _listed() if pid and _lock_path(around, pid, inode).endswith(".lock")
        }
    more = set().union(*(owners.get(inode, set()) for inode in inodes)) if inodes else set()
    return {pid for pid in (more | held) - ours if pid in around.processes and _mine(around, pid)}


def _mine(around: Surroundings, pid: int) -> bool:
    return os.geteuid() in {around.processes[pid].uid, 0}


def _listed() -> list[tuple[int, int, str, bool]]:
    """(process, inode, kind, waits) of /proc/locks."""
    found = []
    for line in proc.file("/proc/locks").splitlines():
        parts = line.split()
        waits = len(parts) > 1 and parts[1] == "->"
        parts = parts[2:] if waits else parts[1:]
        if len(parts) > 4 and parts[4].count(":") == 2:
            found.append((max(0, int(parts[3])), int(parts[4].rpartition(":")[2]), parts[0], waits))
    return found


def _lock_path(around: Surroundings, pid: int, inode: int) -> str:
    return next((d.path for d in around.descriptors.get(pid) or () if d.inode == inode), "")


def locks(around: Surroundings, found: list[Process]) -> tuple[Lock, ...]:
    """Locks of files that these processes hold, wait for or have open."""
    known = {process.pid for process in found}
    inodes = {d.inode for process in found for d in process.fds if d.kind == "file"}
    return tuple(
        Lock(inode, pid, kind, waits, _lock_path(around, pid, inode))
        for pid, inode, kind, waits in _listed()
        if pid in known or inode in inodes
    )


def concerned(around: Surroundings, found: list[Process]) -> tuple[Socket, ...]:
    """The sockets of these processes."""
    inodes = {d.inode for process in found for d in process.fds if d.kind in {"tcp", "unix"}}
    return tuple(around.sockets[inode] for inode in sorted(inodes) if inode in around.sockets)
