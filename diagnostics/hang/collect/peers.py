"""Find the processes at the other ends of a job's sockets and pipes, and those that hold its file locks.

`Host` reads the descriptors and sockets of the whole host. `connected_processes` finds Python processes that TCP
connects with those that the user chose. `possible_blockers` finds processes with a pipe, unix socket or lock for which
an observed process, one of the snapshot, may wait. `sockets_of` and `file_locks` return the sockets and locks of
observed processes.
"""

import os
import time
from dataclasses import dataclass, field, replace

from diagnostics import safe_io
from diagnostics.collect.blocking_reads import read_process_file
from diagnostics.hang.collect import discovery, proc, sockets
from diagnostics.hang.snapshot import Descriptor, Lock, Process, Socket


@dataclass
class Host:
    """The processes of the host with their open files, and its sockets; files and sockets are read by `survey`."""

    processes: dict[int, discovery.ProcessEntry]
    descriptors: dict[int, tuple[Descriptor, ...]] = field(default_factory=dict)
    sockets: dict[int, Socket] = field(default_factory=dict)
    complete: bool = True
    """Whether `survey` could read all files and sockets within its limits."""

    def survey(self, first: set[int]) -> None:
        """Read the sockets and the descriptors of all readable processes, of the `first` ones first, within limits."""
        end = time.process_time() + discovery.SURVEY_S
        for pid in sorted(self.processes, key=lambda pid: pid not in first):
            self.descriptors[pid] = proc.descriptors(pid) if time.process_time() < end else ()
            self.complete &= len(self.descriptors[pid]) < proc.MAX_DESCRIPTORS and time.process_time() < end
        self.sockets = sockets.all_sockets()
        self.complete &= len(self.sockets) < sockets.MAX_SOCKETS

    def update_sockets(self) -> None:
        """Read all sockets again, with the bytes that each has moved since the last reading."""
        before, self.sockets = self.sockets, sockets.all_sockets()
        for inode in before.keys() & self.sockets.keys():
            item = self.sockets[inode]
            self.sockets[inode] = replace(item, moved=item.total_bytes - before[inode].total_bytes)

    def owners(self, *kinds: str) -> dict[int, list[tuple[int, int]]]:
        """Return, by inode, the processes that have each file of these kinds open, with the descriptor."""
        owners: dict[int, list[tuple[int, int]]] = {}
        for pid, items in self.descriptors.items():
            for item in items:
                if item.kind in kinds:
                    owners.setdefault(item.inode, []).append((pid, item.fd))
        return owners

    def with_socket_kinds(self, items: tuple[Descriptor, ...]) -> tuple[Descriptor, ...]:
        """Return descriptors with the kind of their sockets: tcp or unix instead of socket."""

        def kind_of(item: Descriptor) -> str:
            socket = self.sockets.get(item.inode) if item.kind == "socket" else None
            return socket.kind if socket else item.kind

        return tuple(replace(item, kind=kind_of(item)) for item in items)


def connected_processes(host: Host, chosen: set[int]) -> set[int]:
    """Return further Python processes with a direct or indirect TCP connection to the chosen ones, and descendants."""
    owners, listeners = host.owners("socket"), _listeners(host)
    visited = chosen | discovery.ancestors(host.processes, os.getpid())
    connected: set[int] = set()
    queue = list(chosen)
    while queue:
        for item in host.descriptors.get(queue.pop(), ()):
            # Each socket is followed once.
            peers = {pid for inode in _other_ends(host, item, listeners) for pid, _ in owners.pop(inode, ())}
            tops = {pid for pid in peers - visited if host.processes[pid].python}
            more = discovery.descendants(host.processes, tops) - visited if tops else set()
            visited |= more
            connected |= more
            queue += more
    return connected


def _listeners(host: Host) -> dict[str, list[int]]:
    """Return the inodes of the listening TCP sockets, by port."""
    inodes: dict[str, list[int]] = {}
    for item in host.sockets.values():
        if (item.kind, item.state) == ("tcp", "LISTEN"):
            inodes.setdefault(item.local.rpartition(":")[2], []).append(item.inode)
    return inodes


def _other_ends(host: Host, item: Descriptor, listeners: dict[str, list[int]]) -> list[int]:
    """Return the peer of a TCP connection; before it is accepted, the sockets that listen at its port.

    A port is removed from `listeners`, because each listener is followed once.
    """
    connection = host.sockets.get(item.inode) if item.kind == "socket" else None
    if connection is None or connection.kind != "tcp" or connection.state == "LISTEN":
        return []
    if connection.peer:
        return [connection.peer]
    return listeners.pop(connection.remote.rpartition(":")[2], [])


