"""Find the root blocker of a process in the wait graph (`RootSearch`), and the cause of its wait.

A root blocker is a cycle, a process that waits for no observed process, a target that was not observed, or ranks in
another collective than the rest. Its level orders root blockers, from `gone` (dead or stopped) to `quiet` (idle).
The depth and the number of steps of a search are limited.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from diagnostics.hang.blocking_calls import DEVICE_CALLS, BlockedState
from diagnostics.hang.collectives import IN_COLLECTIVE
from diagnostics.hang.job_index import JobIndex
from diagnostics.hang.snapshot import LONG_SLEEP_S
from diagnostics.hang.verdict import Edge
from diagnostics.hang.wait_kinds import COMPUTING, IDLE, PATTERNS, WITHIN_PROCESS

# For these kinds of the last edge, the edge decides the cause, not the blocking call of the process at its end.
CAUSE_BY_EDGE = dict.fromkeys(("pipe_full", "processes_queue_full", "socket_full", "ring_write"), "full_pipe")
CAUSE_BY_EDGE |= {"file_lock": "file_lock", "processes_lock": "lock"}
# Kinds of blocked states in which a process cannot continue by itself.
_GONE = ("stopped", "dead", "kernel")
# Native waits that a collective's completion may use.
_AMBIGUOUS_SYSCALLS = ("", "futex", "running", "poll", "ppoll", "sched_yield", "ioctl")
_ACCELERATORS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/davinci", "/dev/accel")
LEVELS = ("gone", "cycle", "stuck", "busy", "quiet")
"""Levels of root blockers, strongest first. If a process waits for all of several others, the strongest decides.

