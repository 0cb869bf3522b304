"""Find the waits between ranks in collectives: a rank in a collective waits for the ranks that are not in it.

`collective_edges` yields edges of the wait graph from ranks in a collective. They lead to ranks that are in none or
have no process; without such ranks, to ranks in another collective or to other receivers; else to connected engines.
MAX_EDGES limits the edges. `rank_groups` finds the ranks of one job by the address of their rendezvous store or by
their parent process, `missing_ranks` those without a process. `ranks_apart` finds the ranks at a rendezvous that did
not meet the others. `normalized_operation` normalises the name of an operation.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, permutations

from diagnostics.hang.blocking_calls import BlockedState, frame_text
from diagnostics.hang.job_index import JobIndex, merge_overlapping
from diagnostics.hang.snapshot import LONG_SLEEP_S, Collective, Process, is_local
from diagnostics.hang.verdict import Edge
from diagnostics.hang.wait_kinds import IDLE, PATTERNS

Records = dict[int | None, Collective]
"""The recorded state of each rank."""
IN_COLLECTIVE = ("collective", "rendezvous")
# Engines that receive weights are in a group with the trainer that no variable of theirs shows.
_ENGINES = ("engine worker", "engine core", "engine")
_MAX_RANKS = 1024
# With few absent ranks, each waiting rank has an edge to each of them; in a dump half of all may be absent.
MAX_EDGES = 16 * _MAX_RANKS
_MAX_RECEIVERS = 8
_ENTRY_S = 1.0
"""A rank sends the first data of a collective at most this time before it waits."""
_ORDER_S = 0.01
"""The last data of a collective that is complete may be what a rank sent this time after what it received."""
_LAUNCHER_KINDS = ("child", "start")
# Functions that wait for a collective without naming it.
_UNNAMED = ("", "wait", "wait_tensor", "synchronize")


def collective_edges(index: JobIndex) -> Iterator[Edge]:
    """Yield the wait-for edges of ranks in a collective: to ranks that are in none or have no process.

    If a group has none of them: to ranks in another collective or to other receivers, else to connected engines.
    """
    for name, group in rank_groups(index).items():
        sending = [p for p in group if _sends_weights(index.states[p.key])]
        waiting = [p for p in group if index.states[p.key].kind in IN_COLLECTIVE]
        inside = [p for p in waiting if not _sends_weights(index.states[p.key])]
        if not inside:
            inside, sending = waiting, []
        outside = [p for p in group if index.states[p.key].kind not in IN_COLLECTIVE]
        outside = _awaited_ranks(index, inside, outside)
        names = _collective_names(index, inside)
        if not index.snapshot.live and group[0].rank is None and len(set(names.values())) > 1:
            outside = []  # a dump does not list the group's members, only that these ranks differ
        missing = missing_ranks(name, group)
        for process in sending:
            yield from _edges_to_receivers(index, process, group)
        if sending and not outside:
            # The others wait for it, and it is in another group with the engine.
            yield from (replace(_edge(index, p, sending[0], "is not in it"), kind="receive") for p in inside)
            continue
        for process in inside:
            absentees = outside[: max(1, MAX_EDGES // len(inside))]
            yield from (_edge(index, process, absentee, "is not in it") for absentee in absentees)
            if missing:
                yield from _edges_to_missing_ranks(index, process, group, missing)
        if not outside and not missing:
            separate = list(_edges_between(index, inside, names))
            yield from separate or (edge for p in inside for edge in _edges_to_engines(index, p, group))


def _awaited_ranks(index: JobIndex, inside: list[Process], outside: list[Process]) -> list[Process]:
    """Return the absent ranks without those of other process groups.

    As it begins to wait, a rank sends something to ranks of its group. Absent ranks that are connected, and to which no
    rank sent anything without a response, are left out, unless no other is absent.
    """
    connected, awaited = set(), set()
    for process in inside:
        waited_s = index.states[process.key].thread.asleep_s or 0.0
        for _, socket in index.open_connections(process):
            keys = {peer.key for peer in index.peers(process, socket)}
            connected |= keys
            sent_s = socket.sent_s or 0.0
            later = (socket.received_s or 0.0) > sent_s + _ORDER_S or socket.bytes_received == 0
            if socket.request_unanswered and later and sent_s < waited_s + _ENTRY_S:
                awaited |= keys
    members = [p for p in outside if p.key in awaited or p.key not in connected]
    return members or outside


def rank_groups(index: JobIndex) -> dict[str, list[Process]]:
    """Group processes that may be ranks of one job.

    Ranks are grouped by the address of their rendezvous store (TCPStore), else by parent process like engine workers.
    Other Python siblings are a group if one of them, or their parent, is in a collective.
    """
    groups: dict[str, list[Process]] = defaultdict(list)
    siblings: dict[str, list[Process]] = defaultdict(list)
    for process in index.snapshot.processes:
        family = f"{process.host} children of {process.ppid}"
        if process.role == "trainer":
            # A store on the host's own address is a different one on each host.
            separate = f" on {process.host}" if process.host and is_local(process.job) else ""
            groups[f"{process.job}{separate}" if process.job else family].append(process)
        elif process.role == "engine worker":
            groups[f"{process.host} workers of {process.ppid}"].append(process)
        elif process.role in ("process", "Ray actor") and process.python:
            siblings[family].append(process)
    for name, members in siblings.items():
        parent = index.states.get(f"{members[0].host}/{members[0].ppid}")
        if parent and parent.kind in IN_COLLECTIVE:
            members.append(parent.process)
        if any(index.states[p.key].kind in IN_COLLECTIVE for p in members):
            groups[name] += [p for p in members if _may_be_member(index, p)]
    return {name: sorted(members, key=lambda p: (p.rank or 0, p.pid)) for name, members in groups.items()}


def _may_be_member(index: JobIndex, process: Process) -> bool:
    """Return whether a process may be a rank: neither an idle sibling nor a launcher that waits for its children."""
    kind = index.states[process.key].kind
    launches = any(index.states[child.key].kind in IN_COLLECTIVE for child in index.children(process))
    return kind not in IDLE and not (kind in _LAUNCHER_KINDS and launches)


def missing_ranks(name: str, group: list[Process]) -> list[int]:
    """Return the ranks without a process, if the rendezvous address is local, so that all ranks are on one host.

    Empty if the world size is unknown or above 1024.

    Args:
        name: Key of the job in `rank_groups`: the address of its rendezvous store.
        group: The job's processes.
    """
    world = group[0].world
    # A dump may claim any world size: there is no use in naming millions of ranks.
    if not world or world > _MAX_RANKS or not is_local(name):
        return []
    return sorted(set(range(world)) - {p.rank for p in group if p.rank is not None})


def _edges_to_missing_ranks(
    index: JobIndex, process: Process, group: list[Process], missing: list[int]
) -> Iterator[Edge]:
    """Yield an edge from a rank to each rank without a process."""
    state = index.states[process.key]
    text, ranks = _wait_text(state), ", ".join(str(p.rank) for p in group)
    evidence = (_location(state), f"ranks with a process: {ranks}")
    for rank in missing:
        label = f"rank {rank} of {group[0].world}"
        yield Edge(process.key, f"rank {rank}", "collective", label, text, evidence, "all")


def _edges_between(index: JobIndex, inside: list[Process], names: dict[str, str]) -> Iterator[Edge]:
    """Yield edges between ranks in different collectives, from the majority or, without one, in all directions.

    If all ranks of an observed job have only waited for messages (longer than LONG_SLEEP_S), the first eight of them
    wait for each other.
    """
    counts = Counter(names.values()).most_common(2)
    if len(counts) < 2:
        receivers = [process for process in inside if _waits_for_message(index.states[process.key])]
        if index.snapshot.live and len(inside) > 1 and receivers == inside:
            for process, partner in permutations(inside[:_MAX_RECEIVERS], 2):
                yield replace(_edge(index, process, partner, "sends nothing"), kind="receive", certain=False)
        return
    (majority, first), (_, second) = counts
    records: Records = {r.rank: r for r in index.snapshot.collectives}
    by_name: dict[str, list[Process]] = defaultdict(list)
    for process in inside:
        by_name[names[process.key]].append(process)
    for process in inside:
        if first > second and names[process.key] != majority:
            continue
        targets = (p for name, group in by_name.items() if name != names[process.key] for p in group)
        for target in islice(targets, max(1, MAX_EDGES // len(inside))):
            yield _edge_between(index, process, target, records)


def _waits_for_message(state: BlockedState) -> bool:
    """Return whether a rank has waited in `recv` for longer than LONG_SLEEP_S."""
    return normalized_operation(state.call.operation) == "recv" and (state.asleep_s or 0.0) > LONG_SLEEP_S


def _edge_between(index: JobIndex, source: Process, target: Process, records: Records) -> Edge:
    """Return the edge to a rank in another collective; its kind is `behind` if records show that it started fewer."""
    edge = _edge(index, source, target, f"is in another: {describe_collective(index.states[target.key])}")
    mine, theirs = records.get(source.rank), records.get(target.rank)
    if mine is None or theirs is None or mine.enqueued <= theirs.enqueued:
        return edge
    last = f", the last {theirs.operation}" if theirs.operation else ""
    counts = f"rank {target.rank} {theirs.enqueued}{last}; rank {source.rank} {mine.enqueued}"
    return replace(edge, kind="behind", evidence=(f"started collectives: {counts}",))


def _edges_to_engines(index: JobIndex, source: Process, group: list[Process]) -> Iterator[Edge]:
    """Yield edges to connected processes in no collective that are engines, or wait for data from this rank."""
    connections = index.open_connections(source)
    wires = {peer.key: (item, socket) for item, socket in connections for peer in index.peers(source, socket)}
    members = {process.key for process in group}
    for state in index.states_of(key for key in wires if key not in members):
        waited = index.waited_sockets(state) if state.kind not in IDLE else ()
        waits = any(source in index.peers(state.process, waited_socket) for waited_socket in waited)
        if state.kind not in IN_COLLECTIVE and (waits or state.process.role in _ENGINES):
            item, socket = wires[state.process.key]
            edge = _edge(index, source, state.process, "is not in it")
            wire = f"fd/{item.fd}: a tcp socket {socket.local}, whose other end is open in pid {state.process.pid}"
            yield replace(edge, evidence=(*edge.evidence, wire), needs="any", certain=False)


def _sends_weights(state: BlockedState) -> bool:
    """Return whether a rank is in a collective with the engine, which gets its weights."""
    return state.kind == "collective" and any(
        PATTERNS["weight_senders"].match(f.location) for f in state.frames
    )


def _edges_to_receivers(index: JobIndex, source: Process, group: list[Process]) -> Iterator[Edge]:
    """Yield edges from a rank that sends weights to connected engines, in a dump to servers, else to an unknown one."""
    servers = [p for p in index.snapshot.processes if p.role == "server" and not index.snapshot.live]
    edges = [_edge(index, source, server, "is not in it") for server in servers[:_MAX_RECEIVERS]]
    edges = edges or list(_edges_to_engines(index, source, group))
    state = index.states[source.key]
    unknown = Edge(
        source.key, "engine", "collective", "the vLLM server", _wait_text(state), (_location(state),), "all"
    )
    observed = any(process.role in (*_ENGINES, "server") for process in index.snapshot.processes)
    yield from edges or ([] if observed else [unknown])


def _collective_names(index: JobIndex, inside: list[Process]) -> dict[str, str]:
    """Return an identifier of each rank's current collective, by the key of its process.

    It is made of the recorded sequence number, else of the recorded operation and sizes, else of the stack.
    """
    records = {record.rank: record for record in index.snapshot.collectives}
    recorded = {p.key: records[p.rank] for p in inside if p.rank in records}
    if not recorded or len(recorded) < len(inside):
        return _names_by_stack(index, inside)
    numbers = {record.enqueued for record in recorded.values()}
    if len(numbers) > 1:
        last = max(numbers)
        return {key: "ahead" if r.enqueued == last else f"at {r.enqueued}" for key, r in recorded.items()}
    return {key: f"{normalized_operation(r.operation)} {r.sizes}" for key, r in recorded.items()}


def _names_by_stack(index: JobIndex, inside: list[Process]) -> dict[str, str]:
    """Return each rank's operation by its stack; a wait without a name gets the name of a rank at the same line."""
    names, sites = {}, {}
    for process in inside:
        call = index.states[process.key].call
        site = frame_text(call.caller) if call.caller else ""
        operation = normalized_operation(call.operation)
        names[process.key] = (call.kind, operation, site)
        if operation not in _UNNAMED and site:
            sites[site] = operation
    return {
        key: f"{kind} {sites.get(site, f'at {site}') if operation in _UNNAMED and kind == 'collective' else operation}"
        for key, (kind, operation, site) in names.items()
    }