def possible_blockers(host: Host, observed: list[Process]) -> set[int]:
    """Return processes that an observed one may wait for: at the other end of a pipe or unix socket, or with a lock.

    If a stack is in `filelock`, each process with a lock on a `*.lock` file counts, unless an observed process has one.
    Processes of other users are left out, unless this process runs as root.
    """
    owners = host.owners("socket", "pipe")
    inodes, files = set(), set()
    for process in observed:
        waited_fds = {fd for thread in process.threads for fd in thread.waits_fds}
        files |= {item.inode for item in process.fds if item.kind == "file" and item.fd in waited_fds}
        for item in process.fds:
            if item.fd in waited_fds and item.kind in {"pipe", "unix"}:
                inodes |= {item.inode, host.sockets[item.inode].peer if item.kind == "unix" else item.inode}
    locks = _proc_locks(host)
    pids = {lock.pid for lock in locks if lock.pid and lock.inode in files}
    if any("filelock" in frame.path for p in observed for thread in p.threads for frame in thread.frames):
        paths = {
            (pid, i.inode)
            for pid, items in host.descriptors.items()
            for i in items
            if i.path.endswith(".lock")
        }
        holders = {lock.pid for lock in locks if (lock.pid, lock.inode) in paths}
        # Lock files of other jobs explain nothing while a process of this job holds one.
        pids |= set() if holders & {process.pid for process in observed} else holders
    pids |= {pid for inode in inodes for pid, _ in owners.get(inode, ())}
    user = os.geteuid()
    # Our ancestors wait for us, and not for the job.
    visible = pids & host.processes.keys() - discovery.ancestors(host.processes, os.getpid())
    return {pid for pid in visible if user in {host.processes[pid].uid, 0}}


def _proc_locks(host: Host) -> list[Lock]:
    """Return the file locks in /proc/locks, held or waited for.

    If the process that took a lock has ended, the one that inherited its descriptor holds it.
    """
    locks = []
    opened = host.owners("file")
    for line in safe_io.read_kernel_file("/proc/locks").splitlines():
        parts = line.split()
        waits = len(parts) > 1 and parts[1] == "->"
        parts = parts[2:] if waits else parts[1:]
        if len(parts) > 4 and parts[4].count(":") == 2:
            inode = int(parts[4].rpartition(":")[2])
            pid = max(0, int(parts[3]))
            if parts[0] in ("FLOCK", "OFDLCK") and not waits and pid not in host.processes:
                fds = opened.get(inode, [])[:1000]
                opened[inode] = [i for i in fds if parts[0] in read_process_file(i[0], f"fdinfo/{i[1]}")][:1]
                pid = opened[inode][0][0] if opened[inode] else 0
            locks.append(Lock(inode, pid, parts[0], waits))
    return locks


def file_lock_holders(host: Host) -> set[tuple[int, int]]:
    """Return the inode and the holder of each file lock."""
    return {(lock.inode, lock.pid) for lock in _proc_locks(host) if not lock.waiting}


def held_locks(host: Host, observed: list[Process], before: set[tuple[int, int]]) -> tuple[Lock, ...]:
    """Return the file locks and semaphores that these processes hold or wait for, and locks of their open files.

    `before` has the inodes and holders of file locks when the observation began.
    """
    pids = {process.pid for process in observed}
    inodes = {item.inode for process in observed for item in process.fds if item.kind == "file"}
    locks = [lock for lock in _proc_locks(host) if lock.pid in pids or lock.inode in inodes]
    turns = (replace(lock, taken=not lock.waiting and (lock.inode, lock.pid) not in before) for lock in locks)
    return (*turns, *_semaphore_locks(host, observed))


def _semaphore_locks(host: Host, observed: list[Process]) -> list[Lock]:
    """Return who holds the semaphores that threads wait for; pid 0 if no process that maps one holds it.

    Nothing is returned for a semaphore of which a process may not or could not be searched.
    """
    waited = {t.futex[4:] for p in observed for t in p.threads if t.futex.startswith("sem:")}
    locks: list[Lock] = []
    for inode in map(int, sorted(waited)):
        others = {entry.pid for entry in host.processes.values() if entry.python} - {p.pid for p in observed}
        sharing = [p for p in observed if any(name.endswith(f"#{inode}") for name in p.shared)]
        holds = {p.pid: None if p.unseen else proc.holds_semaphore(p.pid, inode) for p in sharing}
        pids = [pid for pid, acquired in holds.items() if acquired]
        if not pids and None not in holds.values() and not any(proc.maps_semaphore(p, inode) for p in others):
            pids = [0]
        locks += [Lock(inode, pid, "semaphore") for pid in pids]
    return locks


def sockets_of(host: Host, observed: list[Process]) -> tuple[Socket, ...]:
    """Return the sockets of these processes."""
    inodes = {item.inode for process in observed for item in process.fds if item.kind in {"tcp", "unix"}}
    return tuple(host.sockets[inode] for inode in sorted(inodes) if inode in host.sockets)
