"""Build the wait graph of a job: an edge from each waiting process to the processes that can end its wait.

`build_wait_graph` returns the edges by process. They follow sockets, pipes, locks, shared memory, children and Ray
actors; `collectives` adds those between ranks. An edge is uncertain if its target was only inferred. The number of
edges is limited.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice

from diagnostics.hang.blocking_calls import BlockedState, frame_text
from diagnostics.hang.collectives import MAX_EDGES, collective_edges
from diagnostics.hang.job_index import JobIndex, port_of
from diagnostics.hang.snapshot import Descriptor, Process, Socket
from diagnostics.hang.verdict import Edge
from diagnostics.hang.wait_kinds import COMPUTING, IDLE, WITHIN_PROCESS
from diagnostics.output.redact import truncate

_NO_EDGES = ("dead", "stopped", "kernel", "input", *COMPUTING)
_LOCKS = ("lock", "processes_lock", "shared_event")
_MAY_WAIT_FOR_DEAD_CHILD = (*_LOCKS, "sleep", "event", "native", "barrier", "tasks_done")
_AT_SEMAPHORE = {
    "shared_event": "waits for an event that may be set by",
    "processes_queue_full": "waits for room in a full queue between processes, which may be read by",
}
_RING_MEMORY = "/psm_"  # in the names of Python's shared memory, which vLLM's ring buffers use
_MAX_MAPPINGS = 512
"""Mappings of ring buffers that are followed from one process."""
_MIN_EDGES = 16
"""Limit of edges of a process when the graph already has MAX_EDGES: a dump can claim any number of peers."""


def build_wait_graph(index: JobIndex) -> dict[str, list[Edge]]:
    """Return the wait-for edges by the key of the waiting process; edges between ranks replace its other edges."""
    graph: dict[str, list[Edge]] = {key: [] for key in index.states}
    for edge in collective_edges(index):
        graph[edge.source].append(edge)
    total = sum(map(len, graph.values()))
    for key, state in index.states.items():
        if not graph[key] and state.kind not in _NO_EDGES:
            limit = max(_MIN_EDGES, MAX_EDGES - total)
            graph[key] = _Waiter(index, state, limit).edges()[:limit]
            total += len(graph[key])
    return graph


class _Waiter:
    """Finds the processes that can end the wait of one process."""

    def __init__(self, index: JobIndex, state: BlockedState, limit: int) -> None:
        self.index, self.state, self.limit = index, state, limit
        self.process, self.thread, self.kind = state.process, state.thread, state.kind
        self.children = index.children(self.process)
        frame = state.call.frame or state.call.caller
        text = self.process.pid_text
        self.frame = f"{text}: {frame_text(frame)}" if frame else text
        self.syscall_file = f"/proc/{self.process.pid}/task/{self.thread.tid}/syscall"

    def edges(self) -> list[Edge]:
        """Return edges by the first of these that gives any.

        They are: descriptors, `ended_by`, dead children, siblings at a named pipe, dead siblings, other peers.

        An idle process has edges only for requests that it may have forwarded, or while clients wait to be accepted.
        """
        filters = not self.process.python and self.thread.syscall == "read"
        if self.kind == "idle" and (filters or self.index.has_backlog(self.process)):
            return self.descriptor_edges()  # a part of a shell's pipeline, or serves one client at a time
        if self.kind in IDLE:
            return self.forwarded_request_edges()
        edges = self.descriptor_edges()
        for name in self.state.call.wait.ended_by:
            edges = edges or (_FINDERS[name](self) if name in _FINDERS else [])
        if not edges and self.kind in _MAY_WAIT_FOR_DEAD_CHILD:
            edges = self.dead_process_edges("has not noticed the end of", self.children)
        siblings = self.index.families[self.process.host, self.process.ppid]
        if not edges and self.kind == "barrier" and self.thread.futex.startswith("sem:"):
            edges = self.dead_process_edges("waits at the barrier for", siblings, self.frame)
        if not edges and "named pipe" in self.state.call.detail:
            text = f"waits in the open of {self.thread.opens} for"
            details = {p: self.index.states[p.key].call.detail for p in siblings if p.key != self.process.key}
            openers = [p for p, detail in details.items() if "named pipe" in detail]
            edges = [self.edge(p, text, self.syscall_file, certain=False) for p in openers]
        if self.kind in ("socket", "store_key") and self.index.waits_for_itself(self.state):
            edges = self.dead_process_edges("waits in its own store; its sibling is", siblings) or edges
        edges = edges or self.handler_edges()
        return edges or (self.connected_peer_edges() if self.has_unknown_peer() else [])

    def edge(self, to: Process, text: str, *evidence: str, needs: str = "any", certain: bool = True) -> Edge:
        return Edge(self.process.key, to.key, self.kind, to.label, text, evidence, needs, certain)

    def dead_process_edges(
        self, text: str, candidates: Iterable[Process], *evidence: str, certain: bool = False
    ) -> list[Edge]:
        """Return edges to those candidates that are dead (zombies)."""
        dead = [process for process in candidates if process.state == "Z"]
        return [self.edge(p, text, *evidence, _parent_text(p, "state Z, "), certain=certain) for p in dead]

    def dead_child_edges(self, *evidence: str, certain: bool) -> list[Edge]:
        """Return edges to dead children whose pipe never ends, because this process has the other end open too."""
        own_end = f"pid {self.process.pid} has the other end open itself, so it reads no end of the data"
        text = "waits for data from"
        return self.dead_process_edges(text, self.children, *evidence, own_end, certain=certain)

    # Sockets and pipes.

    def waited_descriptors(self) -> list[Descriptor]:
        waited = set(self.thread.waits_fds)
        return [item for item in self.process.fds if item.fd in waited]

    def descriptor_edges(self) -> list[Edge]:
        """Return edges to the processes at the other end of each descriptor that the system call waits for."""
        edges: list[Edge] = []
        for item in self.waited_descriptors():
            if len(edges) >= self.limit:
                break
            call = f"{self.syscall_file}: {self.thread.syscall} of descriptor {item.fd}"
            socket = self.index.socket(self.process, item.fd)
            if item.kind == "pipe":
                edges += self.pipe_edges(item, call)
            elif socket is not None and self.kind not in ("data_loader", "loop", "store_key"):
                edges += self.socket_edges(item, socket, call)
        return [edge for edge in edges if not self.index.reads_rest(self.state) or self.sends(edge.target)]

    def sends(self, key: str) -> bool:
        """Return whether a process may be in the middle of a message: it writes, works, or does not run."""
        if (state := self.index.states.get(key)) is None:
            return True
        writes = any(thread.syscall in ("write", "writev") for thread in state.process.threads)
        return writes or state.kind in ("dead", "stopped", "kernel", "unseen", *COMPUTING)

    def handler_edges(self) -> list[Edge]:
        """Return edges to the blocked clients of which other threads await requests, if none of them works or sleeps.

        A handler waits for an event, or for an item of a queue, that the request of another client brings. In a manager
        clients also hold the locks.
        """
        if self.kind not in WITHIN_PROCESS or (self.kind == "lock" and not self.state.serves_manager):
            return []
        threads = [
            t for t in self.process.threads if t.syscall in ("recvfrom", "read") and t is not self.thread
        ]
        awaited = {fd for thread in threads for fd in thread.waits_fds}
        sockets = [
            s for fd in awaited if (s := self.index.socket(self.process, fd)) and s.state == "ESTABLISHED"
        ]
        clients = {peer.key: peer for socket in sockets for peer in self.index.peers(self.process, socket)}
        kinds = {key: self.index.states[key].kind for key in clients}
        if {"sleep", *COMPUTING} & set(kinds.values()):
            return []
        text = f"{self.state.call.wait.text}, perhaps until the next request of"
        blocked = [client for key, client in clients.items() if kinds[key] not in (*IDLE, "dead", "unseen")]
        return [self.edge(client, text, self.frame, certain=False) for client in blocked]

    def socket_edges(self, item: Descriptor, socket: Socket, call: str) -> list[Edge]:
        """Return edges to the peers of a socket; without any, to dead children or to the remote address."""
        remote = socket.remote or "its peer"
        ends = f"fd/{item.fd} is a {socket.kind} socket {socket.local} to {remote} ({socket.state})"
        wait = self.state.call.wait.text
        text = "waits for a connection to be accepted by" if self.kind == "connect" else f"{wait} from"
        text = "sends data that is not read by" if self.kind == "socket_full" else text
        # A process that has both ends open inherited one of them, as others may have: the owner may be dead.
        owners = [owner.key for owner, _ in self.index.owners.get((self.process.host, socket.peer), ())]
        inherited = socket.kind == "unix" and self.process.key in owners
        peers = [(p, _end_evidence(self.process, socket, p)) for p in self.index.peers(self.process, socket)]
        edges = [self.edge(p, text, call, ends, end, certain=not inherited) for p, end in peers]
        if socket.kind == "unix" and (inherited or not peers):
            return edges + self.dead_child_edges(call, ends, certain=not peers)
        if edges:
            return edges
        # A listening or unconnected socket has no peer: its address is 0.0.0.0:0.
        connected = socket.state != "LISTEN" and port_of(socket.remote)
        if not connected or self.index.connects_to_itself(self.process, socket):
            return []
        label = f"the process at {socket.remote}"
        return [Edge(self.process.key, f"tcp {socket.remote}", self.kind, label, text, (call, ends))]

    def pipe_edges(self, item: Descriptor, call: str) -> list[Edge]:
        """Return edges to the processes at the other end of a pipe, and to dead children that had it."""
        writes = self.thread.syscall in ("write", "writev")
        ends = self.index.owners.get((self.process.host, item.inode), ())
        mode = "r" if writes else "w"
        peers = [p for p, end in ends if mode in end.mode and p.key != self.process.key]
        # Of several with the end, one that joins its children, or awaits a message of this process, only inherited it.
        peers = [p for p in peers if writes or not self.awaits_this(p)] or peers
        pipe = f"fd/{item.fd} is pipe:[{item.inode}]"
        # A descendant of an ended child may have inherited its output, which ends only with this process.
        outputs = {p.key for p, end in ends if end.fd in (1, 2) and p.ppid != self.process.pid}
        reads_output = self.kind == "child" or (self.kind == "pipe" and {p.key for p in peers} <= outputs)
        inherited = not writes and reads_output and all(child.state == "Z" for child in self.children)
        text = "waits for room in the pipe that is read by" if writes else "waits for data in a pipe from"
        targets = list({p.key: p for p in peers}.values())[: self.limit]
        edges = [self.edge(p, text, call, pipe, f"whose other end is open in pid {p.pid}") for p in targets]
        if self.kind == "processes_queue":  # any of them may put an item
            edges = [replace(edge, certain=False) for edge in edges]
        if inherited and edges:
            return [
                replace(edge, kind="pipe_end", text="waits for the end of a pipe kept open by")
                for edge in edges
            ]
        return edges if writes else edges + self.dead_child_edges(call, pipe, certain=not peers)

    def awaits_this(self, peer: Process) -> bool:
        """Return whether a process waits for its children, or for data in a pipe that this process can write to."""
        state = self.index.states[peer.key]
        pipes = {item.inode for item in peer.fds if item.fd in state.waited_fds and item.kind == "pipe"}
        return state.kind == "child" or any(i.inode in pipes and "w" in i.mode for i in self.process.fds)

    def has_unknown_peer(self) -> bool:
        """Return whether the peer is unknown because a library's own thread (as of ZMQ) reads the connection."""
        unknown = self.kind in ("socket", "rpc") and not self.thread.waits_fds
        in_ring = self.kind == "ring_read" and bool(self.ring_memory())
        return unknown or (not in_ring and {item.kind for item in self.waited_descriptors()} == {"other"})

    def connected_peer_edges(self) -> list[Edge]:
        """Return uncertain edges to the peers of the established connections."""
        edges: dict[str, Edge] = {}
        for item in self.process.fds:
            socket = self.index.socket(self.process, item.fd)
            if socket is None or socket.state != "ESTABLISHED":
                continue
            where = f"fd/{item.fd}: a {socket.kind} socket {socket.local or socket.remote}".rstrip()
            for peer in self.index.peers(self.process, socket):
                end = f"{where}, whose other end is open in pid {peer.pid}"
                edge = self.edge(peer, "waits for a message from", self.frame, end, certain=False)
                edges.setdefault(peer.key, edge)
        return list(edges.values())

    def forwarded_request_edges(self) -> list[Edge]:
        """Return edges of an idle process that owes a response, to those that it may have forwarded the request to.

        These are servers that have not answered a request of this process, and children that are not idle.
        """
        if self.kind == "supervise" or not self.index.open_requests(self.process):
            return []
        edges = []
        for item, socket in self.index.sent_requests(self.process):
            age = f"{socket.sent_s:.0f} s ago" if socket.sent_s is not None else "before"
            sent = f"fd/{item.fd}: {socket.local} to {socket.remote}, request {age}, no response since"
            text, peers = "sent a request, and has no response from", self.index.peers(self.process, socket)
            edges += [self.edge(peer, text, sent, certain=False) for peer in peers]
        targets = {edge.target for edge in edges}
        return edges + [
            self.edge(child, "passed it to", _parent_text(child), certain=False)
            for child in self.children
            if child.key not in targets and self.index.states[child.key].kind not in (*IDLE, "unseen")
        ]

    # Edges to the processes that can end a wait of each kind (`ended_by` in waits.toml).

    def child_edges(self) -> list[Edge]:
        """Return edges to the children; for a data loader, to its workers."""
        children, needs = self.children, "all"
        if self.kind == "data_loader":  # it is not known which worker has the next batch
            children, needs = [child for child in children if self.is_loader(child)] or children, "any"
        text, certain = f"{self.state.call.wait.text}:", len(children) == 1
        shown = children[: self.limit]
        return [self.edge(c, text, self.frame, _parent_text(c), needs=needs, certain=certain) for c in shown]

    def is_loader(self, child: Process) -> bool:
        """Return whether a child is a data loader's worker, or may be one that could not be inspected."""
        unseen = self.index.states[child.key].kind in ("dead", "stopped", "unseen")
        return unseen or child.role == "data loader worker"

    def ring_memory(self) -> set[str]:
        return {name for name in self.process.shared if _RING_MEMORY in name}

    def ring_edges(self) -> list[Edge]:
        """Return edges to the other end of a shared-memory ring buffer: Python children, else the other sharers."""
        memory = self.ring_memory()
        mappings = (p for name in sorted(memory) for p in self.index.sharing[self.process.host, name])
        by_key = {p.key: p for p in islice(mappings, _MAX_MAPPINGS)}
        sharing = sorted((p for p in by_key.values() if p.key != self.process.key), key=lambda p: p.pid)
        peers = [p for p in self.children if p.python] or [p for p in sharing if p.ppid != self.process.ppid]
        reads = self.kind == "ring_read"
        # A worker whose engine waits for its reply waits for the next call: the reply, or the call, was lost.
        if reads and not self.children and all(self.index.states[p.key].kind == "ring_read" for p in peers):
            return []
        text = "waits for a reply from" if reads else "waits for room in the ring buffer that is read by"
        mapped = [f"both have {name.partition('#')[0]} mapped" for name in sorted(memory)[:1]]
        targets = (peers or sharing)[: self.limit]
        return [self.edge(p, text, self.frame, *mapped, needs="all") for p in targets]

    def semaphore_edges(self) -> list[Edge]:
        """Return edges to the holders of the semaphore; if unknown, to those that map it without waiting for it."""
        if not self.thread.futex.startswith("sem:"):
            return []
        inode = self.thread.futex.removeprefix("sem:")
        call = f"{self.syscall_file}: futex in a semaphore (inode {inode})"
        holders = self.index.semaphore_holders(self.state)
        states = {
            p.key: self.index.states[p.key]
            for p in self.index.sharing.get((self.process.host, f"#{inode}"), ())
        }
        elsewhere = [key for key, state in states.items() if state.thread.futex != self.thread.futex]
        targets = [states[key].process for key in sorted(holders or elsewhere) if key in states]
        text = "waits for a lock that may be held by a process that has ended, or by"
        text = _AT_SEMAPHORE.get(self.kind, text)
        text = "waits for a lock that is held by" if holders else text
        others = [process for process in targets if process.key != self.process.key][: self.limit]
        mapped, certain = "/proc/{}/maps has it too", bool(holders)
        return [self.edge(p, text, call, mapped.format(p.pid), certain=certain) for p in others]

    def member_edges(self) -> list[Edge]:
        """Return edges to the processes that are not yet at the barrier, or that may set the key of the store."""
        mapped, family = (self.process.host, self.thread.futex.replace("sem:", "#")), self.process.ppid
        ranks = (p for p in self.index.snapshot.processes if p.job == self.process.job)
        members = ranks if self.kind == "store_key" else self.index.sharing.get(mapped, ())
        late = [p for p in members if self.index.states[p.key].kind not in (self.kind, "child", "supervise")]
        late = [p for p in late if p.ppid == family] or late  # their parent may be none
        needs = "all" if self.kind == "barrier" else "any"
        text = {"all": "waits at the barrier for", "any": "waits for a key of the store that may be set by"}[
            needs
        ]
        return [self.edge(p, text, self.frame, needs=needs, certain=False) for p in late[: self.limit]]

    def file_lock_edges(self) -> list[Edge]:
        """Return edges to the owners of the file locks that a process waits for."""
        edges: list[Edge] = []
        certain = any(item.kind == "file" for item in self.waited_descriptors())
        for lock in self.index.awaited_file_locks(self.state)[: self.limit + 1]:
            owner = self.index.process(f"{lock.host}/{lock.pid}")
            if owner is not None and owner is not self.process:
                name = lock.path.rpartition("/")[2] or f"inode {lock.inode}"
                text = f"waits for the lock of the file {name}, which is held by"
                holder = f"/proc/locks: {lock.kind} of inode {lock.inode} by pid {lock.pid}"
                edges.append(self.edge(owner, text, self.frame, holder, certain=certain))
        return edges

    def actor_edges(self) -> list[Edge]:
        """Return edges to Ray actors that run a method: to those connected to this process, else to all.

        Actors with an idle event loop count only if there are no other actors and this process's loop is not blocked.
        """
        running = [p for p in self.index.running_actors if p.key != self.process.key]
        connections = self.index.open_connections(self.process)
        nearby = {p.key for _, socket in connections for p in self.index.peers(self.process, socket)}
        candidates = [p for p in running if p.key in nearby] or running
        # An actor with an idle event loop awaits another actor.
        stuck = [p for p in candidates if self.index.states[p.key].kind not in IDLE]
        if self.state.loop_blocked and not stuck:
            return []  # no result reaches a loop that is blocked
        text = "waits for a result from"
        targets = (stuck or candidates)[: self.limit]
        titles = [(p, f"its title: {truncate(p.ray_method, 60)}") for p in targets]
        return [self.edge(p, text, self.frame, title, needs="all", certain=False) for p, title in titles]


_FINDERS: dict[str, Callable[[_Waiter], list[Edge]]] = {
    "child": _Waiter.child_edges, "actor": _Waiter.actor_edges,
    "ring": _Waiter.ring_edges, "semaphore": _Waiter.semaphore_edges, "file lock": _Waiter.file_lock_edges,
    "member": _Waiter.member_edges,
}  # fmt: skip


def _parent_text(child: Process, state: str = "") -> str:
    return f"/proc/{child.pid}/stat: {state}its parent is {child.ppid}"


def _end_evidence(process: Process, socket: Socket, peer: Process) -> str:
    if not socket.peer and peer.host == process.host:
        return f"pid {peer.pid} listens there, and has not accepted it"
    where = "" if socket.peer else f" on {peer.host}"
    return f"whose other end is open in pid {peer.pid}{where}"
