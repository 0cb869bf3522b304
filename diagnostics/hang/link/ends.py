"""The other ends: of the descriptors that a system call waits for, who has them open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.hang import waits
from diagnostics.hang.link.graph import Edge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.hang.link.graph import Index
    from diagnostics.hang.snapshot import Process, Socket, Thread
    from diagnostics.hang.stands import Stand


def _asked(stand: Stand) -> str:
    if stand.kind == "connect":
        return "waits to be connected to"
    return f"waits for {waits.KINDS[stand.kind].removeprefix('waits for ')} of"


def _end(process: Process, socket: Socket, peer: Process) -> str:
    if socket.peer:
        return f"whose other end is open in pid {peer.pid}"
    if peer.host != process.host:
        return f"whose other end is open in pid {peer.pid} on {peer.host}"
    return f"pid {peer.pid} listens there, and has not accepted it"


def mailbox(process: Process, thread: Thread) -> bool:
    """Whether a thread waits for its library's own threads, as ZMQ's sockets do: the connection is theirs."""
    kinds = [d.kind for d in process.fds if d.fd in thread.waits_fds]
    return bool(kinds) and all(kind == "other" for kind in kinds)


def any_peer(index: Index, stand: Stand) -> list[Edge]:
    """Who is at the other end of any of its connections, where it is not known which one it waits for."""
    process = stand.process
    found: dict[str, Edge] = {}
    for item in process.fds:
        socket = index.socket(process, item.fd)
        if socket is None or socket.state != "ESTABLISHED":
            continue
        for peer in index.peers(process, socket):
            where = f"fd/{item.fd}: a {socket.kind} socket {socket.local or socket.remote}".rstrip()
            evidence = (seen_in(stand), f"{where}, whose other end is open in pid {peer.pid}")
            found.setdefault(peer.key, edge(stand, peer, "waits for a message of", evidence, certain=False))
    return list(found.values())


def edge(
    stand: Stand,
    target: Process,
    text: str,
    evidence: Iterable[str],
    *,
    needs: str = "any",
    certain: bool = True,
) -> Edge:
    """An edge from where a process stands."""
    return Edge(
        stand.process.key, target.key, stand.kind, target.label, text, tuple(evidence), needs, certain
    )


def _call(process: Process, thread: Thread, fd: int) -> str:
    return f"/proc/{process.pid}/task/{thread.tid}/syscall: {thread.syscall} of descriptor {fd}"


def descriptors(index: Index, stand: Stand, thread: Thread) -> list[Edge]:
    """For each descriptor that the system call waits for: who has the other end."""
    process = stand.process
    found: list[Edge] = []
    for fd in thread.waits_fds:
        item = next((d for d in process.fds if d.fd == fd), None)
        if item is None:
            continue
        if item.kind == "pipe":
            found += _pipe(index, stand, thread, fd)
        socket = index.socket(process, fd)
        if socket is None or stand.kind in ("data_loader", "loop"):
            continue
        where = f"fd/{fd} is a {socket.kind} socket {socket.local} to {socket.remote or 'its peer'} ({socket.state})"
        evidence = [_call(process, thread, fd), where]
        peers = index.peers(process, socket)
        for peer in peers:
            found.append(edge(stand, peer, _asked(stand), [*evidence, _end(process, socket, peer)]))
        if socket.kind == "unix" and not peers:
            found += _of_dead(index, stand, evidence, certain=True)
        if not peers and socket.kind == "tcp" and not index.own(process, socket):
            found.append(
                Edge(
                    process.key,
                    f"tcp {socket.remote}",
                    stand.kind,
                    f"the process at {socket.remote}",
                    _asked(stand),
                    tuple(evidence),
                )
            )
    return found


def _pipe(index: Index, stand: Stand, thread: Thread, fd: int) -> list[Edge]:
    process = stand.process
    item = next(d for d in process.fds if d.fd == fd)
    writes = thread.syscall in ("write", "writev")
    other = "r" if writes else "w"
    there = {
        p.key: p
        for p, d in index.owners.get((process.host, item.inode), ())
        if other in d.mode and p.key != process.key
    }
    evidence = (_call(process, thread, fd), f"fd/{fd} is pipe:[{item.inode}]")
    verb = "waits for room in the pipe that is read by" if writes else "waits for something in the pipe of"
    found = [
        edge(stand, p, verb, (*evidence, f"whose other end is open in pid {p.pid}")) for p in there.values()
    ]
    if not writes:
        found += _of_dead(index, stand, evidence, certain=not there)
    return found


def _of_dead(index: Index, stand: Stand, evidence: Iterable[str], *, certain: bool) -> list[Edge]:
    """A dead child, while its parent has the other end open itself: the end of the pipe never shows."""
    why = f"and pid {stand.process.pid} has the other end open itself, so that the pipe never ends"
    return [
        edge(
            stand,
            p,
            "waits for something in a pipe of",
            (*evidence, f"pid {p.pid} is dead, {why}"),
            certain=certain,
        )
        for p in index.children(stand.process)
        if p.state == "Z"
    ]


def seen_in(stand: Stand) -> str:
    """The frame that shows it."""
    frame = stand.wait.frame or stand.wait.place
    return f"pid {stand.process.pid}: {frame}" if frame else f"pid {stand.process.pid}"
