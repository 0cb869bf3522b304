"""Edges among the ranks of a group: who is in a collective waits for who is not, or is in another one.

The majority are victims: what they are in is where it shows. Who is missing from it is where it comes from.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics.hang.link.graph import Edge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.hang.link.graph import Index
    from diagnostics.hang.snapshot import Process
    from diagnostics.hang.stands import Stand

IN = ("collective", "rendezvous")
# What takes weights from a trainer, in a group of the two that no variable of theirs tells.
_ENGINES = ("engine worker", "engine core", "engine")
_MOST_RANKS = 1024
_LOCAL = ("localhost", "127.", "0.0.0.0", "::1", "[::1]")  # noqa: S104 - compared with, not bound to


def edges(index: Index) -> Iterator[tuple[str, Edge]]:
    """(who waits, edge), of all groups."""
    for name, group in groups(index).items():
        inside = [p for p in group if index.stands[p.key].kind in IN]
        outside = [p for p in group if p not in inside]
        if not inside:
            continue
        if (
            index.snapshot.source != "live"
            and group[0].rank is None
            and len(set(_kinds(index, inside).values())) > 1
        ):
            outside = []  # in a dump it is not known who belongs to them; that they are apart is
        missing = absent(name, group)
        seen = f"ranks that were seen: {', '.join(str(q.rank) for q in group)}"
        for p in inside:
            for other in outside:
                yield p.key, _to(index, p, other, "is not in it", needs="all")
            for rank in missing:
                label = f"rank {rank} of {group[0].world}"
                evidence = (_place(index.stands[p.key]), seen)
                yield (
                    p.key,
                    Edge(
                        p.key,
                        f"rank {rank}",
                        "collective",
                        label,
                        _verb(index.stands[p.key]),
                        evidence,
                        "all",
                    ),
                )
        if not outside and not missing:
            apart = list(_apart(index, inside))
            yield from apart or (pair for p in inside for pair in _wired(index, p, group))


def groups(index: Index) -> dict[str, list[Process]]:
    """Processes that belong together as ranks: by their store, else by who started them."""
    found: dict[str, list[Process]] = defaultdict(list)
    loose: dict[str, list[Process]] = defaultdict(list)
    for process in index.snapshot.processes:
        if process.role == "trainer":
            # A store at an address of the host itself is another one on each host.
            apart = f" on {process.host}" if process.host and process.job.startswith(_LOCAL) else ""
            name = f"{process.job}{apart}" if process.job else f"{process.host} children of {process.ppid}"
            found[name].append(process)
        elif process.role == "engine worker":
            found[f"{process.host} workers of {process.ppid}"].append(process)
        elif process.role in ("process", "Ray actor") and process.python:
            loose[f"{process.host} children of {process.ppid}"].append(process)
    for name, members in loose.items():
        above = f"{members[0].host}/{members[0].ppid}"
        parent = next((p for p in index.snapshot.processes if p.key == above), None)
        if parent and index.stands[parent.key].kind in IN:
            members.append(parent)
        if any(index.stands[p.key].kind in IN for p in members):
            # Siblings that were only started beside the ranks are none: those idle from the start on.
            found[name] += [
                p for p in members if index.stands[p.key].kind not in ("idle", "loop", "supervise")
            ]
    return {name: sorted(members, key=lambda p: (p.rank or 0, p.pid)) for name, members in found.items()}


def absent(name: str, group: list[Process]) -> list[int]:
    """Ranks of which there is no process, where all of them must be on the hosts that were looked at."""
    world = group[0].world
    # A dump may say anything: of so many on one host there is no use in naming those that are not there.
    if not world or world > _MOST_RANKS or not name.startswith(_LOCAL):
        return []
    return sorted(set(range(world)) - {p.rank for p in group if p.rank is not None})


def _apart(index: Index, inside: list[Process]) -> Iterator[tuple[str, Edge]]:
    """All are in a collective: who is in another one than most; without a majority each waits for the others."""
    kinds = _kinds(index, inside)
    counts = Counter(kinds.values())
    if len(counts) < 2:
        return
    (most, first), (_, second) = counts.most_common(2)
    for p in inside:
        for other in inside:
            if kinds[p.key] == kinds[other.key] or (first > second and kinds[p.key] != most):
                continue
            where = index.stands[other.key]
            edge = _to(index, p, other, f"is in another: {_named(where)}", needs="all")
            yield p.key, _counted(index, edge, p, other) or edge


def _counted(index: Index, edge: Edge, source: Process, target: Process) -> Edge | None:
    """The edge in the recorder's numbers, where the target began fewer collectives."""
    told = {c.rank: c for c in index.snapshot.collectives}
    if source.rank not in told or target.rank not in told:
        return None
    mine, other = told[source.rank], told[target.rank]
    if mine.enqueued <= other.enqueued:
        return None
    last = f", the last {other.operation}" if other.operation else ""
    begun = f"rank {target.rank} has begun {other.enqueued} collectives{last}"
    evidence = f"{begun}; rank {source.rank} {mine.enqueued}"
    return replace(edge, kind="behind", evidence=(evidence,))


