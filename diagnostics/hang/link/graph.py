"""Who waits for whom: edges, each with the evidence that it rests on, and the tables to look them up by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diagnostics.hang.stands import Stand, stand

if TYPE_CHECKING:
    from diagnostics.hang.snapshot import Descriptor, Process, Snapshot, Socket


def is_loopback(address: str) -> bool:
    """Whether an address, with or without a port, is that of the host itself: each host has its own."""
    return address.startswith(("127.", "[::1]", "::1", "[::ffff:127.", "::ffff:127."))


@dataclass(frozen=True)
class Edge:
    """One process waits for another.

    Attributes:
        target: Key of a process, or of something that is none we see, as "tcp 10.0.0.2:8000".
        label: The target, as a sentence calls it.
        text: What the wait is, as "waits for an HTTP answer of".
        evidence: Where that was read: a file of /proc, a frame.
        needs: "all": each target of this kind must come; "any": one of them would do, or it is not known which.
        certain: Whether it follows from what was read; else it is what is left when all else is excluded.
    """

    source: str
    target: str
    kind: str
    label: str
    text: str
    evidence: tuple[str, ...] = ()
    needs: str = "any"
    certain: bool = True


@dataclass
class Index:
    """A snapshot, to look things up in."""

    snapshot: Snapshot
    stands: dict[str, Stand] = field(default_factory=dict)
    sockets: dict[tuple[str, int], Socket] = field(default_factory=dict)
    owners: dict[tuple[str, int], list[tuple[Process, Descriptor]]] = field(default_factory=dict)

    @staticmethod
    def of(snapshot: Snapshot) -> Index:
        """Builds the tables."""
        index = Index(snapshot)
        for process in snapshot.processes:
            index.stands[process.key] = stand(process)
            for item in process.fds:
                if item.kind in ("tcp", "unix", "pipe"):
                    index.owners.setdefault((process.host, item.inode), []).append((process, item))
        for socket in snapshot.sockets:
            index.sockets[socket.host, socket.inode] = socket
        return index

    def process(self, key: str) -> Process | None:
        """The process of a key; None for what is none."""
        found = self.stands.get(key)
        return found.process if found else None

    def children(self, process: Process) -> list[Process]:
        """What it started, helpers left out."""
        return [
            p
            for p in self.snapshot.processes
            if p.ppid == process.pid and p.host == process.host and p.role != "helper"
        ]

    def socket(self, process: Process, fd: int) -> Socket | None:
        """The socket behind a descriptor."""
        item = next((d for d in process.fds if d.fd == fd and d.kind in ("tcp", "unix")), None)
        return self.sockets.get((process.host, item.inode)) if item else None

    def peers(self, process: Process, socket: Socket) -> list[Process]:
        """The processes at the other end of a socket, also on another host that was looked at."""
        if socket.peer:
            return [p for p, _ in self.owners.get((process.host, socket.peer), ()) if p.key != process.key]
        if socket.kind != "tcp":
            return []
        inward = is_loopback(socket.remote)
        ends = [
            key
            for key, s in self.sockets.items()
            if (s.local, s.remote) == (socket.remote, socket.local) and (s.host == process.host or not inward)
        ]
        found = [p for key in ends for p, _ in self.owners.get(key, ())]
        return found or [p for p in self._listeners(process.host, socket) if p.key != process.key]

    def own(self, process: Process, socket: Socket) -> bool:
        """Whether a process is connected to itself."""
        return any(p.key == process.key for p in self._listeners(process.host, socket))

    def inward(self, stand: Stand) -> bool:
        """Whether it waits for a socket whose other end is its own, as who serves a store and asks it."""
        sockets = [self.socket(stand.process, fd) for fd in (stand.thread.waits_fds if stand.thread else ())]
        return any(s is not None and s.kind == "tcp" and self.own(stand.process, s) for s in sockets)

    def _listeners(self, host: str, socket: Socket) -> list[Process]:
        """Who listens where a connection goes to that nobody has accepted yet, on whichever host that is."""
        address, _, port = socket.remote.rpartition(":")
        # Addresses of a host are those that its own sockets have.
        there = {
            s.host
            for s in self.sockets.values()
            if s.kind == "tcp" and s.local.rpartition(":")[0] == address and not is_loopback(address)
        }
        if is_loopback(address):
            there.add(host)
        if not port:
            return []
        keys = [
            key
            for key, s in self.sockets.items()
            if s.host in there and s.state == "LISTEN" and s.local.rpartition(":")[2] == port
        ]
        return [p for key in keys for p, _ in self.owners.get(key, ())]

    def open_sockets(self, process: Process) -> list[tuple[Descriptor, Socket]]:
        """Its established TCP connections."""
        found = []
        for item in process.fds:
            socket = self.sockets.get((process.host, item.inode)) if item.kind == "tcp" else None
            if socket and socket.state in ("ESTABLISHED", "CLOSE_WAIT"):
                found.append((item, socket))
        return found

    def listening(self, process: Process) -> set[str]:
        """Ports it listens on."""
        found = [self.sockets.get((process.host, d.inode)) for d in process.fds if d.kind == "tcp"]
        return {s.local.rpartition(":")[2] for s in found if s and s.state == "LISTEN"}

    def asked(self, process: Process) -> list[tuple[Descriptor, Socket]]:
        """Connections to it on which something was asked and nothing answered since."""
        ports = self.listening(process)
        return [
            (item, s)
            for item, s in self.open_sockets(process)
            if s.local.rpartition(":")[2] in ports and _open(s.received_s, s.sent_s, s.unread)
        ]

    def asking(self, process: Process) -> list[tuple[Descriptor, Socket]]:
        """Connections of its own on which it asked something and nothing was answered since."""
        ports = self.listening(process)
        return [
            (item, s)
            for item, s in self.open_sockets(process)
            if s.local.rpartition(":")[2] not in ports and _open(s.sent_s, s.received_s, 0)
        ]


def _open(asked_s: float | None, answered_s: float | None, unread: int) -> bool:
    """Whether the question is younger than the last answer; of a connection without either nothing is known.

    The kernel counts both from when the connection was made, so that equal ages mean that nothing went through yet.
    """
    if unread:
        return True
    return asked_s is not None and answered_s is not None and asked_s + 0.002 < answered_s