def ranks_apart(index: JobIndex, waiting: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ranks at a rendezvous that are not in the largest connected group.

    If no two ranks are connected, return the one rank that listens. Empty if all ranks are connected, if the largest
    groups are equally large, or if none or several of unconnected ranks listen.
    """
    processes = [index.states[key].process for key in waiting]
    peers = {
        p.key: [q.key for _, s in index.open_connections(p) for q in index.peers(p, s)] for p in processes
    }
    connected = ({key, *others} & set(waiting) for key, others in peers.items())
    groups = sorted(merge_overlapping(connected), key=len, reverse=True)
    if len(groups) > 1 and len(groups[0]) > len(groups[1]):
        return tuple(key for key in waiting if key not in groups[0])
    listening = [key for key in waiting if index.listening_ports(index.states[key].process)]
    unconnected = len(groups) > 1 and len(groups[0]) == 1
    return tuple(listening) if unconnected and len(listening) == 1 else ()


def normalized_operation(name: str) -> str:
    """Normalise the name of a collective operation to that of torch.distributed.

    >>> normalized_operation("ncclAllReduce"), normalized_operation("nccl:_all_gather_base")
    ('all_reduce', 'all_gather')
    """
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.rpartition(":")[2]).lower().strip("_")
    name = name.removeprefix("nccl_").removeprefix("p_").removeprefix("mpi_")
    name = re.sub(r"^all_?(reduce|gather|to_?all)", lambda match: f"all_{match[1]}", name)
    name = re.sub(r"^reduce_?scatter", "reduce_scatter", name)
    return re.sub(r"_(base|coalesced|into_tensor|tensor|object_list|object|single|list)$", "", name)


def describe_collective(state: BlockedState) -> str:
    """Return the name of a rank's collective, and the user function that called it."""
    name = state.call.operation or state.kind
    return f"{name} called by {frame_text(state.call.caller)}" if state.call.caller else name


def _wait_text(state: BlockedState) -> str:
    """Return the text of an edge: "waits in all_reduce for"."""
    return f"waits in {state.call.operation} for" if state.call.operation else "waits at the rendezvous for"


def _location(state: BlockedState) -> str:
    """Return the evidence of a wait: pid, frame, and the caller in user code."""
    call = state.call
    frame = call.frame or call.caller
    called = f", called by {frame_text(call.caller)}" if call.caller and call.caller != frame else ""
    return f"{state.process.pid_text}: {frame_text(frame) if frame else state.kind}{called}"


def _edge(index: JobIndex, source: Process, target: Process, why: str) -> Edge:
    """Return the edge from a rank in a collective to another process, with the frames of both as evidence."""
    state, partner = index.states[source.key], index.states[target.key]
    frame = partner.call.frame or partner.call.caller
    visible_frame = frame_text(frame) if frame else partner.call.detail or partner.kind
    evidence = (_location(state), f"{target.pid_text} {why}: {visible_frame}")
    return Edge(source.key, target.key, "collective", target.label, _wait_text(state), evidence, "all")
