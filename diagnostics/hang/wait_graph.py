"""Build the wait graph: which process waits for which, by sockets, pipes, locks, children and collectives."""

from __future__ import annotations

from collections.abc import Iterable

from diagnostics.hang.blocking_calls import COMPUTING, IDLE, KINDS, frame_text
from diagnostics.hang.blocking_thread import BlockedState
from diagnostics.hang.collectives import collective_edges
from diagnostics.hang.job_index import JobIndex, port_of
from diagnostics.hang.snapshot import Process, Socket, Thread
from diagnostics.hang.verdict import Edge

_NO_EDGES = ("dead", "stopped", "kernel", "input", *COMPUTING)
_MAY_WAIT_FOR_DEAD_CHILD = ("sleep", "event", "lock", "processes_lock", "native")
_RING_MEMORY = "/psm_"


def build_wait_graph(index: JobIndex) -> dict[str, list[Edge]]:
    """Return all edges by the key of the waiting process."""
    graph: dict[str, list[Edge]] = {key: [] for key in index.states}
    for key, edge in collective_edges(index):
        graph[key].append(edge)
    for key, state in index.states.items():
        if not graph[key]:
            graph[key] = _edges_of(index, state)
    return graph


def _edges_of(index: JobIndex, state: BlockedState) -> list[Edge]:
    thread, kind = state.thread, state.kind
    if thread is None or kind in _NO_EDGES:
        return []
    if kind in IDLE:
        return _forwarded_requests(index, state)
    edges = _descriptor_edges(index, state, thread)
    if not edges and kind in _BY_KIND:
        edges = _BY_KIND[kind](index, state, thread)
    if not edges and kind in _MAY_WAIT_FOR_DEAD_CHILD:
        edges = _dead_processes(state, "has not noticed the end of", index.children(state.process))
    if not edges and kind == "socket" and index.waits_for_itself(state):
        siblings = [
            process
            for process in index.snapshot.processes
            if (process.host, process.ppid) == (state.process.host, state.process.ppid)
        ]
        edges = _dead_processes(state, "waits in its own store; its sibling is", siblings)
    in_ring = kind == "ring_read" and any(_RING_MEMORY in name for name in state.process.shared)
    unknown_peer = (kind == "socket" and not thread.waits_fds) or (
        not in_ring and _waits_for_library_thread(state.process, thread)
    )
    return edges or (_any_peer(index, state) if unknown_peer else [])


def _edge(
    state: BlockedState,
    target: Process,
    text: str,
    evidence: Iterable[str],
    *,
    needs: str = "any",
    certain: bool = True,
) -> Edge:
    return Edge(
        state.process.key, target.key, state.kind, target.label, text, tuple(evidence), needs, certain
    )


def _frame_evidence(state: BlockedState) -> str:
    frame = state.call.frame or state.call.caller
    return f"pid {state.process.pid}: {frame_text(frame)}" if frame else f"pid {state.process.pid}"


def _parent_evidence(child: Process) -> str:
    return f"/proc/{child.pid}/stat: its parent is {child.ppid}"


def _dead_processes(state: BlockedState, text: str, candidates: list[Process]) -> list[Edge]:
    return [
        _edge(state, process, text, (_state_evidence(process),), certain=False)
        for process in candidates
        if process.state == "Z"
    ]


def _state_evidence(process: Process) -> str:
    return f"/proc/{process.pid}/stat: state {process.state}, its parent is {process.ppid}"


# Sockets and pipes.


def _descriptor_edges(index: JobIndex, state: BlockedState, thread: Thread) -> list[Edge]:
    """Return edges to the processes at the other end of each descriptor that the system call waits for."""
    process = state.process
    edges: list[Edge] = []
    for fd in thread.waits_fds:
        item = next((item for item in process.fds if item.fd == fd), None)
        if item is None:
            continue
        if item.kind == "pipe":
            edges += _pipe_edges(index, state, thread, fd)
        socket = index.socket(process, fd)
        if socket is not None and state.kind not in ("data_loader", "loop"):
            edges += _socket_edges(index, state, thread, fd, socket)
    return edges


def _socket_edges(
    index: JobIndex, state: BlockedState, thread: Thread, fd: int, socket: Socket
) -> list[Edge]:
    process = state.process
    ends = (
        f"fd/{fd} is a {socket.kind} socket {socket.local} to {socket.remote or 'its peer'} ({socket.state})"
    )
    evidence = [_call_evidence(process, thread, fd), ends]
    peers = index.peers(process, socket)
    edges = [
        _edge(state, peer, _request_text(state), [*evidence, _end_evidence(process, socket, peer)])
        for peer in peers
    ]
    if peers:
        return edges
    if socket.kind == "unix":
        return _dead_children(index, state, evidence, certain=True)
    # A listening or unconnected socket has no peer: its address is 0.0.0.0:0.
    connected = socket.state != "LISTEN" and port_of(socket.remote)
    if not connected or index.connects_to_itself(process, socket):
        return []
    label = f"the process at {socket.remote}"
    return [
        Edge(process.key, f"tcp {socket.remote}", state.kind, label, _request_text(state), tuple(evidence))
    ]


