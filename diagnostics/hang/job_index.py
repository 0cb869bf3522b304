"""Index a snapshot: the blocking thread of each process, the peers of sockets, and the processes of each pipe.

In a live snapshot the blocked states are refined by what sockets, pipes and other processes show: a worker without a
task is idle, a slow download transfers data. Methods of `JobIndex` find children, peers, and unanswered requests.
`split_jobs` divides a snapshot into jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TypeVar

from diagnostics.hang.blocking_calls import BlockedState, BlockingCall, blocked_state
from diagnostics.hang.collect.discovery import SERVICES
from diagnostics.hang.snapshot import TRANSFER_RATE, Descriptor, Lock, Process, Snapshot, Socket, is_local
from diagnostics.hang.wait_kinds import COMPUTING, IDLE, kinds_of_frame

T = TypeVar("T")
_MAX_PEERS = 128
"""Limit of processes at the other end of a connection; forked servers share a listening socket."""
_GREETING_BYTES = 512
"""A connection that received fewer bytes has only logged in at a listener of multiprocessing: it requests nothing."""
_HEARTBEAT_S = 5.0
"""What was sent so long after a thread began to wait was sent by another thread."""
_CONSUMER_KINDS = ("processes_queue", "processes_lock", "pipe")
_TRANSFER_KINDS = ("pipe_full", "socket_full", "pipe", "socket", "http", "input")
_CONNECTION = re.compile(r"(?:^|/)(?:multiprocess|multiprocessing|billiard)/connection\.py$")
_QUEUES = re.compile(r"(?:^|/)(?:multiprocess|multiprocessing|billiard)/queues?\.py$")
# A process in one of these waits for none of the job, and may write to a pipe later.
_MAY_WRITE = ("sleep", "input", *COMPUTING, *(kind for kind in IDLE if kind != "supervise"))
# Kinds of waits in which a parent does not wait for its workers.
_NOT_WAITING_FOR_WORKERS = (*IDLE, *COMPUTING, "sleep", "input", "event")


def port_of(address: str) -> str:
    """Return the port of an address "HOST:PORT"; empty for port 0, which is not in use."""
    port = address.rpartition(":")[2]
    return "" if port == "0" else port


@dataclass
class JobIndex:
    """A snapshot with lookup tables.

    Attributes:
        states: The blocked state of each process, by key.
        sockets: Sockets by (host, inode).
        descriptors: Descriptors of sockets by (key of the process, number).
        connections: Sockets by (local address, remote address).
        listeners: Listening sockets by port.
        hosts: Hosts that have a TCP socket with this local address, by address.
        owners: Processes that have a pipe or socket open, by (host, inode).
        families: Processes that have the same parent, by (host, pid of the parent).
        sharing: Processes that map the same shared memory, by (host, name), and by (host, "#inode").
        locks: File locks that observed processes hold, and semaphores of which it is known who holds them, by
            (host, inode).
    """

    snapshot: Snapshot
    states: dict[str, BlockedState] = field(default_factory=dict)
    sockets: dict[tuple[str, int], Socket] = field(default_factory=dict)
    descriptors: dict[tuple[str, int], Descriptor] = field(default_factory=dict)
    connections: dict[tuple[str, str], list[Socket]] = field(default_factory=dict)
    listeners: dict[str, list[Socket]] = field(default_factory=dict)
    hosts: dict[str, set[str]] = field(default_factory=dict)
    owners: dict[tuple[str, int], list[tuple[Process, Descriptor]]] = field(default_factory=dict)
    families: dict[tuple[str, int], list[Process]] = field(default_factory=dict)
    sharing: dict[tuple[str, str], list[Process]] = field(default_factory=dict)
    locks: dict[tuple[str, int], list[Lock]] = field(default_factory=dict)

    @classmethod
    def build(cls, snapshot: Snapshot) -> JobIndex:
        """Build the tables, and refine the blocked states of an observed job."""
        index = cls(snapshot)
        for process in snapshot.processes:
            index._add_process(process)
        for socket in snapshot.sockets:
            index._add_socket(socket)
        paths = {(p.key, item.inode): item.path for p in snapshot.processes for item in p.fds}
        for lock in snapshot.locks:
            key = f"{lock.host}/{lock.pid}"
            if not lock.waiting and (key in index.states or lock.kind == "semaphore"):
                named = replace(lock, path=lock.path or paths.get((key, lock.inode), ""))
                index.locks.setdefault((lock.host, lock.inode), []).append(named)
        if snapshot.live:
            index._refine_waits()
            index._mark_idle_consumers()
            index._mark_idle_by_design()
            index._mark_idle_consumers()  # of a parent that is idle by design
        return index

    def _add_process(self, process: Process) -> None:
        self.states[process.key] = blocked_state(process)
        self.families.setdefault((process.host, process.ppid), []).append(process)
        for item in process.fds:
            if item.kind in ("tcp", "unix"):
                self.descriptors.setdefault((process.key, item.fd), item)
            if item.kind in ("tcp", "unix", "pipe"):
                self.owners.setdefault((process.host, item.inode), []).append((process, item))
        inodes = {name[name.rfind("#") :] for name in process.shared if "#" in name}
        for name in inodes.union(process.shared):
            self.sharing.setdefault((process.host, name), []).append(process)

    def _add_socket(self, socket: Socket) -> None:
        self.sockets[socket.host, socket.inode] = socket
        self.connections.setdefault((socket.local, socket.remote), []).append(socket)
        if socket.kind == "tcp":
            self.hosts.setdefault(socket.local.rpartition(":")[0], set()).add(socket.host)
        if socket.state == "LISTEN":
            self.listeners.setdefault(port_of(socket.local), []).append(socket)

    def _mark_idle_consumers(self) -> None:
        """Mark workers as idle that wait for their next task while their parent does not wait for them.

        One worker is in `recv` with the queue's read lock, and the others wait for this lock. A parent that waits for
        an event is marked, too, if all its workers are idle.
        """
        for process in self.snapshot.processes:
            parent, workers = self.states[process.key], self.children(process)
            consumers = [w for w in workers if self._waits_for_task(self.states[w.key], process)]
            if not consumers or parent.kind not in _NOT_WAITING_FOR_WORKERS:
                continue
            if parent.thread.awaits_own_signal and len(process.threads) == 1:
                continue  # it may have missed the signal
            for worker in consumers:
                self._set_kind(self.states[worker.key], "idle")
            if parent.kind == "event" and all(self.states[worker.key].kind in IDLE for worker in workers):
                self._set_kind(parent, "idle")

    def _waits_for_task(self, state: BlockedState, parent: Process) -> bool:
        """Return whether a child waits for a task that its parent can send."""
        if state.kind not in _CONSUMER_KINDS or len(state.steps) > 1 or self.reads_rest(state):
            return False
        if any(frame.function == "get" and _QUEUES.search(frame.path) for frame in state.frames):
            return True
        if state.kind != "pipe":
            return False
        pipes = {item.inode for item in state.process.fds if item.fd in state.waited_fds}
        return any(item.inode in pipes and "w" in item.mode for item in parent.fds) or any(
            parent in self.peers(state.process, socket) for socket in self.waited_sockets(state)
        )

    def _mark_idle_by_design(self) -> None:
        """Mark processes as idle whose worker thread, server or standard input has no work for them."""
        for state in list(self.states.values()):
            in_worker = len(state.steps) > 1 and state.steps[0][1].kind in IDLE
            listener = any(_CONNECTION.search(frame.path) for frame in state.steps[0][0].frames)
            size = _GREETING_BYTES if listener else 0
            requests = [s for _, s in self.open_requests(state.process) if (s.bytes_received or size) >= size]
            datagrams = state.kind == "socket" and not self.waited_sockets(state)
            is_idle = in_worker and not requests and (state.kind in ("queue", "event") or datagrams)
            is_idle &= not state.serves_manager
            is_idle = is_idle or (state.kind == "socket" and self._has_no_open_request(state))
            writers = self.stdin_writers(state.process) if state.kind == "input" else []
            if is_idle or (writers and all(writer.kind in IDLE for writer in writers)):
                self._set_kind(state, "idle")

    def _refine_waits(self) -> None:
        """Refine the kinds of waits by sockets, pipes and the traffic on them."""
        for state in list(self.states.values()):
            if state.kind in _TRANSFER_KINDS and self._transfers_data(state):
                self._set_kind(state, "transfer")
            elif state.kind == "loop" and self._is_never_woken(state):
                self._set_kind(state, "await")
            elif state.kind == "socket" and self._waits_for_store_key(state):
                self._set_kind(state, "store_key")
            elif state.kind == "input" and self._reads_from_process(state):
                self._set_kind(state, "pipe")
        for state in list(self.states.values()):
            if state.kind == "sleep" and self._paces_transfer(state):
                self._set_kind(state, "transfer")

    def _waits_for_store_key(self, state: BlockedState) -> bool:
        """Return whether a rank waits for an answer of its job's rendezvous store, which another process runs."""
        port = port_of(state.process.job)
        from_store = any(port_of(socket.remote) == port for socket in self.waited_sockets(state))
        return bool(port) and from_store

    def _reads_from_process(self, state: BlockedState) -> bool:
        """Return whether a program reads a pipe without a prompt, while a writer is not idle or awaiting a child."""
        frame, writers = state.call.frame, self.stdin_writers(state.process)
        prompts = frame is None or "input" in (frame.calls, *kinds_of_frame(frame.path, frame.function))
        return not prompts and not {writer.kind for writer in writers} <= {"child", *IDLE}

    def stdin_writers(self, process: Process) -> list[BlockedState]:
        """Return the other processes that can write to the pipe that a process has as standard input."""
        stdin = next((item for item in process.fds if item.fd == 0 and item.kind == "pipe"), None)
        ends = self.owners.get((process.host, stdin.inode), ()) if stdin else ()
        return [self.states[p.key] for p, end in ends if "w" in end.mode and p.key != process.key]

    def may_get_input(self, process: Process) -> bool:
        """Return whether standard input may still come: its writer is unknown, works, sleeps or is itself idle."""
        writers = self.stdin_writers(process)
        return not writers or any(writer.kind in _MAY_WRITE for writer in writers)

    def _is_never_woken(self, state: BlockedState) -> bool:
        """Return whether an event loop without a timer waits only on the connection by which its threads wake it."""
        sockets = self.waited_sockets(state)
        wakers = [s for s in sockets if s.kind == "unix" and s.peer and not self.peers(state.process, s)]
        alone = len(state.steps) == 1 and not self.children(state.process)
        return alone and state.thread.endless and len(wakers) == len(state.waited_fds) == 1

    def _transfers_data(self, state: BlockedState) -> bool:
        """Return whether the blocking thread ran during the observation, and received or moved data."""
        sockets = [socket for socket in self.waited_sockets(state) if socket.kind == "tcp"]
        sends = state.kind == "socket_full"
        received = any(s.moved if sends else self._is_recent(s.received_s) for s in sockets)
        return (received or bool(state.process.io_moved and not sockets)) and self.ran(state)

    def ran(self, state: BlockedState) -> bool:
        """Return whether the blocking thread ran during the observation."""
        return self._is_recent(state.thread.asleep_s)

    def only_slept(self, state: BlockedState) -> bool:
        """Return whether a process that sleeps woke during the observation, and moved no data."""
        sockets = [socket for _, socket in self.open_connections(state.process)]
        moved = state.process.io_moved is not False or any(self._is_recent(s.quiet_s or 0.0) for s in sockets)
        return state.kind == "sleep" and state.thread.steady and self.ran(state) and not moved

    def _is_recent(self, age_s: float | None) -> bool:
        return age_s is not None and age_s < self.snapshot.seconds

    def _paces_transfer(self, state: BlockedState) -> bool:
        """Return whether a process sleeps between the parts of a transfer that another process waits for."""
        process, partners, inodes = state.process, set(), set()
        if not self.ran(state):
            return False
        for item in process.fds:
            socket = self.socket(process, item.fd)
            # A poll moves data in both directions, a heartbeat little.
            is_fast = socket is not None and socket.moved > TRANSFER_RATE * self.snapshot.seconds
            if socket and is_fast and not self._is_recent(socket.received_s):
                partners |= {peer.key for peer in self.peers(process, socket)}
            elif process.io_moved and item.kind == "pipe" and "r" in item.mode:
                inodes.add(item.inode)
        ends = [end for inode in inodes for end in self.owners[process.host, inode]]
        # Writers that go on although the pipe is full.
        partners |= {p.key for p, end in ends if end.mode == "w" and end.fd in self.states[p.key].waited_fds}
        return any(self.states[key].kind == "transfer" for key in partners - {process.key})

    def _has_no_open_request(self, state: BlockedState) -> bool:
        """Return whether a client has no unanswered request on what it waits for, and its servers are idle.

        What another thread sent after the client began to wait, as a heartbeat, is no request of the client.
        """
        sockets = self.waited_sockets(state)
        known = [s for s in sockets if s.kind == "tcp" and s.state == "ESTABLISHED" and s.quiet_s is not None]
        peers = [self.states[peer.key].kind for s in known for peer in self.peers(state.process, s)]
        waited_s = (state.thread.asleep_s or 0.0) if len(state.steps) == 1 else 0.0
        own = [s for s in known if (s.sent_s or 0.0) >= waited_s - _HEARTBEAT_S]
        answered = not any(s.request_unanswered or s.simultaneous for s in own)
        return bool(peers) and len(known) == len(state.waited_fds) and answered and set(peers) <= set(IDLE)

    def _set_kind(self, state: BlockedState, kind: str) -> None:
        """Replace the kind of a process's blocking call."""
        thread, call = state.steps[-1]
        refined = BlockingCall(kind, call.frame, caller=call.caller)
        self.states[state.process.key] = replace(state, steps=(*state.steps[:-1], (thread, refined)))

    @cached_property
    def running_actors(self) -> list[Process]:
        """Ray actors that run a method, by their title or their blocking call."""
        actors = (p for p in self.snapshot.processes if p.role == "Ray actor")
        return [p for p in actors if "." in p.ray_method.split(" ")[0] or self.states[p.key].kind not in IDLE]

    def process(self, key: str) -> Process | None:
        """Return the process with a key; None if the key is not a process."""
        state = self.states.get(key)
        return state.process if state else None

    def states_of(self, keys: Iterable[str]) -> list[BlockedState]:
        """Return the states of those keys that are processes."""
        return [self.states[key] for key in keys if key in self.states]

    def children(self, process: Process) -> list[Process]:
        """Return the children of a process, without helpers."""
        children = self.families.get((process.host, process.pid), ())
        return [child for child in children if child.role != "helper"]

    def socket(self, process: Process, fd: int) -> Socket | None:
        """Return the socket behind a descriptor; None if it was not observed."""
        item = self.descriptors.get((process.key, fd))
        return self.sockets.get((process.host, item.inode)) if item else None

    def waited_sockets(self, state: BlockedState) -> list[Socket]:
        """Return the sockets that the system call of a blocking thread waits for."""
        sockets = (self.socket(state.process, fd) for fd in state.waited_fds)
        return [socket for socket in sockets if socket]

    def peers(self, process: Process, socket: Socket) -> list[Process]:
        """Return the processes at the other end of a socket, on any observed host, or else those that listen there."""
        if socket.peer:
            owners = self.owners.get((process.host, socket.peer), [])[:_MAX_PEERS]
            return [owner for owner, _ in owners if owner.key != process.key]
        if socket.kind != "tcp":
            return []
        ends = self.connections.get((socket.remote, socket.local), [])[:_MAX_PEERS]
        peers = self._owners_of(e for e in ends if e.host == process.host or not is_local(socket.remote))
        return peers or [p for p in self._listeners(process.host, socket) if p.key != process.key]

    def semaphore_holders(self, state: BlockedState) -> set[str]:
        """Return the keys of the processes that hold the semaphore at which a process waits; empty if unknown.

        If the holder has ended, the key is not that of a process.
        """
        inode = state.thread.futex.removeprefix("sem:") if state.kind != "processes_queue_full" else ""
        locks = self.locks.get((state.process.host, int(inode)), []) if inode.isdecimal() else []
        return {f"{lock.host}/{lock.pid}" for lock in locks if lock.kind == "semaphore"}

    def awaited_file_locks(self, state: BlockedState) -> list[Lock]:
        """Return the held locks of the file that a process waits for; if a library polls for it, of `*.lock` files."""
        process = state.process
        inodes = {item.inode for item in process.fds if item.fd in state.waited_fds and item.kind == "file"}
        library = any("filelock" in frame.path or "portalocker" in frame.path for frame in state.frames)
        if library and not inodes:
            known = (lock for locks in self.locks.values() for lock in locks if lock.host == process.host)
            return [lock for lock in known if lock.path.endswith(".lock")]
        return [lock for inode in sorted(inodes) for lock in self.locks.get((process.host, inode), ())]

    def own_lock_fds(self, state: BlockedState) -> list[int]:
        """Return the descriptors of the file whose lock a process waits for, if only that process holds the lock."""
        locks = self.awaited_file_locks(state) if state.kind == "file_lock" else []
        if {f"{lock.host}/{lock.pid}" for lock in locks} != {state.process.key}:
            return []
        files = (
            i for i in state.process.fds if i.kind == "file" and i.inode in {lock.inode for lock in locks}
        )
        return [item.fd for item in files if item.fd not in state.waited_fds]

    def reads_rest(self, state: BlockedState) -> bool:
        """Return whether a process has read a part of a message of multiprocessing: first come 4 bytes of its size."""
        receives = any(f.function == "_recv" and _CONNECTION.search(f.path) for f in state.frames)
        return receives and state.thread.read_size not in (0, 4)

    def connects_to_itself(self, process: Process, socket: Socket) -> bool:
        """Return whether a process is connected to its own listener."""
        return any(listener.key == process.key for listener in self._listeners(process.host, socket))

    def waits_for_itself(self, state: BlockedState) -> bool:
        """Return whether a process waits on a connection to itself, like a rank that queries its own store."""
        sockets = [socket for socket in self.waited_sockets(state) if socket.kind == "tcp"]
        return any(self.connects_to_itself(state.process, socket) for socket in sockets)

    def requests_itself(self, state: BlockedState) -> bool:
        """Return whether a process waits for a response of its own server, which accepts no connections meanwhile."""
        asks = state.kind in ("http", "socket", "rpc") and self.waits_for_itself(state)
        return asks and self.has_backlog(state.process)

    def _listeners(self, host: str, socket: Socket) -> list[Process]:
        """Return the processes that listen at the remote address of a socket."""
        address, port = socket.remote.rpartition(":")[0], port_of(socket.remote)
        # A host's addresses are those that its sockets have; every host has the loopback ones.
        hosts = {host} if is_local(address) else self.hosts.get(address, set())
        ends = [end for end in self.listeners.get(port, [])[:_MAX_PEERS] if port and end.host in hosts]
        # Of several sockets at one port, the kernel gave the connection to one on which connections wait.
        owners = self._owners_of([end for end in ends if end.unread] or ends)
        keys = {owner.key for owner in owners}
        return [p for p in owners if f"{p.host}/{p.ppid}" not in keys or self._serves(p, port)]

    def _serves(self, process: Process, port: str) -> bool:
        """Return whether a process accepts connections at a port, or has accepted one: others inherited it."""
        waited = {fd for thread in process.threads for fd in thread.waits_fds}
        ends = ((item.fd, self.socket(process, item.fd)) for item in process.fds)
        ours = [(fd, socket) for fd, socket in ends if socket and port_of(socket.local) == port]
        return any(socket.state != "LISTEN" or fd in waited for fd, socket in ours)

    def _owners_of(self, ends: Iterable[Socket]) -> list[Process]:
        """Return the processes that have these sockets open, at most _MAX_PEERS."""
        owners = (owner for end in ends for owner, _ in self.owners.get((end.host, end.inode), ()))
        return list(islice(owners, _MAX_PEERS))

    def open_connections(self, process: Process) -> list[tuple[Descriptor, Socket]]:
        """Return the TCP connections of a process that are established, or closed only by the peer."""
        items = ((item, self.socket(process, item.fd)) for item in process.fds if item.kind == "tcp")
        return [(item, s) for item, s in items if s and s.state in ("ESTABLISHED", "CLOSE_WAIT")]

    def listening_ports(self, process: Process) -> set[str]:
        """Return the ports a process listens on."""
        return {port_of(socket.local) for socket in self._listening_sockets(process)}

    def _listening_sockets(self, process: Process) -> list[Socket]:
        sockets = (self.socket(process, item.fd) for item in process.fds)
        return [socket for socket in sockets if socket and socket.state == "LISTEN"]

    def shares_listener(self, process: Process, key: str) -> bool:
        """Return whether the process `key` has a listening socket of this one, on which no connection waits."""
        inodes = {item.inode for item in self.states[key].process.fds}
        return any(s.inode in inodes and not s.unread for s in self._listening_sockets(process))

    def open_requests(self, process: Process) -> list[tuple[Descriptor, Socket]]:
        """Return connections to a process with a request that it has not read or not answered.

        A client that is idle in a read of the connection has none.
        """
        ports, connections = self.listening_ports(process), self.open_connections(process)
        accepted = [(item, socket) for item, socket in connections if port_of(socket.local) in ports]
        owed = [(item, socket) for item, socket in accepted if socket.unread or socket.owes_response]
        return [(item, socket) for item, socket in owed if not self._has_idle_client(process, socket)]

    def _has_idle_client(self, process: Process, socket: Socket) -> bool:
        """Return whether only clients that are idle in a read of this connection are at its other end."""
        clients = [self.states[peer.key] for peer in self.peers(process, socket)]
        reads = [any(s.inode == socket.peer for s in self.waited_sockets(client)) for client in clients]
        return bool(clients) and all(reads) and {client.kind for client in clients} == {"idle"}

    def has_backlog(self, process: Process) -> bool:
        """Return whether connections to a process are not accepted yet."""
        return any(socket.unread for socket in self._listening_sockets(process))

    def sent_requests(self, process: Process) -> list[tuple[Descriptor, Socket]]:
        """Return connections on which the process sent a request and got no response."""
        ports, connections = self.listening_ports(process), self.open_connections(process)
        outgoing = [(item, socket) for item, socket in connections if port_of(socket.local) not in ports]
        return [(item, socket) for item, socket in outgoing if socket.request_unanswered]