`gone`: stopped, dead, missing or in the kernel; `cycle`: a deadlock, or collectives that differ without a majority;
`stuck`: blocked; `busy`: computing, or just ended; `quiet`: idle without an open request.
"""
# Order of levels if a process waits for any of several others: it is not blocked while one of them works.
_LEVELS_IF_ANY = ("gone", "busy", "cycle", "stuck", "quiet")
_MAX_DEPTH = 200
_MAX_STEPS, _MIN_STEPS = 20_000, 64
"""Limit of edges to follow: the total, divided among the processes, and the minimum for one process."""
_REQUESTS = ("http", "socket", "ray", "loop")
_FOLLOWS = ("poll", "clock_nanosleep")
"""System calls in which a filter, as `tail -F`, waits until a file grows."""
# For these causes no other process could end the wait.
_CLOSED = ("mismatch", "missing", *_GONE, "input", "locks", "joins", "two_threads", "lost_answer")


@dataclass(frozen=True)
class RootBlocker:
    """The processes at the end of a chain of waits, which block the others.

    Attributes:
        level: One of LEVELS.
        cause: A key of wait_kinds.CAUSES.
        culprits: Keys of the blocking processes.
        chain: The edges from a waiting process to the blocking processes.
        patient: Whether the wait counts as a hang only after a while (`--patience`).
        certainty: established, supported or hypothesis.
    """

    level: str
    cause: str
    culprits: tuple[str, ...]
    chain: tuple[Edge, ...] = ()
    patient: bool = True
    certainty: str = "supported"


class RootSearch:
    """Searches the wait graph for root blockers.

    The number of paths can grow factorially, so the steps of a search are limited. After the limit only the first edge
    of each process is followed.
    """

    def __init__(self, index: JobIndex, graph: dict[str, list[Edge]]) -> None:
        self._index, self._graph = index, graph
        self._remaining_steps = 0
        self._on_path: set[str] = set()

    def root_blocker(self, key: str) -> RootBlocker:
        """Follow the wait-for edges from a process to its root blocker."""
        self._remaining_steps = max(_MIN_STEPS, _MAX_STEPS // max(1, len(self._graph)))
        return self._end_of_path(key, ())

    def possible_waker(self, blocker: RootBlocker, patience_s: float) -> str:
        """Return the key of a process that can continue by itself and so may end the wait; else "".

        Only a closed set of waiting processes is a hang. The set begins with the blocking processes, and grows by those
        that could wake a member. In a dump, and for causes that show a hang by themselves, there is no waker.
        """
        index = self._index
        if not index.snapshot.live or blocker.level == "busy" or blocker.cause in _CLOSED:
            return ""
        members = [key for key in blocker.culprits if key in index.states]
        managed = any(index.states[key].serves_manager for key in members)
        for key in members:  # it grows
            state = index.states[key]
            follows = state.kind == "idle" and not state.process.python and state.thread.syscall in _FOLLOWS
            naps = index.snapshot.seconds >= patience_s and index.only_slept(state)
            owns = blocker.cause == "lock" and any(edge.certain for edge in blocker.chain[-1:])
            works = state.kind in (*COMPUTING, "sleep") and (owns or key not in blocker.culprits) and not naps
            # A thread of the process, or a client of a manager, may get a request from outside of the job.
            asked = state.serves and not blocker.chain and state.kind in WITHIN_PROCESS
            asked |= managed and state.kind in ("listen", "loop", "input")
            if follows or works or asked:
                return key
            members += [k for k in dict.fromkeys(self._wakers(state, blocker)) if k not in members]
        return ""

    def _wakers(self, state: BlockedState, blocker: RootBlocker) -> Iterator[str]:
        """Yield processes that could end a wait: at its other end or semaphore, a fork server's children, clients.

        It is not known which process a poll waits for, or which client of a server sends a message: any that computes.
        """
        index, process = self._index, state.process
        ends = (edge.target for edge in self._graph[process.key] if edge.needs == "any")
        yield from (end for end in ends if end in index.states)
        semaphore = (process.host, state.thread.futex.replace("sem:", "#"))
        yield from (sharer.key for sharer in index.sharing.get(semaphore, ()))
        if process.role == "helper":  # it has the ends of its children's pipes
            yield from (child.key for child in index.families.get((process.host, process.pid), ()))
        serves = bool(index.listening_ports(process))
        in_handler = serves and state.kind in (*WITHIN_PROCESS, *IDLE)
        for socket in filter(None, (index.socket(process, item.fd) for item in process.fds)):
            if in_handler or (serves and blocker.level == "cycle"):
                yield from (peer.key for peer in index.peers(process, socket))
        if in_handler or state.kind in ("sleep", "signal"):
            # Any process can connect to a manager.
            any_of = state.serves_manager and blocker.level != "cycle"
            yield from (key for key, other in index.states.items() if any_of or _may_act(other))

    def _end_of_path(self, key: str, path: tuple[Edge, ...]) -> RootBlocker:
        """Return the root blocker that a path leads to: of several, the first by level, then the one farthest away."""
        edges = self._graph.get(key, [])
        state = self._index.states.get(key)
        if state is None:
            if key.startswith("rank "):
                return RootBlocker("gone", "missing", (key,), path, patient=False)
            return RootBlocker("stuck", "elsewhere", (key,), path)
        targets = [self._index.states.get(edge.target) for edge in edges]
        inside = bool(targets) and all(target and target.kind in IN_COLLECTIVE for target in targets)
        if state.kind == "collective" and inside and edges[0].kind != "receive":
            return self._in_another_collective(key, path)
        if not edges or len(path) > _MAX_DEPTH:
            return _end_of_chain(self._index, state, path)
        ends: list[RootBlocker] = []
        for edge in edges:
            if self._remaining_steps > 0 or not ends:
                ends.append(self._follow(path, edge))
        # An idle worker shows no lost message while another worker may have the task.
        ends = [end for end in ends if end.cause != "lost_message" or end.culprits != (key,)] or ends
        order = LEVELS if edges[0].needs == "all" else _LEVELS_IF_ANY
        # Prefer the longest chain: a rank that sent a request to a server waits for it.
        best = min(ends, key=lambda end: (order.index(end.level), -len(end.chain)))
        if best.cause == "absent" and self._index.states[best.culprits[0]].kind == "between":
            absent = [end.culprits for end in ends if (end.cause, end.level) == ("absent", best.level)]
            return replace(best, culprits=tuple(dict.fromkeys(key for keys in absent for key in keys)))
        return best

    def _follow(self, path: tuple[Edge, ...], edge: Edge) -> RootBlocker:
        """Follow one edge to its end; return a cycle if the edge leads back to the path."""
        self._remaining_steps -= 1
        chain = (*path, edge)
        self._on_path.add(edge.source)
        end = None if edge.target in self._on_path else self._end_of_path(edge.target, chain)
        self._on_path.remove(edge.source)
        if end:
            return end
        cycle = chain[[entry.source for entry in chain].index(edge.target) :]
        held = [entry for entry in cycle if entry.kind == "processes_lock" and entry.certain]
        if len(held) == 1:  # its holder could release it, whatever the holder waits for
            return RootBlocker("stuck", "lock", (held[0].target,), chain[: chain.index(held[0]) + 1])
        # A parent that reads from its workers maps their lock, too, but rarely has it; any process may fill a queue.
        of_child = any(entry.kind == "child" for entry in cycle)
        kinds = {"processes_queue": "lost_message"} | ({} if of_child else {"processes_lock": "lock"})
        guesses = [entry for entry in cycle if entry.kind in kinds and not entry.certain]
        # A process that has to accept a connection first is blocked itself.
        targets = self._index.states_of(entry.target for entry in cycle if entry.kind == "socket")
        accepts = any(self._index.has_backlog(state.process) for state in targets)
        if len(guesses) == 1 and not accepts:
            [guess] = guesses
            path, source = chain[: chain.index(guess)], (guess.source,)
            return RootBlocker("stuck", kinds[guess.kind], source, path, certainty="hypothesis")
        culprits = tuple(entry.source for entry in cycle)
        certain = all(entry.certain for entry in cycle)
        certainty = "established" if certain else "supported"
        return RootBlocker("cycle", "deadlock", culprits, chain, not certain, certainty)

    def _in_another_collective(self, key: str, path: tuple[Edge, ...]) -> RootBlocker:
        """Return the ranks in another collective as root blocker, if a rank waits only for such ranks."""
        edges = self._graph[key]
        targets = tuple(dict.fromkeys(edge.target for edge in edges))
        chain = (*path, edges[0])
        if edges[0].kind == "behind":
            return RootBlocker("stuck", "absent", targets, chain, patient=False, certainty="established")
        back = next((edge for target in targets for edge in self._graph[target] if edge.target == key), None)
        if back:  # no majority: each waits for the other
            operations = {state.call.operation for state in self._index.states_of((key, *targets))}
            patient = operations == {"send", "recv"}  # the message may be on its way
            return RootBlocker("cycle", "mismatch", (key, *targets), (*chain, back), patient)
        threaded = [target for target in targets if len(self._index.states[target].in_collective) > 1]
        if threaded:
            return RootBlocker("stuck", "two_threads", tuple(threaded), chain, patient=False)
        # Without the reports of all ranks, others may differ, too.
        ranks = {state.process.rank for state in self._index.states.values()} - {None}
        certainty = "established" if ranks <= set(range(len(ranks))) else "supported"
        return RootBlocker("stuck", "mismatch", targets, chain, patient=False, certainty=certainty)


def _may_act(state: BlockedState) -> bool:
    """Return whether a process computes, or is in a long sleep: a poll with short sleeps did not end the wait."""
    asleep_s = state.thread.asleep_s or 0.0
    return asleep_s < 1.0 if state.kind in COMPUTING else state.kind == "sleep" and asleep_s > LONG_SLEEP_S


def _end_of_chain(index: JobIndex, state: BlockedState, path: tuple[Edge, ...]) -> RootBlocker:
    """Return the root blocker for a process that waits for no observed process: usually the process itself."""
    key, kind = (state.process.key,), state.kind
    if state.process.state == "X" or (kind == "dead" and path and path[-1].kind == "child"):
        # The process ended during observation, or its parent is about to read its exit code: the job makes progress.
        return RootBlocker("busy", "busy", key, path)
    if kind in _GONE:
        # A dead child that its parent has not noticed may have died just now.
        unnoticed = kind == "dead" and bool(path) and not path[-1].certain
        certainty = "supported" if unnoticed else "established"
        return RootBlocker("gone", kind, key, path, unnoticed or kind == "kernel", certainty)
    if kind in COMPUTING:
        return RootBlocker("busy", "spin_python" if kind in ("symbolic", "regex") else "busy", key, path)
    if state.deadlocked:
        return RootBlocker("cycle", "joins" if kind == "join" else "locks", key, path)
    if kind in IDLE and path and path[-1].kind in ("pool", "future", "processes_queue", "data_loader"):
        # The workers are idle, so the result that the process waits for is lost.
        frames = index.states[path[-1].source].frames
        in_callback = any(frame.function == "_invoke_callbacks" for frame in frames)
        return RootBlocker("stuck", "pool" if in_callback else "lost_message", (path[-1].source,), path)
    level = "quiet" if _is_quiet(index, state, path) else "stuck"
    certainty = "established" if kind == "input" else "supported"
    return RootBlocker(level, _cause(index, state, path), key, path, kind != "input", certainty)


def _cause(index: JobIndex, state: BlockedState, path: tuple[Edge, ...]) -> str:
    """Return the cause of a hang that a process causes: by the first rule that holds, else by its blocking call."""
    kind, live = state.kind, index.snapshot.live
    last = path[-1].kind if path else ""
    functions = {frame.function for frame in state.frames}
    requested = last in _REQUESTS or (kind == "loop" and bool(index.open_requests(state.process)))
    engine = any(process.role == "engine core" for process in index.snapshot.processes)
    asks_engine = any(map(PATTERNS["engine_clients"].match, (frame.location for frame in state.frames)))
    rules = (
        ("two_threads", len(state.in_collective) > 1),
        ("input", kind == "input"),
        (CAUSE_BY_EDGE.get(last, ""), last in CAUSE_BY_EDGE),
        ("pool", kind == "future" and any(f.path.endswith("futures/thread.py") for f in state.frames)),
        ("blocked_loop", state.loop_blocked),
        ("deadlock", index.requests_itself(state)),
        ("rendezvous", kind == "rendezvous"),
        ("lost_answer", kind in IDLE and requested),
        ("absent", last == "collective" and _is_outside_collectives(state, live=live)),
        ("lost_message", kind == "socket" and index.waits_for_itself(state)),
        ("mismatch", kind == "collective" and last == "collective"),
        # A client of vLLM's engine core waits there during each generation, too.
        ("elsewhere", asks_engine and not engine and not path and not live),
        # In a dump no more is known; its user had waited for the response.
        ("lost_message", kind in ("http", "socket", "rpc") and not path and not live),
        # A socket that is not connected, such as one for UDP.
        ("lost_message", kind == "socket" and live and not path and not index.waited_sockets(state)),
        ("lost_message", kind == "file" and "named pipe" in state.call.detail),
        ("file_lock", kind == "sleep" and not path and state.polls_for_lock),
        # At exit a queue waits for its feeder thread, which only a full pipe can block.
        ("full_pipe", kind == "join" and not live and functions & {"_finalize_join", "join_thread"}),
    )
    return next((cause for cause, holds in rules if holds), state.call.wait.cause)


def _is_outside_collectives(state: BlockedState, *, live: bool) -> bool:
    """Return whether a rank's blocking call shows that the rank is not in the collective."""
    absent = state.call.wait.absent
    if absent == "always" or (absent == "dump" and not live):
        return True
    if state.kind != "native" or not live or not state.frames:
        return False
    if state.frames[0].calls in DEVICE_CALLS or "/torch/" in state.frames[0].path:
        return False
    accelerated = any(item.path.startswith(_ACCELERATORS) for item in state.process.fds)
    return state.thread.syscall not in _AMBIGUOUS_SYSCALLS or not accelerated


def _is_quiet(index: JobIndex, state: BlockedState, path: tuple[Edge, ...]) -> bool:
    """Return whether a process is idle and owes no response.

    Pre-forked servers take turns: one is in accept, and the others wait for the lock that it holds.
    """
    if path and path[-1].kind == "file_lock" and state.kind == "listen":
        path = path[: -1 if index.shares_listener(state.process, path[-1].source) else None]
    serves = state.serves and len(state.steps) == 1
    idle = state.kind in IDLE or (serves and state.kind in ("event", "queue", "join"))
    return idle and all(edge.kind == "child" for edge in path) and not index.open_requests(state.process)