def _request_text(state: BlockedState) -> str:
    if state.kind == "connect":
        return "waits for a connection to be accepted by"
    return f"{KINDS[state.kind]} from"


def _end_evidence(process: Process, socket: Socket, peer: Process) -> str:
    if socket.peer:
        return f"whose other end is open in pid {peer.pid}"
    if peer.host != process.host:
        return f"whose other end is open in pid {peer.pid} on {peer.host}"
    return f"pid {peer.pid} listens there, and has not accepted it"


def _call_evidence(process: Process, thread: Thread, fd: int) -> str:
    return f"/proc/{process.pid}/task/{thread.tid}/syscall: {thread.syscall} of descriptor {fd}"


def _pipe_edges(index: JobIndex, state: BlockedState, thread: Thread, fd: int) -> list[Edge]:
    process = state.process
    item = next(item for item in process.fds if item.fd == fd)
    writes = thread.syscall in ("write", "writev")
    needed = "r" if writes else "w"
    peers = {
        owner.key: owner
        for owner, end in index.owners.get((process.host, item.inode), ())
        if needed in end.mode and owner.key != process.key
    }
    evidence = (_call_evidence(process, thread, fd), f"fd/{fd} is pipe:[{item.inode}]")
    text = "waits for room in the pipe that is read by" if writes else "waits for data in a pipe from"
    edges = [
        _edge(state, peer, text, (*evidence, f"whose other end is open in pid {peer.pid}"))
        for peer in peers.values()
    ]
    return edges if writes else edges + _dead_children(index, state, evidence, certain=not peers)


def _dead_children(
    index: JobIndex, state: BlockedState, evidence: Iterable[str], *, certain: bool
) -> list[Edge]:
    """Return edges to dead children whose end of the pipe their parent has open itself, so that it never ends."""
    reason = f"and pid {state.process.pid} has the other end open itself, so the pipe never ends"
    return [
        _edge(
            state,
            child,
            "waits for data in a pipe from",
            (*evidence, f"pid {child.pid} is dead, {reason}"),
            certain=certain,
        )
        for child in index.children(state.process)
        if child.state == "Z"
    ]


def _waits_for_library_thread(process: Process, thread: Thread) -> bool:
    """Return whether a thread waits for its library's own threads, as with ZMQ: these have the connection."""
    kinds = [item.kind for item in process.fds if item.fd in thread.waits_fds]
    return bool(kinds) and all(kind == "other" for kind in kinds)


def _any_peer(index: JobIndex, state: BlockedState) -> list[Edge]:
    """Return edges to the other ends of all connections, where it is not known which one it waits for."""
    process = state.process
    edges: dict[str, Edge] = {}
    for item in process.fds:
        socket = index.socket(process, item.fd)
        if socket is None or socket.state != "ESTABLISHED":
            continue
        for peer in index.peers(process, socket):
            where = f"fd/{item.fd}: a {socket.kind} socket {socket.local or socket.remote}".rstrip()
            evidence = (_frame_evidence(state), f"{where}, whose other end is open in pid {peer.pid}")
            edges.setdefault(
                peer.key, _edge(state, peer, "waits for a message from", evidence, certain=False)
            )
    return list(edges.values())


def _forwarded_requests(index: JobIndex, state: BlockedState) -> list[Edge]:
    """Return edges of an idle event loop with an open request: its own requests, and work given to a child."""
    process = state.process
    if state.kind == "supervise" or not index.open_requests(process):
        return []
    edges = []
    for item, socket in index.sent_requests(process):
        age = f"{socket.sent_s:.0f} s ago" if socket.sent_s is not None else "before"
        evidence = (f"fd/{item.fd}: {socket.local} to {socket.remote}, request {age}, no response since",)
        edges += [
            _edge(state, peer, "sent a request, and has no response from", evidence, certain=False)
            for peer in index.peers(process, socket)
        ]
    targets = {edge.target for edge in edges}
    for child in index.children(process):
        if child.key not in targets and index.states[child.key].kind not in (*IDLE, "unseen"):
            edges.append(_edge(state, child, "passed it to", (_parent_evidence(child),), certain=False))
    return edges


# Children, rings, locks, Ray.


def _child_edges(index: JobIndex, state: BlockedState, _: Thread) -> list[Edge]:
    children = index.children(state.process)
    return [
        _edge(
            state,
            child,
            f"{KINDS[state.kind]}:",
            (_frame_evidence(state), _parent_evidence(child)),
            needs="all",
            certain=len(children) == 1,
        )
        for child in children
    ]


