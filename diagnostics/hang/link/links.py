"""Edges that system calls, sockets, pipes, locks and children give: what one process waits for in another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.hang import waits
from diagnostics.hang.link import ends
from diagnostics.hang.link.collectives import edges as collective_edges

if TYPE_CHECKING:
    from diagnostics.hang.link.graph import Edge, Index
    from diagnostics.hang.snapshot import Process, Thread
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
        "ring_read": _ring, "ring_write": _ring, "processes_lock": _sharers, "processes_queue": _sharers,
        "file_lock": _file_lock,
    }  # fmt: skip
    found = ends.descriptors(index, stand, thread)
    if not found and kind in by_kind:
        found = by_kind[kind](index, stand, thread)
    if not found and kind in ("sleep", "event", "lock", "processes_lock", "native"):
        found = _dead(stand, "has not looked at its child", index.children(stand.process))
    if not found and kind == "socket" and index.inward(stand):
        beside = [
            p
            for p in index.snapshot.processes
            if (p.host, p.ppid) == (stand.process.host, stand.process.ppid)
        ]
        found = _dead(stand, "waits in its own store, and beside it is", beside)
    by_ring = kind == "ring_read" and any("/psm_" in name for name in stand.process.shared)
    mailbox = not by_ring and ends.mailbox(stand.process, thread)
    if not found and ((kind == "socket" and not thread.waits_fds) or mailbox):
        found = ends.any_peer(index, stand)
    return found


def _dead(stand: Stand, text: str, of: list[Process]) -> list[Edge]:
    """Those of them that are dead."""
    return [
        ends.edge(
            stand, p, text, (f"/proc/{p.pid}/stat: state {p.state}, its parent is {p.ppid}",), certain=False
        )
        for p in of
        if p.state == "Z"
    ]


def _child(index: Index, stand: Stand, _: Thread) -> list[Edge]:
    children = index.children(stand.process)
    return [
        ends.edge(
            stand,
            child,
            f"{waits.KINDS[stand.kind]}:",
            (ends.seen_in(stand), f"/proc/{child.pid}/stat: its parent is {child.ppid}"),
            needs="all",
            certain=len(children) == 1,
        )
        for child in children
    ]


def _loaders(index: Index, stand: Stand, thread: Thread) -> list[Edge]:
    workers = [
        p
        for p in index.children(stand.process)
        if p.role == "data loader worker" or index.stands[p.key].kind in ("dead", "stopped", "unseen")
    ]
    return [
        ends.edge(stand, p, "waits for a batch of its", (ends.seen_in(stand),), certain=len(workers) == 1)
        for p in workers or index.children(stand.process)
    ] or _sharers(index, stand, thread)


def _ring(index: Index, stand: Stand, _: Thread) -> list[Edge]:
    """Of a ring in shared memory: its readers are the workers that the writer started."""
    process = stand.process
    mine = {name for name in process.shared if "/psm_" in name}
    sharing = [p for p in index.snapshot.processes if p.key != process.key and mine & set(p.shared)]
    below = [p for p in index.children(process) if p.python] or [p for p in sharing if p.ppid != process.ppid]
    # A worker whose engine waits for its reply waits for the next call: the reply, or the call, is lost.
    if not index.children(process) and all(
        index.stands[p.key].kind == stand.kind == "ring_read" for p in below
    ):
        return []
    what = (
        "waits for an answer of its"
        if stand.kind == "ring_read"
        else "waits for room in the ring that is read by"
    )
    shared = sorted(name.partition("#")[0] for name in mine)[:1]
    evidence = (ends.seen_in(stand), *(f"both have {name} mapped" for name in shared))
    return [ends.edge(stand, p, what, evidence, needs="all") for p in below or sharing]


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
                ends.edge(
                    stand,
                    p,
                    "waits for a lock that may be held by",
                    (
                        f"/proc/{stand.process.pid}/task/{thread.tid}/syscall: futex in a semaphore (inode {inode})",
                        f"/proc/{p.pid}/maps has it too",
                    ),
                    certain=False,
                )
            )
    return found


def _file_lock(index: Index, stand: Stand, thread: Thread) -> list[Edge]:
    process = stand.process
    inodes = {d.inode for d in process.fds if d.fd in thread.waits_fds and d.kind == "file"}
    library = any("filelock" in frame.path or "portalocker" in frame.path for frame in thread.frames)
    found = []
    for lock in index.snapshot.locks:
        owner = next((p for p in index.snapshot.processes if p.pid == lock.pid and p.host == lock.host), None)
        if lock.waiting or owner is None or owner.key == process.key or lock.host != process.host:
            continue
        known = lock.inode in inodes
        if known or (library and not inodes and lock.path.endswith(".lock")):
            name = lock.path.rpartition("/")[2] or f"inode {lock.inode}"
            found.append(
                ends.edge(
                    stand,
                    owner,
                    f"waits for the lock of the file {name}, which is held by",
                    (
                        ends.seen_in(stand),
                        f"/proc/locks: {lock.kind} of inode {lock.inode} by pid {lock.pid}",
                    ),
                    certain=known,
                )
            )
    return found


def _ray(index: Index, stand: Stand, _: Thread) -> list[Edge]:
    """Actors that run a method: first those that a connection goes to."""
    process = stand.process
    actors = [p for p in index.snapshot.processes if p.role == "Ray actor" and p.key != process.key]
    running = [
        p
        for p in actors
        if "." in p.title.partition("::")[2].split(" ")[0] or index.stands[p.key].kind not in waits.IDLE
    ]
    near = {p.key for _, s in index.open_sockets(process) for p in index.peers(process, s)}
    chosen = [p for p in running if p.key in near] or running
    # Whose loop has nothing to do awaits another one.
    stuck = [p for p in chosen if index.stands[p.key].kind not in waits.IDLE]
    if stand.loop_blocked and not stuck:
        return []  # whatever it asked for can't be answered to a loop that stands
    chosen = stuck or chosen
    return [
        ends.edge(
            stand,
            p,
            "waits for an answer of",
            (ends.seen_in(stand), f"its title says that it runs {p.title.partition('::')[2][:60]}"),
            needs="all",
            certain=False,
        )
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
            ends.edge(stand, p, "asked, and has no answer of", evidence, certain=False)
            for p in index.peers(process, socket)
        ]
    told = {edge.target for edge in found}
    for child in index.children(process):
        if child.key not in told and index.stands[child.key].kind not in (*waits.IDLE, "unseen"):
            found.append(
                ends.edge(
                    stand,
                    child,
                    "passed it to",
                    (f"/proc/{child.pid}/stat: its parent is {child.ppid}",),
                    certain=False,
                )
            )
    return found
