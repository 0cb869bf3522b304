"""Edges that system calls, sockets, pipes, locks and children give: what one process waits for in another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.hang import waits
from diagnostics.hang.collectives import edges as collective_edges
from diagnostics.hang.graph import Edge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.hang.graph import Index
    from diagnostics.hang.snapshot import Process, Socket, Thread
    from diagnostics.hang.stands import Stand


def edges(index: Index) -> dict[str, list[Edge]]:
    """All edges, by who waits."""
    found: dict[str, list[Edge]] = {key: [] for key in index.stands}
    for key, edge in collective_edges(index):
        found[key].append(edge)
    for key, stand in index.stands.items():
        if not found[key]:
            found[key] = _of(index, stand)
    return found


def _of(index: Index, stand: Stand) -> list[Edge]:
    thread, kind = stand.thread, stand.kind
    if thread is None or kind in ("dead", "stopped", "kernel", "input", *waits.BUSY):
        return []
    if kind in waits.IDLE:
        return _beyond(index, stand)
    by_kind = {
        "child": _child, "start": _child, "pool": _child, "future": _child, "data_loader": _loaders, "ray": _ray,
        "ring_read": _ring, "ring_write": _ring, "processes_lock": _sharers, "processes_queue": _sharers, "file_lock": _file_lock,
    }  # fmt: skip
    found = _descriptors(index, stand, thread)
    if not found and kind in by_kind:
        found = by_kind[kind](index, stand, thread)
    if not found and kind in ("sleep", "event", "lock", "native"):
        found = [
            _edge(stand, p, "has not looked at its child", (f"/proc/{p.pid}/stat: state {p.state}, its parent is {p.ppid}",), certain=False)  # fmt: skip
            for p in index.children(stand.process) if p.state in ("Z", "X")
        ]
    if not found and kind == "socket" and not thread.waits_fds or _mailbox(stand.process, thread):
        found = _any_peer(index, stand)
    return found


def _asked(stand: Stand) -> str:
    if stand.kind == "connect":
        return "waits to be connected to"
    return f"waits for {waits.KINDS[stand.kind].removeprefix('waits for ')} of"


def _end(index: Index, process: Process, socket: Socket, peer: Process) -> str:
    if socket.peer:
        return f"whose other end is open in pid {peer.pid}"
    if peer.host != process.host:
        return f"whose other end is open in pid {peer.pid} on {peer.host}"
    return f"pid {peer.pid} listens there, and has not accepted it"


def _mailbox(process: Process, thread: Thread) -> bool:
    """Whether a thread waits for its library's own threads, as ZMQ's sockets do: the connection is theirs."""
    kinds = [d.kind for d in process.fds if d.fd in thread.waits_fds]
    return bool(kinds) and all(kind == "other" for kind in kinds)


def _any_peer(index: Index, stand: Stand) -> list[Edge]:
    """Who is at the other end of any of its connections, where it is not known which one it waits for."""
    process = stand.process
    found: dict[str, Edge] = {}
    for item in process.fds:
        socket = index.socket(process, item.fd)
        if socket is None or socket.state != "ESTABLISHED":
            continue
        for peer in index.peers(process, socket):
            where = f"fd/{item.fd}: a {socket.kind} socket {socket.local or socket.remote}".rstrip()
            evidence = (_frame(stand), f"{where}, whose other end is open in pid {peer.pid}")
            found.setdefault(peer.key, _edge(stand, peer, "waits for a message of", evidence, certain=False))
    return list(found.values())


def _edge(stand: Stand, target: Process, text: str, evidence: Iterable[str], *, needs: str = "any", certain: bool = True) -> Edge:  # fmt: skip
    return Edge(
        stand.process.key, target.key, stand.kind, target.label, text, tuple(evidence), needs, certain
    )


def _call(process: Process, thread: Thread, fd: int) -> str:
    return f"/proc/{process.pid}/task/{thread.tid}/syscall: {thread.syscall} of descriptor {fd}"


def _descriptors(index: Index, stand: Stand, thread: Thread) -> list[Edge]:
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
            found.append(_edge(stand, peer, _asked(stand), [*evidence, _end(index, process, socket, peer)]))  # fmt: skip
        if socket.kind == "unix" and not peers:
            found += _of_dead(index, stand, evidence, certain=True)
        if not peers and socket.kind == "tcp" and not index.own(process, socket):
            found.append(
                Edge(process.key, f"tcp {socket.remote}", stand.kind, f"the process at {socket.remote}",
                     _asked(stand), tuple(evidence))
            )  # fmt: skip
    return found


def _pipe(index: Index, stand: Stand, thread: Thread, fd: int) -> list[Edge]:
    process = stand.process
    item = next(d for d in process.fds if d.fd == fd)
    writes = thread.syscall in ("write", "writev")
    other = "r" if writes else "w"
    there = {
        p.key: p for p, d in index.owners.get((process.host, item.inode), ()) if other in d.mode and p.key != process.key
    }  # fmt: skip
    evidence = (_call(process, thread, fd), f"fd/{fd} is pipe:[{item.inode}]")
    verb = "waits for room in the pipe that is read by" if writes else "waits for something in the pipe of"
    found = [
        _edge(stand, p, verb, (*evidence, f"whose other end is open in pid {p.pid}")) for p in there.values()
    ]
    if not writes:
        found += _of_dead(index, stand, evidence, certain=not there)
    return found


def _of_dead(index: Index, stand: Stand, evidence: Iterable[str], *, certain: bool) -> list[Edge]:
    """A dead child, while its parent has the other end open itself: the end of the pipe never shows."""
    why = f"and pid {stand.process.pid} has the other end open itself, so that the pipe never ends"
    return [
        _edge(stand, p, "waits for something in a pipe of", (*evidence, f"pid {p.pid} is dead, {why}"), certain=certain)
        for p in index.children(stand.process)
        if p.state in ("Z", "X")
    ]


def _child(index: Index, stand: Stand, _: Thread) -> list[Edge]:
    children = index.children(stand.process)
    return [
        _edge(stand, child, f"{waits.KINDS[stand.kind]}:", (_frame(stand), f"/proc/{child.pid}/stat: its parent is {child.ppid}"), needs="all", certain=len(children) == 1)  # fmt: skip
        for child in children
    ]


def _loaders(index: Index, stand: Stand, thread: Thread) -> list[Edge]:
    workers = [p for p in index.children(stand.process) if p.role == "data loader worker" or index.stands[p.key].kind in ("dead", "stopped", "unseen")]  # fmt: skip
    return [
        _edge(stand, p, "waits for a batch of its", (_frame(stand),), certain=len(workers) == 1)
        for p in workers or index.children(stand.process)
    ] or _sharers(index, stand, thread)


def _ring(index: Index, stand: Stand, _: Thread) -> list[Edge]:
    """Of a ring in shared memory: its readers are the workers that the writer started."""
    process = stand.process
    mine = {name for name in process.shared if "/psm_" in name}
    sharing = [p for p in index.snapshot.processes if p.key != process.key and mine & set(p.shared)]
    below = [p for p in index.children(process) if p.python] or [p for p in sharing if p.ppid != process.ppid]
    what = "waits for an answer of its" if stand.kind == "ring_read" else "waits for room in the ring that is read by"  # fmt: skip
    shared = sorted(name.partition("#")[0] for name in mine)[:1]
    evidence = (_frame(stand), *(f"both have {name} mapped" for name in shared))
    return [_edge(stand, p, what, evidence, needs="all") for p in below or sharing]


def _sharers(index: Index, stand: Stand, thread: Thread) -> list[Edge]:
    """Who has the semaphore mapped: the holder is one of them, and nothing says which."""
    inode = thread.futex.removeprefix("sem:") if thread.futex.startswith("sem:") else ""
    found = []
    for p in index.snapshot.processes:
        other = index.stands[p.key].thread
        if p.key == stand.process.key or (other and other.futex == thread.futex and thread.futex):
            continue
        if inode and any(name.endswith(f"#{inode}") for name in p.shared):
            found.append(
                _edge(stand, p, "waits for a lock that may be held by", (f"/proc/{stand.process.pid}/task/{thread.tid}/syscall: futex in a semaphore (inode {inode})", f"/proc/{p.pid}/maps has it too"), certain=False)  # fmt: skip
            )
    return found


def _file_lock(index: Index, stand: Stand, thread: Thread) -> list[Edge]:
    process = stand.process
    inodes = {d.inode for d in process.fds if d.fd in thread.waits_fds and d.kind == "file"}
    library = any("filelock" in frame.path or "portalocker" in frame.path for frame in thread.frames)
    found = []
    for lock in index.snapshot.locks:
        owner = next((p for p in index.snapshot.processes if p.pid == lock.pid and p.host == process.host), None)
        if lock.waiting or owner is None or owner.key == process.key:
            continue
        known = lock.inode in inodes
        if known or (library and not inodes and lock.path.endswith(".lock")):
            name = lock.path.rpartition("/")[2] or f"inode {lock.inode}"
            found.append(
                _edge(stand, owner, f"waits for the lock of the file {name}, which is held by", (_frame(stand), f"/proc/locks: {lock.kind} of inode {lock.inode} by pid {lock.pid}"), certain=known)  # fmt: skip
            )
    return found


def _ray(index: Index, stand: Stand, _: Thread) -> list[Edge]:
    """Actors that run a method: first those that a connection goes to."""
    process = stand.process
    actors = [p for p in index.snapshot.processes if p.role == "Ray actor" and p.key != process.key]
    running = [p for p in actors if "." in p.title.partition("::")[2].split(" ")[0] or index.stands[p.key].kind not in waits.IDLE]  # fmt: skip
    near = {p.key for _, s in index.open_sockets(process) for p in index.peers(process, s)}
    chosen = [p for p in running if p.key in near] or running
    return [
        _edge(stand, p, "waits for an answer of", (_frame(stand), f"its title says that it runs {p.title.partition('::')[2][:60]}"), needs="all", certain=False)  # fmt: skip
        for p in chosen
    ]


def _beyond(index: Index, stand: Stand) -> list[Edge]:
    """What an event loop that sleeps has asked of others, or started: its tasks cannot be seen from outside."""
    process = stand.process
    if stand.kind == "supervise" or not index.asked(process):
        return []
    found = []
    for item, socket in index.asking(process):
        age = f"{socket.sent_s:.0f} s ago" if socket.sent_s is not None else "before"
        evidence = (f"fd/{item.fd}: {socket.local} to {socket.remote}, asked {age}, no answer since",)
        found += [
            _edge(stand, p, "asked, and has no answer of", evidence, certain=False)
            for p in index.peers(process, socket)
        ]
    told = {edge.target for edge in found}
    for child in index.children(process):
        if child.key not in told and index.stands[child.key].kind not in (*waits.IDLE, "unseen"):
            found.append(_edge(stand, child, "passed it to", (f"/proc/{child.pid}/stat: its parent is {child.ppid}",), certain=False))  # fmt: skip
    return found


def _frame(stand: Stand) -> str:
    frame = stand.wait.frame or stand.wait.place
    return f"pid {stand.process.pid}: {frame}" if frame else f"pid {stand.process.pid}"