def _wired(index: Index, source: Process, group: list[Process]) -> Iterator[tuple[str, Edge]]:
    """Engines that a rank is connected to, and that are in no collective: of their group nothing else tells."""
    seen = {p.key for p in group}
    for item, socket in index.open_sockets(source):
        for peer in index.peers(source, socket):
            if peer.role not in _ENGINES or peer.key in seen or index.stands[peer.key].kind in IN:
                continue
            seen.add(peer.key)
            edge = _to(index, source, peer, "is not in it", needs="any")
            wire = f"fd/{item.fd}: a tcp socket {socket.local}, whose other end is open in pid {peer.pid}"
            yield source.key, replace(edge, evidence=(*edge.evidence, wire), certain=False)


def _kinds(index: Index, inside: list[Process]) -> dict[str, str]:
    return _behind(index, inside) or {p.key: _what(index.stands[p.key]) for p in inside}


def _behind(index: Index, inside: list[Process]) -> dict[str, str]:
    """By the recorders' numbers, where there are any: ranks that began fewer collectives than the others."""
    told = {c.rank: c for c in index.snapshot.collectives}
    known = {p.key: told[p.rank] for p in inside if p.rank in told}
    if len(known) < len(inside):
        return {}
    if len({c.enqueued for c in known.values()}) > 1:
        most = max(c.enqueued for c in known.values())
        return {key: "ahead" if c.enqueued == most else f"at {c.enqueued}" for key, c in known.items()}
    return {key: f"{c.operation} {c.sizes}" for key, c in known.items()}


def _what(stand: Stand) -> str:
    """What tells one collective from another, from outside: its kind, and who asked for it."""
    place = stand.wait.place
    asked = f"{place.path}:{place.function}:{place.line}" if place else ""
    return f"{stand.wait.kind} {stand.wait.operation} {asked}"


def _named(stand: Stand) -> str:
    name = stand.wait.operation or stand.wait.kind
    return f"{name}, asked for by {stand.wait.place}" if stand.wait.place else name


def _verb(stand: Stand) -> str:
    name = stand.wait.operation
    return f"waits in {name} for" if name else "waits at the rendezvous for"


def _place(stand: Stand) -> str:
    frame = stand.wait.frame or stand.wait.place
    asked = f", asked for by {stand.wait.place}" if stand.wait.place and stand.wait.place != frame else ""
    return f"pid {stand.process.pid}: {frame}{asked}"


def _to(index: Index, source: Process, target: Process, why: str, *, needs: str) -> Edge:
    stand = index.stands[source.key]
    other = index.stands[target.key]
    frame = other.wait.frame or other.wait.place
    evidence = (_place(stand), f"pid {target.pid} {why}: {frame or other.kind}")
    return Edge(source.key, target.key, "collective", target.label, _verb(stand), evidence, needs)
