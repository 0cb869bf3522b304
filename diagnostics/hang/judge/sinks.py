"""Where chains of waiting end: for each process the end of its own, a cycle or a process that waits for none we see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diagnostics.hang import waits

if TYPE_CHECKING:
    from diagnostics.hang.link.graph import Edge, Index
    from diagnostics.hang.stands import Stand

# What holds others up by what they wait for, whatever it is in itself.
_HELD = {
    "file_lock": "file_lock", "pipe_full": "full_pipe", "ring_write": "full_pipe", "processes_lock": "lock",
}  # fmt: skip
_GONE = ("stopped", "dead", "kernel")
# What a rank may be in that is not in the collective, where that says no more than that it is not.
_ELSEWHERE = ("sleep", "idle", "supervise", "loop", "join", "unseen", "event", "between")
_OUTSIDE = (
    "device",
    "rpc",
    "http",
    "socket",
    "connect",
    "queue",
    "processes_queue",
    "pipe",
    "future",
    "pool",
    "child",
    "data_loader",
)
# What is left to say of what a process is in, where nothing else explains it.
_NAMED = {
    "lock": "lock", "processes_lock": "lock",
    "pipe_full": "full_pipe", "queue_full": "full_pipe", "ring_write": "full_pipe",
    "queue": "lost_message", "processes_queue": "lost_message", "pipe": "lost_message", "event": "lost_message",
    "ring_read": "lost_message", "data_loader": "lost_message", "future": "lost_message", "pool": "lost_message",
    "http": "elsewhere", "socket": "elsewhere", "rpc": "elsewhere", "connect": "connect", "ray": "pending",
    "sleep": "poll", "file_lock": "file_lock", "idle": "lost_message", "loop": "lost_message",
}  # fmt: skip
# How telling an end is, the most telling first; who waits for all of several follows the first.
_ALL = ("gone", "cycle", "stuck", "busy", "quiet")
# Who waits for one of several, not known which, is held up by none as long as one of them works.
_ANY = ("gone", "busy", "cycle", "stuck", "quiet")
_JOINS = ("_finalize_join", "join_thread")
_DEEP = 200


@dataclass(frozen=True)
class End:
    """The end of a chain.

    Attributes:
        level: gone, cycle, stuck, busy or quiet.
        cause: One of verdict.CAUSES.
        culprits: Who is at the end.
        chain: The edges that lead there.
        patient: Whether it must have lasted a while to be a hang.
    """

    level: str
    cause: str
    culprits: tuple[str, ...]
    chain: tuple[Edge, ...] = ()
    patient: bool = True
    certainty: str = "supported"


def end(index: Index, edges: dict[str, list[Edge]], key: str, path: tuple[Edge, ...] = ()) -> End:
    """Follows who a process waits for."""
    outgoing = edges.get(key, [])
    stand = index.stands.get(key)
    if stand is None:
        cause = "missing" if key.startswith("rank ") else "elsewhere"
        return End(
            "gone" if cause == "missing" else "stuck", cause, (key,), path, patient=cause == "elsewhere"
        )
    if stand.kind == "collective" and _apart(index, outgoing):
        return _mismatch(index, edges, key, path)
    if not outgoing or len(path) > _DEEP:
        return _sink(index, stand, path)
    found = []
    for edge in outgoing:
        line = (*path, edge)
        sources = [one.source for one in line]
        if edge.target in sources:
            cycle = line[sources.index(edge.target) :]
            certain = all(one.certain for one in cycle)
            found.append(
                End("cycle", "deadlock", tuple(one.source for one in cycle), line, patient=not certain,
                    certainty="established" if certain else "supported")
            )  # fmt: skip
        else:
            found.append(end(index, edges, edge.target, line))
    order = _ALL if outgoing[0].needs == "all" else _ANY
    # Among equals the longest: a server that stands beside the ranks is waited for by the one that asked it.
    best = min(found, key=lambda one: (order.index(one.level), -len(one.chain)))
    if best.cause == "absent" and index.stands[best.culprits[0]].kind == "between":
        # Of whom it is said that they have not come: all of them.
        away = [one.culprits for one in found if (one.cause, one.level) == ("absent", best.level)]
        return replace(best, culprits=tuple(dict.fromkeys(key for keys in away for key in keys)))
    return best


def _apart(index: Index, outgoing: list[Edge]) -> bool:
    """Whether all that a rank waits for are in collectives, too: in other ones."""
    kinds = [index.stands[edge.target].kind if edge.target in index.stands else "" for edge in outgoing]
    return bool(kinds) and all(kind in ("collective", "rendezvous") for kind in kinds)


def _mismatch(index: Index, edges: dict[str, list[Edge]], key: str, path: tuple[Edge, ...]) -> End:
    outgoing = edges[key]
    others = tuple(dict.fromkeys(edge.target for edge in outgoing))
    if outgoing[0].kind == "behind":
        return End("stuck", "absent", others, (*path, outgoing[0]), patient=False, certainty="established")
    back = next((e for other in others for e in edges[other] if e.target == key), None)
    if back:
        # No majority: each of them waits for the other.
        return End("cycle", "mismatch", (key, *others), (*path, outgoing[0], back), patient=False)
    busiest = [other for other in others if len(index.stands[other].collectives) > 1]
    if busiest:
        return End("stuck", "two_threads", tuple(busiest), (*path, outgoing[0]), patient=False)
    return End("stuck", "mismatch", others, (*path, outgoing[0]), patient=False, certainty="established")


def _sink(index: Index, stand: Stand, path: tuple[Edge, ...]) -> End:
    """The end at a process that waits for nobody we see."""
    key = (stand.process.key,)
    kind = stand.kind
    if stand.process.state == "X" or (kind == "dead" and path and path[-1].kind == "child"):
        # It ended while it was looked at, or is about to be asked for its exit code: something goes on.
        return End("busy", "busy", key, path)
    if kind in _GONE:
        # A dead child that its parent has not looked at may only have died this moment.
        guessed = kind == "dead" and bool(path) and not path[-1].certain
        certainty = "supported" if guessed else "established"
        return End("gone", kind, key, path, patient=guessed or kind == "kernel", certainty=certainty)
    if kind in waits.BUSY:
        return End("busy", "spin_python" if kind in ("symbolic", "regex") else "busy", key, path)
    if stand.locked:
        return End("cycle", "locks", key, path)
    if kind in waits.IDLE and path and path[-1].kind in ("pool", "future", "processes_queue", "data_loader"):
        # Its workers wait for work: what it waits for is not there any more.
        return End("stuck", "lost_message", (path[-1].source,), path)
    level = "quiet" if _at_rest(index, stand, path) else "stuck"
    certainty = "established" if kind == "input" else "supported"
    return End(level, _cause(index, stand, path), key, path, patient=kind != "input", certainty=certainty)


def _cause(index: Index, stand: Stand, path: tuple[Edge, ...]) -> str:
    """The cause class of a process that waits for nobody we see: the first that holds."""
    kind = stand.kind
    last = path[-1].kind if path else ""
    asked = last in ("http", "socket", "ray", "loop") or (kind == "loop" and bool(index.asked(stand.process)))
    told = (
        ("two_threads", len(stand.collectives) > 1),
        ("input", kind == "input"),
        (_HELD.get(last, ""), last in _HELD),
        ("pool", kind == "future" and _pooled(stand)),
        ("blocked_loop", stand.loop_blocked),
        ("rendezvous", kind == "rendezvous"),
        ("lost_answer", kind in waits.IDLE and asked),
        ("absent", last == "collective" and kind in _ELSEWHERE),
        # In a dump what it asked is not to be seen: that it is not with the others is.
        ("absent", last == "collective" and kind in _OUTSIDE and index.snapshot.source != "live"),
        ("lost_message", kind == "socket" and index.inward(stand)),
        ("mismatch", kind == "collective" and bool(path)),
        # Of a dump it is all that can be said: who took it had waited for the answer.
        ("lost_message", kind in ("http", "socket", "rpc") and not path and index.snapshot.source != "live"),
        # At its end a queue waits for its own thread, which only a full pipe keeps.
        ("full_pipe", kind == "join" and index.snapshot.source != "live" and _flushes(stand)),
    )
    return next((cause for cause, holds in told if holds), _NAMED.get(kind, "native"))


def _at_rest(index: Index, stand: Stand, path: tuple[Edge, ...]) -> bool:
    """Whether it has nothing to do and nobody asked it anything: a parent that waits for its end did not."""
    rests = stand.kind in waits.IDLE or (stand.serves and stand.kind in ("event", "queue", "join"))
    return rests and (not path or path[-1].kind == "child") and not index.asked(stand.process)


def _flushes(stand: Stand) -> bool:
    return any(f.function in _JOINS for f in (stand.thread.frames if stand.thread else ()))


def _pooled(stand: Stand) -> bool:
    return any(f.path.endswith("futures/thread.py") for f in (stand.thread.frames if stand.thread else ()))
