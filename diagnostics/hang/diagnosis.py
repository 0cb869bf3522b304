"""Decide from a snapshot whether a job hangs and which processes block it (`diagnose`).

The root blocker of a process is the end of its chain of waits; `_blocker_order` chooses one for the verdict. The
duration of the wait is compared with `Patience` to decide between hang, waiting and progress. Ranks at a rendezvous and
partial dumps are judged separately.
The verdict lists what is excluded, what was not observed, and which commands to run next. All functions are pure: no
clock, no /proc.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace

from diagnostics import called_as
from diagnostics.fixes import count_of, quote_command
from diagnostics.hang import sentences
from diagnostics.hang.blocking_calls import BlockedState
from diagnostics.hang.collect.discovery import SERVICES
from diagnostics.hang.collectives import IN_COLLECTIVE, ranks_apart
from diagnostics.hang.job_index import JobIndex
from diagnostics.hang.root_blockers import LEVELS, RootBlocker, RootSearch
from diagnostics.hang.snapshot import BUSY_SHARE, LONG_SLEEP_S, TRANSFER_RATE, Snapshot
from diagnostics.hang.verdict import HANG, IDLE_JOB, PROGRESS, UNKNOWN, WAITING, WATCH_S, Edge, Verdict
from diagnostics.hang.wait_graph import build_wait_graph
from diagnostics.hang.wait_kinds import CAUSES, IDLE

Blockers = dict[str, RootBlocker]
"""The root blockers of processes, by key; running services and processes that were not inspected have none."""
PATIENCE_S = 60.0
BUSY_PATIENCE_S = 600.0
# Waits whose duration is known, unlike the waits of a loop that polls.
_REQUESTS = ("http", "socket", "kernel")
# With processes that were not observed these causes are only guesses.
_GUESSES_IF_BLIND = ("absent", "lost_message", "native", "lost_answer", "elsewhere")


@dataclass(frozen=True)
class Patience:
    """The time in seconds that a wait may last before it counts as a hang.

    Attributes:
        quiet_s: Limit if no process in the chain of waits computes.
        busy_s: Limit if the process at the end of the chain computes.
    """

    quiet_s: float = PATIENCE_S
    busy_s: float = BUSY_PATIENCE_S


@dataclass(frozen=True)
class Diagnosis:
    """A verdict, with the job index and the wait graph it was derived from."""

    verdict: Verdict
    index: JobIndex
    graph: dict[str, list[Edge]]


def diagnose(
    snapshot: Snapshot, patience: Patience | None = None, selection: tuple[str, ...] = ()
) -> Diagnosis:
    """Return the verdict on a snapshot, with the job index and the wait graph.

    Args:
        snapshot: The observed processes.
        patience: The time that a wait may last before it counts as a hang; None for the defaults.
        selection: The user's options that selected the processes, to repeat them in the recommended next command.
    """
    index = JobIndex.build(snapshot)
    graph = build_wait_graph(index)
    search = RootSearch(index, graph)
    blockers: Blockers = {}
    for key, state in index.states.items():
        serves = state.process.role in SERVICES and state.kind not in ("stopped", "dead", "kernel")
        if not serves and state.kind != "unseen":
            blockers[key] = search.root_blocker(key)
    verdict = _judge(index, search, blockers, patience or Patience())
    verdict = _infer_from_partial_dump(index, _settle_rendezvous(index, verdict))
    excluded, commands = _excluded_causes(index, verdict), _next_commands(index, verdict, selection)
    verdict = replace(verdict, unseen=snapshot.blind, excluded=excluded, next=commands)
    return Diagnosis(verdict, index, graph)


def _judge(index: JobIndex, search: RootSearch, blockers: Blockers, patience: Patience) -> Verdict:
    """Return the verdict: choose the most likely root blocker, and decide whether the wait for it is a hang."""
    incomplete = _is_incomplete(index)
    stuck = {key for key, blocker in blockers.items() if _stuck_by_itself(index, key, blocker)}
    waiting = {k: b for k, b in blockers.items() if k in stuck or (b.chain and b.level != "quiet")}
    if not waiting:
        return _nothing_waits(index, blockers, incomplete=incomplete)
    if all(_waits_for_user(index, blocker) for blocker in waiting.values()):
        return Verdict(IDLE_JOB, sentences.waits_for_user(index, next(iter(waiting.values())).culprits))
    same = Counter(blocker.culprits for blocker in waiting.values())
    key, worst = min(waiting.items(), key=lambda item: _blocker_order(index, item[1], same[item[1].culprits]))
    culprits = set(worst.culprits)
    victims = tuple(k for k, b in waiting.items() if culprits & set(b.culprits) and k not in culprits)
    cycle = worst.level == "cycle" and worst.cause not in ("locks", "joins")
    waited_s = _longest_wait_s(index, worst, (key, *victims))
    if (
        worst.cause == "pending"
        and not index.snapshot.live
        and all(s.kind == "ray" for s in index.states.values())
    ):
        worst = replace(worst, cause="ray_unseen")  # a driver's task runs in another process
    verdict = Verdict(HANG, "", worst.cause, worst.certainty, worst.culprits, worst.chain, cycle)
    verdict = _consider_time(index, replace(verdict, victims=victims, waited_s=waited_s), worst, patience)
    waker = search.possible_waker(worst, patience.quiet_s) if verdict.outcome == HANG else ""
    verdict = replace(verdict, outcome=WAITING) if waker else verdict
    if incomplete and verdict.outcome == HANG and worst.cause in _GUESSES_IF_BLIND:
        verdict = replace(verdict, certainty="hypothesis")
    unexplained, blocking = _is_unexplained(index, worst), index.states_of(worst.culprits)
    kind = blocking[0].kind if blocking else ""
    if unexplained or _may_wait_for_work(index, worst, victims) or _other_end_may_be_missing(index, worst):
        verdict = replace(verdict, outcome=UNKNOWN, certainty="hypothesis")
    if unexplained and kind in IN_COLLECTIVE:
        together = tuple(k for k in blockers if index.states[k].kind == kind)
        sentence = sentences.all_in_one_collective(index, together)
        return replace(verdict, sentence=sentence, culprits=(), victims=together)
    evidence = sentences.evidence_of(index, verdict.culprits, verdict.cause)
    return replace(verdict, sentence=sentences.sentence_of(index, verdict, waker), evidence=evidence)


def _nothing_waits(index: JobIndex, blockers: Blockers, *, incomplete: bool) -> Verdict:
    """Return the verdict on a job without a blocked process: progress, idle or unknown."""
    if incomplete:
        return Verdict(UNKNOWN, sentences.could_not_inspect(index), certainty="hypothesis")
    busy = [key for key, blocker in blockers.items() if blocker.level == "busy"]
    sentence = sentences.nothing_waits(index, busy)
    if not index.snapshot.live:
        return Verdict(UNKNOWN, sentence, certainty="hypothesis")
    return Verdict(PROGRESS if busy else IDLE_JOB, sentence)


def _stuck_by_itself(index: JobIndex, key: str, blocker: RootBlocker) -> bool:
    """Return whether a process is stuck without an edge to another.

    An idle process is not, unless it awaits a signal of another process, or its event loop has an open request; neither
    is a launcher of living children.
    """
    state = index.states[key]
    if blocker.level == "busy":
        # Normal work is not reported: another thread must wait for this one, or a user must have taken a dump.
        return blocker.cause == "spin_python" and (len(state.steps) > 1 or not index.snapshot.live)
    if blocker.level == "quiet" or state.kind in IDLE:
        # It may have missed the signal of another process of the job.
        missed = state.thread.awaits_own_signal and len(index.states) > 1
        return missed or (state.kind == "loop" and bool(index.open_requests(state.process)))
    waits, moves = state.kind == "event", state.kind in ("pipe", "pipe_full", "socket", "socket_full")
    in_handler = waits and state.thread.endless and state.process.wrote
    if index.ran(state) and (in_handler or (moves and not state.thread.steady)):
        return False  # works in a handler of signals, or between two messages
    is_parent = any(index.states[child.key].kind != "dead" for child in index.children(state.process))
    # A wait with a time limit ends by itself, as a sleep does; a dump does not tell the limit.
    timed = waits and bool(state.thread.futex) and not state.thread.endless
    if timed and len(state.process.threads) == 1 and (state.asleep_s or 0.0) > LONG_SLEEP_S:
        return False
    if is_parent and (timed or (waits and index.ran(state)) or state.kind in ("sleep", "child", "join")):
        return False  # a launcher, which waits for the end of its children
    # Nobody waits for a dead process: its parent has not read its exit code yet.
    return state.kind != "dead"


def _waits_for_user(index: JobIndex, blocker: RootBlocker) -> bool:
    """Return whether a process waits for its user at a terminal, and only its launchers wait for it."""
    by_launchers = all(edge.kind == "child" for edge in blocker.chain)
    states = index.states_of(blocker.culprits)
    asking = [
        s for s in states if s.kind == "input" and (0, "tty") in {(i.fd, i.kind) for i in s.process.fds}
    ]
    return by_launchers and index.snapshot.live and len(asking) == len(blocker.culprits)


def _blocker_order(index: JobIndex, blocker: RootBlocker, waiting: int) -> tuple[int, ...]:
    """Return a sort key, best first: level, observed, many waiting, specific cause, no launcher, long chain."""
    observed = 0 if index.states.keys() & set(blocker.culprits) else 1
    level = LEVELS.index(blocker.level)
    if blocker.cause in ("native", "poll") and level == 2:
        level = 3  # report the least understood cause last
    # An unanswered request is better evidence than a rank outside a collective; a launcher's wait is the weakest.
    launcher = bool(blocker.chain) and blocker.chain[0].kind == "child"
    unspecific = blocker.cause == "absent" or not blocker.chain
    return level, observed, -waiting, unspecific, launcher, -len(blocker.chain)


def _longest_wait_s(index: JobIndex, blocker: RootBlocker, keys: tuple[str, ...]) -> float | None:
    """Return the seconds of the longest wait of these processes and of the blocker; None if unknown.

    In a live snapshot the wait lasts at least as long as the observation, unless a request or a sleep began later.
    """
    times: list[float | None] = []
    states = index.states_of({*keys, *blocker.culprits})
    # A launcher waits from the start of the job.
    for state in [s for s in states if s.kind != "child" or s.process.key in blocker.culprits] or states:
        if state.kind not in IDLE:
            times.append(state.asleep_s)
            times += [s.quiet_s for s in index.waited_sockets(state) if state.process.key in keys]
        if state.process.key in blocker.culprits:
            times += [socket.received_s for _, socket in index.open_requests(state.process)]
    known = [time for time in times if time is not None]
    # A waiter seen in each sample may have sent a new request, or was woken, each time; many waits are loops.
    blocking = index.states_of(blocker.culprits)
    requesting = any(s.thread.endless or s.kind in (*_REQUESTS, *IDLE) for s in blocking)
    # A thread that computed first and sleeps now has not waited for the whole observation.
    fell_asleep = any(not s.thread.busy and (s.thread.runnable or 0.0) >= BUSY_SHARE for s in blocking)
    if index.snapshot.live and not ((requesting or fell_asleep) and known):
        known.append(index.snapshot.seconds)
    return max(known, default=None)


def _consider_time(index: JobIndex, verdict: Verdict, blocker: RootBlocker, patience: Patience) -> Verdict:  # noqa: PLR0911
    """Set the outcome by the duration of the wait, and the cause of a busy process.

    The outcome is hang, waiting or progress, or unknown for a poll in a dump. A dump has no times, so its other waits
    count as a hang, unless the blocking process computes.
    """
    live, waited_s = index.snapshot.live, verdict.waited_s
    if _makes_progress(index, blocker):
        return replace(verdict, outcome=PROGRESS)
    long = waited_s is not None and waited_s >= patience.quiet_s
    if blocker.level == "busy":
        if blocker.cause == "spin_python":
            return verdict if long or not live else replace(verdict, outcome=PROGRESS)
        if live and waited_s is not None and waited_s >= patience.busy_s:
            thread = index.states[blocker.culprits[0]].thread
            cause = "spin_python" if thread.gil or not thread.steady else "spin_native"
            return replace(verdict, cause=cause, certainty="hypothesis")
        if _rank_is_elsewhere(index, blocker):
            return replace(verdict, cause="absent", certainty="hypothesis")
        return replace(verdict, outcome=PROGRESS, cause="busy")
    if _may_work_in_turns(index, blocker, patience):
        states = index.states_of(() if blocker.chain else blocker.culprits)
        stale_lock = any(state.polls_for_lock and index.only_slept(state) for state in states)
        if live and stale_lock and index.snapshot.seconds >= patience.quiet_s:
            return replace(verdict, certainty="hypothesis")
        return replace(verdict, outcome=WAITING if live else UNKNOWN)
    return replace(verdict, outcome=WAITING) if blocker.patient and live and not long else verdict


def _makes_progress(index: JobIndex, blocker: RootBlocker) -> bool:
    """Return whether the blocking process moves data between waits, or a message passed the last edge meanwhile."""
    disk = [s for s in index.states_of(blocker.culprits) if s.kind in ("kernel", "file")]
    if any(index.ran(state) and state.process.io_moved for state in disk):
        return True
    states = index.states_of((*(edge.source for edge in blocker.chain[-1:]), *blocker.culprits))
    if len(states) != 2:
        return False
    source, target = states
    moved = target.process.io_bytes > TRANSFER_RATE * index.snapshot.seconds
    moved = moved or (blocker.cause == "file_lock" and target.process.wrote)
    new_holders = {lock.pid for lock in index.snapshot.locks if lock.taken}
    took_turn = blocker.cause == "file_lock" and target.process.pid in new_holders
    if took_turn or (target.kind == "sleep" and index.ran(target) and moved):
        return True
    # A thread at a futex, unlike one that spins, runs only if something arrives: a lock that was released, a message.
    at_semaphore = source.kind in ("processes_lock", "processes_queue_full")
    if at_semaphore and source.thread.endless and index.ran(source):
        return True
    woke = source.kind == "collective" and source.thread.syscall == "futex" and index.ran(source)
    sockets = [s for _, s in index.open_connections(source.process) if s.moved]
    peers = [peer for socket in sockets for peer in index.peers(source.process, socket)]
    return woke and not source.thread.busy and target.process in peers


def _may_work_in_turns(index: JobIndex, blocker: RootBlocker, patience: Patience) -> bool:
    """Return whether a process may work and sleep in turn, or whether its wait has a time limit."""
    states = index.states_of(blocker.culprits)
    naps = any(s.kind == "sleep" and (s.asleep_s or math.inf) < patience.quiet_s for s in states)
    timed = index.snapshot.live and any(state.has_time_limit for state in states)
    kinds = {edge.kind for edge in blocker.chain[-1:]}
    # A client may sleep before its next request.
    asks = kinds == {"socket"} and index.listening_ports(index.states[blocker.chain[-1].source].process)
    waits = kinds <= {"pipe", "pipe_end", "child", "idle", "shared_event", "barrier"}
    polls = blocker.cause == "poll" and (waits or bool(asks))
    in_turns = blocker.cause in ("poll", "file_lock") or kinds == {"processes_queue_full"}
    return timed or polls or (in_turns and naps)


def _is_unexplained(index: JobIndex, blocker: RootBlocker) -> bool:
    """Return whether the blocking process was not inspected, or its native code explains nothing."""
    states = index.states_of(blocker.culprits)
    if blocker.cause == "native":
        return not blocker.chain or all(s.kind in ("native", "collective", "join") for s in states)
    return bool(states) and all(s.kind == "unseen" for s in states) and blocker.level == "stuck"


def _may_wait_for_work(index: JobIndex, blocker: RootBlocker, victims: tuple[str, ...]) -> bool:
    """Return whether the blocking process may only wait for work: a datagram, input, a signal, a request.

    It is unknown which end of a connection sent the last data, or no process waits for the client, which may be a
    subscriber: it got nothing yet, or the first part of a response.
    """
    states = index.states_of((*(edge.source for edge in blocker.chain[-1:]), *blocker.culprits))
    if index.snapshot.live and states and states[-1].kind == "input":
        by_launchers = all(edge.kind == "child" for edge in blocker.chain)
        return by_launchers and index.may_get_input(states[-1].process)
    if index.snapshot.live and len(states) == 1 and not blocker.chain:
        datagram = states[0].kind == "socket" and not index.waited_sockets(states[0])
        return datagram or states[0].kind == "signal"
    if len(states) != 2 or states[1].kind not in ("idle", "signal", "loop"):
        return False
    source, target = states
    of_child = blocker.chain[-1].kind == "pipe" and source.process.ppid == target.process.pid
    sockets = index.waited_sockets(source)
    alone = all(state.kind == "child" for state in index.states_of(victims) if state is not source)
    silent = source.kind == "socket" and all(socket.bytes_received == 0 for socket in sockets)
    streams = source.kind == "http" and not any(socket.request_unanswered for socket in sockets)
    subscribes = alone and bool(sockets) and (silent or (streams and source.reads_stream))
    simultaneous = any(socket.simultaneous for socket in sockets)
    return simultaneous or subscribes or (of_child and target.kind == "signal")


def _is_incomplete(index: JobIndex) -> bool:
    """Return whether a part of the job is missing, or a Python process, or all processes, could not be inspected."""
    states = [state for state in index.states.values() if state.process.role != "helper"]
    unseen = any(state.kind == "unseen" for state in states if state.process.python)
    inspected = any(state.kind != "unseen" for state in states)
    return bool(index.snapshot.missing) or unseen or not inspected


# A dump is one sample, without times and sockets, and often of only some processes.

_WORKER_WAITS = ("processes_queue", "processes_lock", "pipe")
# The cause that a kind of wait in a partial dump allows, and the reason in the sentence.
_INFERENCES = {
    "collective": ("absent", "a rank of its group has not come, is in another collective, or is gone"),
    "device": ("device", "a kernel there, or a collective that a rank has not joined, does not finish"),
}


def _other_end_may_be_missing(index: JobIndex, blocker: RootBlocker) -> bool:
    """Return whether the other end of a wait in a dump, or the main thread, may be missing from the dump."""
    if index.snapshot.live or blocker.chain or blocker.level != "stuck":
        return False
    return blocker.cause in ("elsewhere", "ray_unseen") or any(
        map(_may_be_idle, index.states_of(blocker.culprits))
    )


def _may_be_idle(state: BlockedState) -> bool:
    """Return whether a stack may be that of an idle thread or worker: no main thread, or a worker without user code."""
    main = state.steps[0][0] is state.process.main
    return not main or (state.kind in _WORKER_WAITS and state.call.caller is None)


def _rank_is_elsewhere(index: JobIndex, blocker: RootBlocker) -> bool:
    """Return whether a rank is in user code while the others are in a collective, in a dump taken after a wait."""
    states = index.states_of(blocker.culprits)
    last = blocker.chain[-1].kind if blocker.chain else ""
    return not index.snapshot.live and last == "collective" and any(s.kind == "compute" for s in states)


def _infer_from_partial_dump(index: JobIndex, verdict: Verdict) -> Verdict:
    """For an undecided dump with ranks in collectives or on the device, return a hypothesis that blames no process.

    Other verdicts are returned unchanged.
    """
    kinds = Counter(state.kind for state in index.states.values() if state.kind in _INFERENCES)
    if index.snapshot.live or verdict.outcome != UNKNOWN or not kinds:
        return verdict
    [(kind, _)] = kinds.most_common(1)
    keys = tuple(key for key, state in index.states.items() if state.kind == kind)
    cause, reason = _INFERENCES[kind]
    sentence, evidence = sentences.inferred_from_dump(index, keys, reason), sentences.evidence_of(index, keys)
    waited_s = verdict.waited_s
    return Verdict(HANG, sentence, cause, "hypothesis", victims=keys, evidence=evidence, waited_s=waited_s)


# Ranks at a rendezvous.


def _settle_rendezvous(index: JobIndex, verdict: Verdict) -> Verdict:
    """For ranks that wait at a rendezvous, replace the blocking processes by the ranks that are apart from most.

    If there are none, the missing rank was not observed, and no process is named. Other verdicts stay unchanged.
    """
    if verdict.cause != "rendezvous" or not index.snapshot.live:
        return verdict
    waiting = tuple(key for key, state in index.states.items() if state.kind == "rendezvous")
    separate = ranks_apart(index, waiting)
    victims = tuple(dict.fromkeys(key for key in (*waiting, *verdict.victims) if key not in separate))
    chain = verdict.chain if separate == verdict.culprits else ()
    verdict = replace(verdict, culprits=separate, victims=victims, chain=chain)
    if separate:
        sentence = sentences.sentence_of(index, verdict)
    else:
        sentence = sentences.missing_at_rendezvous(index, verdict, waiting)
    evidence = sentences.evidence_of(index, separate or waiting)
    return replace(verdict, sentence=sentence, evidence=evidence)


# Excluded causes, and commands to run next.


def _excluded_causes(index: JobIndex, verdict: Verdict) -> tuple[str, ...]:
    """Return a text about causes that the observations rule out; none for a hang."""
    kinds = [s.kind for s in index.states.values() if s.process.state and s.process.role != "helper"]
    if verdict.outcome == HANG or not kinds or {"stopped", "dead", "kernel"} & set(kinds):
        return ()
    return (f"stopped, dead or in the kernel: none of {count_of(len(kinds), 'process')} (/proc/PID/stat)",)


_NEXT_WITHOUT_WAITS = (
    "dump the other processes, too (py-spy dump, ray stack): hang --from FILE...; or run hang where they run"
)
_NEXT_IN_COLLECTIVES = (
    "ncclRAS, NCCL 2.24 or newer: ncclras -v (which rank lags in which communicator)",
    "with TORCH_FR_BUFFER_SIZE=2000 in the job: its flight recorder, then hang --from FILE...",
)


def _next_commands(index: JobIndex, verdict: Verdict, selection: tuple[str, ...]) -> tuple[str, ...]:
    """Return commands that would give more evidence, with the user's own process options."""
    if verdict.outcome == WAITING:
        seconds = str(max(WATCH_S, 4 * round(index.snapshot.seconds)))
        return (quote_command((*called_as().split(), "hang", *selection, "--seconds", seconds)),)
    if verdict.outcome == IDLE_JOB:
        return ()
    commands = list(CAUSES[verdict.cause].next) if verdict.cause else []
    if verdict.outcome == UNKNOWN:
        if any(state.kind in IN_COLLECTIVE for state in index.states.values()):
            commands += _NEXT_IN_COLLECTIVES
        blocking = next((p for key in verdict.culprits if (p := index.process(key))), None)
        if blocking is not None and blocking.python and not blocking.numbered and verdict.cause != "input":
            commands.append(f"py-spy dump --native --pid {blocking.pid}")
        if not verdict.culprits and not commands and not index.snapshot.live:
            commands.append(_NEXT_WITHOUT_WAITS)
    return tuple(commands)