def _loader_edges(index: JobIndex, state: BlockedState, thread: Thread) -> list[Edge]:
    children = index.children(state.process)
    workers = [
        child
        for child in children
        if child.role == "data loader worker" or index.states[child.key].kind in ("dead", "stopped", "unseen")
    ]
    return [
        _edge(state, child, "waits for a batch from", (_frame_evidence(state),), certain=len(workers) == 1)
        for child in workers or children
    ] or _semaphore_edges(index, state, thread)


def _ring_edges(index: JobIndex, state: BlockedState, _: Thread) -> list[Edge]:
    """Return edges of a ring buffer in shared memory: its readers are the workers that the writer started."""
    process = state.process
    memory = {name for name in process.shared if _RING_MEMORY in name}
    sharing = [p for p in index.snapshot.processes if p.key != process.key and memory & set(p.shared)]
    children = index.children(process)
    peers = [p for p in children if p.python] or [p for p in sharing if p.ppid != process.ppid]
    # A worker whose engine waits for its reply waits for the next call: the reply, or the call, was lost.
    if not children and all(index.states[p.key].kind == state.kind == "ring_read" for p in peers):
        return []
    reads = state.kind == "ring_read"
    text = "waits for a reply from" if reads else "waits for room in the ring buffer that is read by"
    names = sorted(name.partition("#")[0] for name in memory)[:1]
    evidence = (_frame_evidence(state), *(f"both have {name} mapped" for name in names))
    return [_edge(state, p, text, evidence, needs="all") for p in peers or sharing]


def _semaphore_edges(index: JobIndex, state: BlockedState, thread: Thread) -> list[Edge]:
    """Return edges to all processes that map the semaphore: one of them owns it, but the kernel does not show which."""
    if not thread.futex.startswith("sem:"):
        return []
    inode = thread.futex.removeprefix("sem:")
    edges = []
    for process in index.snapshot.processes:
        partner = index.states[process.key].thread
        waits_too = partner is not None and partner.futex == thread.futex
        if process.key == state.process.key or waits_too:
            continue
        if any(name.endswith(f"#{inode}") for name in process.shared):
            task = f"/proc/{state.process.pid}/task/{thread.tid}/syscall"
            evidence = (
                f"{task}: futex in a semaphore (inode {inode})",
                f"/proc/{process.pid}/maps has it too",
            )
            edges.append(
                _edge(state, process, "waits for a lock that may be held by", evidence, certain=False)
            )
    return edges


def _file_lock_edges(index: JobIndex, state: BlockedState, thread: Thread) -> list[Edge]:
    process = state.process
    inodes = {item.inode for item in process.fds if item.fd in thread.waits_fds and item.kind == "file"}
    library = any("filelock" in frame.path or "portalocker" in frame.path for frame in thread.frames)
    edges = []
    for lock in index.snapshot.locks:
        owner = index.process(f"{lock.host}/{lock.pid}")
        if lock.waiting or owner is None or owner.key == process.key or lock.host != process.host:
            continue
        certain = lock.inode in inodes
        if certain or (library and not inodes and lock.path.endswith(".lock")):
            name = lock.path.rpartition("/")[2] or f"inode {lock.inode}"
            evidence = (
                _frame_evidence(state),
                f"/proc/locks: {lock.kind} of inode {lock.inode} by pid {lock.pid}",
            )
            text = f"waits for the lock of the file {name}, which is held by"
            edges.append(_edge(state, owner, text, evidence, certain=certain))
    return edges


def _ray_edges(index: JobIndex, state: BlockedState, _: Thread) -> list[Edge]:
    """Return edges to actors that run a method, those first that a connection goes to."""
    process = state.process
    actors = [p for p in index.snapshot.processes if p.role == "Ray actor" and p.key != process.key]
    running = [
        p
        for p in actors
        if "." in p.title.partition("::")[2].split(" ")[0] or index.states[p.key].kind not in IDLE
    ]
    nearby = {p.key for _, s in index.open_connections(process) for p in index.peers(process, s)}
    chosen = [p for p in running if p.key in nearby] or running
    # An actor with an idle loop awaits another one.
    stuck = [p for p in chosen if index.states[p.key].kind not in IDLE]
    if state.loop_blocked and not stuck:
        return []  # no result reaches a loop that is blocked
    return [
        _edge(
            state,
            p,
            "waits for a result from",
            (_frame_evidence(state), f"its title says that it runs {p.title.partition('::')[2][:60]}"),
            needs="all",
            certain=False,
        )
        for p in stuck or chosen
    ]


_BY_KIND = {
    "child": _child_edges, "start": _child_edges, "pool": _child_edges, "future": _child_edges,
    "data_loader": _loader_edges, "ray": _ray_edges, "ring_read": _ring_edges, "ring_write": _ring_edges,
    "processes_lock": _semaphore_edges, "processes_queue": _semaphore_edges, "file_lock": _file_lock_edges,
}  # fmt: skip