def merge_overlapping(groups: Iterable[set[T]]) -> list[set[T]]:
    """Merge the groups that have an element in common.

    >>> merge_overlapping([{1, 2}, {3}, {2, 4}])
    [{3}, {1, 2, 4}]
    """
    merged: list[set[T]] = []
    for group in groups:
        touching = [candidate for candidate in merged if candidate & group]
        merged = [*(candidate for candidate in merged if not candidate & group), group.union(*touching)]
    return merged


def split_jobs(snapshot: Snapshot) -> list[Snapshot]:
    """Split a snapshot into jobs: processes linked by a parent, store, local connection, pipe or shared memory.

    If there are several, those that consist of services only, such as Ray's helpers, are left out.
    """
    peers = {(socket.host, socket.inode): socket.peer for socket in snapshot.sockets if socket.peer}
    groups = merge_overlapping(set(_links(process, peers)) for process in snapshot.processes)
    if len(groups) < 2:
        return [snapshot]
    jobs = [tuple(p for p in snapshot.processes if p.key in group) for group in groups]
    return [replace(snapshot, processes=job) for job in jobs if any(p.role not in SERVICES for p in job)]


def _links(process: Process, peers: dict[tuple[str, int], int]) -> Iterable[object]:
    """Yield the connections of a process as values; two processes with an equal value are connected."""
    host = process.host
    yield process.key
    if process.ppid > 1:
        yield f"{host}/{process.ppid}"
    if process.job:
        yield ("job", process.job)
    yield from (("shared", host, name) for name in process.shared)
    for item in process.fds:
        if item.kind == "pipe":
            yield ("pipe", host, item.inode)
        elif item.kind in ("tcp", "unix") and (peer := peers.get((host, item.inode))):
            yield ("socket", host, *sorted((item.inode, peer)))
