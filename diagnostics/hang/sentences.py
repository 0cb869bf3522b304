"""Write verdicts as sentences for users, and list the observations that support them.

`sentence_of` writes the sentence of a verdict that names blocking processes; other functions write those of verdicts
without one. `evidence_of` lists the observations.
"""

from collections.abc import Iterable

from diagnostics.fixes import count_of
from diagnostics.hang.blocking_calls import BlockedState, frame_text
from diagnostics.hang.collectives import IN_COLLECTIVE, describe_collective
from diagnostics.hang.job_index import JobIndex
from diagnostics.hang.root_blockers import CAUSE_BY_EDGE
from diagnostics.hang.snapshot import StackFrame
from diagnostics.hang.verdict import PROGRESS, UNKNOWN, WAITING, WATCH_S, Verdict
from diagnostics.hang.wait_kinds import CAUSES, DETAILS, PATTERNS, WITHIN_PROCESS

_MAX_NAMES = 4
_WITH_OPEN_REQUESTS = ("lost_answer", "blocked_loop", "lost_message", "pool")
_OTHER_CAUSES = "brings another size, or a link or a device between them does not respond. Python's stacks do not show which."  # noqa: E501


def sentence_of(index: JobIndex, verdict: Verdict, waker: str = "") -> str:
    """Return the sentence for a verdict that names blocking processes; `waker` is one that may end the wait."""
    names = [_label(index, key, verdict) for key in verdict.culprits]
    who = _enumerate(names) if len(names) <= _MAX_NAMES else f"{len(names)} processes"
    if verdict.cycle and verdict.cause == "deadlock":
        sources = [edge.source for edge in verdict.chain]
        cycle = verdict.chain[sources.index(verdict.chain[-1].target) :]
        steps = [f"{_label(index, edge.source, verdict)} {edge.text} {edge.label}" for edge in cycle]
        undecided = waker or (verdict.outcome == WAITING and index.snapshot.seconds >= WATCH_S)
        steps += [_may_end(index, waker, verdict)] if undecided else []
        details = "" if undecided else "".join(details_of(index, verdict).values())
        begin = f"{'Not decided' if undecided else 'Too early to say'}, perhaps a deadlock"
        return f"{begin if verdict.outcome == WAITING else 'Deadlock'}: {'; '.join(steps)}{details}."
    what, since = _predicate(index, verdict), _duration(verdict)
    victims = _short_labels(index, verdict.victims)
    blocks = f", and {'block' if len(names) > 1 else 'blocks'} {victims}" if victims else ""
    waited_for = f", and {victims} wait{'s' if len(verdict.victims) == 1 else ''} for it" if victims else ""
    blocks = waited_for if verdict.cause == "dead" else blocks
    if verdict.outcome == PROGRESS:
        ended = any(state.kind == "dead" for state in index.states_of(verdict.culprits))
        return f"No hang so far: {who} {'has just ended' if ended else what}{waited_for}{since}."
    if verdict.outcome == WAITING:
        if waker or index.snapshot.seconds >= WATCH_S:
            return f"Not decided: {who} {what}{waited_for}{since}; {_may_end(index, waker, verdict)}."
        return f"Too early to say: {who} {what}{blocks}{since}."
    if verdict.outcome == UNKNOWN and verdict.cause == "lost_answer":
        what = "is idle, and may owe a response, or its client waits for events: no traffic shows which"
    if verdict.outcome == UNKNOWN:
        begin = "Not decided" if verdict.cause == "input" else "Unknown cause"
        return f"{begin}: {who} {what}{waited_for}{since}."
    return f"{_capitalize(who)} {what}{blocks}{since}."


def _may_end(index: JobIndex, waker: str, verdict: Verdict) -> str:
    """Return what may end a wait that is not decided."""
    state = index.states.get(waker)
    if state is None:
        timed = any(state.has_time_limit for state in index.states_of(verdict.culprits))
        return "the wait has a time limit" if timed else "it may work and sleep in turn"
    return f"{state.process.label} {_doing(state)}, and may end the wait"


def _predicate(index: JobIndex, verdict: Verdict) -> str:
    """Return the predicate of the sentence, which describes the activity of the blocking processes."""
    states = index.states_of(verdict.culprits)
    cause = verdict.cause
    if not states:
        return CAUSES[cause].unobserved or CAUSES[cause].means
    if cause == "mismatch":
        return _in_different_collectives(index, verdict, states)
    if cause == "absent" and len(states) > 1:
        return "are not in the collective that the others wait in"
    state, details = states[0], "".join(details_of(index, verdict).values())
    last = verdict.chain[-1] if verdict.chain else None
    lost = cause == "lost_message" and last and last.source in verdict.culprits
    if last and last.kind == "pipe_end":
        pipe, reader = last.evidence[1].rpartition(" ")[2], _short_labels(index, (last.source,))
        return f"keeps {pipe} open, which it inherited and whose end {reader} waits for: it {_doing(state)}"
    if lost or (cause in CAUSE_BY_EDGE.values() and CAUSE_BY_EDGE.get(last.kind if last else "") != cause):
        return f"{_doing(state)}{', and the sender is idle: the message was lost' if lost else ''}{details}"
    phrase = CAUSES[cause].phrase
    if cause in ("kernel", "stopped") and last and last.kind == "collective":
        phrase = f"is not in the collective that the others wait in: it {phrase}"
    counts = {"locked": len(state.deadlocked), "collectives": len(state.in_collective)}
    detail = state.call.detail or "function unknown"
    return phrase.format(doing=_doing(state) + details, details=details, detail=detail, **counts)


def _in_different_collectives(index: JobIndex, verdict: Verdict, states: list[BlockedState]) -> str:
    """Return the predicate for ranks in a mismatched collective: their collectives, with the callers."""
    victims = index.states_of(verdict.victims)
    # Not the launcher, which waits for all ranks.
    victim = next((state for state in victims if state.kind == "collective"), next(iter(victims), None))
    if len(states) == 1 and victim:
        return f"is in {describe_collective(states[0])} while the others are in {describe_collective(victim)}"
    listed = "; ".join(f"{_short_label(state)} in {describe_collective(state)}" for state in states)
    if {state.call.operation for state in states} == {"send", "recv"}:
        return f"are in a send and a recv that do not match in tag, order or size: {listed}"
    return f"are in different collectives: {listed}"


def _doing(state: BlockedState) -> str:
    """Return what a process does, and where: "waits for an item of a queue in f (a.py:3)"."""
    text, detail, outer = state.call.wait.text, state.call.detail, ""
    if state.kind in ("native", "file") and detail:
        text = f"waits in the system call {detail}"
    first, *further = [call for _, call in state.steps]
    if further and first.kind in WITHIN_PROCESS and (frame := first.caller or first.frame):
        outer = f", while its main thread {first.wait.text} in {frame_text(frame)}"
    frame = state.call.caller or state.call.frame
    return f"{text} in {frame_text(frame)}{outer}" if frame else text


def details_of(index: JobIndex, verdict: Verdict) -> dict[str, str]:
    """Return what is known of the wait of the first blocking process, by name; the texts of a dump are empty.

    `stack_fixes.toml` names these details in the conditions of fixes.
    """
    for state in index.states_of(verdict.culprits)[:1]:
        relocks = state.thread.relocks
        took = "" if relocks is None else "".join(map(frame_text, state.frames[relocks:][:1]))
        family = [
            s for s in index.states.values() if s.process.ppid in (state.process.pid, state.process.ppid)
        ]
        ended = [s for s in family if s.kind == "dead" and s.process.key not in verdict.culprits]
        new = [s for s in family if any("pool.py:_handle_workers" in f.location for f in s.frames)]
        writers = index.stdin_writers(state.process)
        facts = _thread_facts(index, state, took=bool(took)) | {
            "relock": took,
            "worker_replaced": state.kind == "pool" and new,
            "message_short": verdict.cycle and {e.kind for e in verdict.chain[-2:]} in ({"socket"}, {"pipe"}),
            "outside": state.kind == "input" and not writers,
            "writer": state.kind == "input" and writers and index.may_get_input(state.process),
            "lock_file": verdict.cause == "file_lock" and state.polls_for_lock and state.kind == "sleep",
            "accepts_none": any(index.has_backlog(s.process) for s in index.states_of(verdict.culprits)),
            "dead": ended and state.kind != "sleep",
            "tasks_unseen": verdict.cause == "lost_answer" and any("asyncio" in f.path for f in state.frames),
        }
        past = _is_past(state, index.states_of(verdict.victims))
        facts |= dict.fromkeys(
            ["left_loop" if past else "elsewhere"], verdict.cause == "absent" and state.kind == "sleep"
        )
        named = {"dead": ended, "new": new, "writer": writers[:_MAX_NAMES]}
        words = {name: _enumerate(map(_short_label, states)) for name, states in named.items()}
        fds = ", ".join(map(str, index.own_lock_fds(state)))
        texts = {
            name: DETAILS[name].format(frame=took, fds=fds, **words) for name, holds in facts.items() if holds
        }
        return texts if index.snapshot.live else dict.fromkeys(texts, "")
    return {}


def _thread_facts(index: JobIndex, state: BlockedState, *, took: bool) -> dict[str, object]:
    """Return which details hold for the blocking thread; `took` is whether it took its lock itself."""
    process, names, kinds = (
        state.process,
        [frame.location for frame in state.frames],
        state.call.wait.ended_by,
    )
    holders = index.semaphore_holders(state)
    locked = state.kind == "lock" and not took and (state.alone or not index.snapshot.live)
    forked = locked and (process.forked or any(map(PATTERNS["forks"].match, names)))
    between = state.kind in ("barrier", "tasks_done") and state.thread.futex.startswith("sem:")
    by_thread = kinds[:2] in (("thread",), ("thread", "member")) and not (took or forked or between)
    alone = state.alone and by_thread and not state.has_time_limit
    conditions = [
        call.kind == "event" and _is_condition(thread.frames) and thread.tid != state.thread.tid
        for thread, call in state.steps
    ]
    return {
        "holder_ended": holders and not holders & index.states.keys(),
        "holds_itself": process.key in holders,
        "own_file_lock": index.own_lock_fds(state),
        "sender_ended": index.reads_rest(state),
        "datagram": state.kind == "socket" and not index.waited_sockets(state),
        "forked_lock": forked,
        "requests_itself": index.requests_itself(state),
        "condition": state.kind == "event" and _is_condition(state.frames),
        "main_condition": any(conditions),
        "none_takes": alone and state.kind == "tasks_done",
        "thread_ended": alone and state.kind != "tasks_done",
        "member_ended": state.alone and between and state.kind == "barrier",
    }


def _is_condition(frames: tuple[StackFrame, ...]) -> bool:
    """Return whether a thread waits in `Condition.wait`, called by the program itself."""
    names = [frame.location for frame in frames[:2]]
    return " ".join(names).count("threading.py:") == 1 and names[0].endswith("threading.py:wait")


def _is_past(state: BlockedState, others: list[BlockedState]) -> bool:
    """Return whether a rank is at a later line of the function in which another rank called its collective."""
    calls = [s.call.caller for s in others if s.kind in IN_COLLECTIVE and s.call.caller]
    lines = {frame.location: frame.line for frame in state.frames}
    return any(lines.get(call.location, 0) > call.line for call in calls)


def evidence_of(index: JobIndex, keys: tuple[str, ...], cause: str = "") -> tuple[str, ...]:
    """Return observations about the first four processes.

    If the cause may concern responses (`_WITH_OPEN_REQUESTS`), add the requests that they have not answered.
    """
    lines = []
    for state in index.states_of(keys[:_MAX_NAMES]):
        process = state.process
        if process.state:
            lines.append(f"/proc/{process.pid}/stat: state {process.state}")
        for thread, call in state.steps:
            name = f" thread {thread.name!r}" if len(state.steps) > 1 else ""
            frames = " ← ".join(frame_text(frame) for frame in thread.frames[:_MAX_NAMES])
            stack = "" if state.kind == "dead" else f": {frames or call.detail or thread.wchan or 'no stack'}"
            lines.append(f"{process.pid_text}{name} {call.wait.text}{stack}")
        # Ranks that wait for each other have unread bytes on many connections.
        if cause in _WITH_OPEN_REQUESTS and state.kind not in IN_COLLECTIVE:
            requests = [(i.fd, s.remote, s.received_s) for i, s in index.open_requests(process)[:_MAX_NAMES]]
            text = "fd/{}: request from {} {:.0f} s ago, no response since"
            lines += [text.format(*request) for request in requests if request[2] is not None]
    return tuple(lines)


def nothing_waits(index: JobIndex, busy: list[str]) -> str:
    """Return the sentence for a job in which no process waits; one sample of a dump cannot exclude a hang."""
    count = count_of(len(index.states), "process")
    if not index.snapshot.live:
        computing = f"{len(busy)} of {count} may compute" if busy else f"{count} idle"
        return f"Unknown: {computing}; a dump does not show whether a process waits for a response."
    if not busy:
        return f"Nothing hangs: {count} idle; no process waits for a response."
    states = [index.states[key] for key in busy]
    return f"Nothing hangs: {_first_names([f'{s.process.label} {_doing(s)}' for s in states])}."


def waits_for_user(index: JobIndex, keys: tuple[str, ...]) -> str:
    """Return the sentence for a process that waits for its user at a terminal, and blocks at most its launchers."""
    state = index.states[keys[0]]
    return f"Nothing hangs: {state.process.label} {_doing(state)} at its terminal. No process waits for it."


def missing_at_rendezvous(index: JobIndex, verdict: Verdict, waiting: tuple[str, ...]) -> str:
    """Return the sentence for ranks that wait at a rendezvous for a rank that was not observed."""
    who = _capitalize(_short_labels(index, waiting))
    verb = "waits" if len(waiting) == 1 else "wait"
    begin = "Too early to say: " if verdict.outcome == WAITING else ""
    missing = f"the missing rank is not among the {len(index.states)} processes observed{_duration(verdict)}"
    return f"{begin}{who} {verb} at the rendezvous for ranks that do not join; {missing}."


def all_in_one_collective(index: JobIndex, keys: tuple[str, ...]) -> str:
    """Return the sentence for observed ranks that are all in the same collective, so stacks cannot show the cause."""
    who = _short_labels(index, keys)
    places = {describe_collective(state): _short_label(state) for state in index.states_of(keys)}
    collective, *different = places
    if len(keys) == 1:
        ranks = f"{who} is in {collective}. Another rank has not joined it, is"
    elif not different:
        ranks = f"{who} are all in {collective}. The missing rank is not among them, or a rank is"
    else:
        listed = "; ".join(f"{rank} in {place}" for place, rank in list(places.items())[:_MAX_NAMES])
        ranks = f"{who} are in the same collective, called from different lines: {listed}. They may use "
        ranks += "process groups in different order, the missing rank is not among them, or a rank is"
    return f"Unknown cause: {ranks} in another group or {_OTHER_CAUSES}"


def inferred_from_dump(index: JobIndex, keys: tuple[str, ...], why: str) -> str:
    """Return the sentence for a cause that a dump implies: it names the waiting processes, not the blocking one."""
    state, who = index.states[keys[0]], _short_labels(index, keys)
    doing = f"waits in {describe_collective(state)}" if state.kind == "collective" else _doing(state)
    if len(keys) > 1:
        doing = doing.replace("waits", "wait", 1)
    return f"{_capitalize(who)} {doing}: {why}. The dump does not show which process blocks it."


def could_not_inspect(index: JobIndex) -> str:
    """Return the sentence for a job of which too little could be read."""
    unseen = [state.process for state in index.states.values() if state.kind == "unseen"]
    names = [process.label for process in unseen if process.role != "helper"]
    names += index.snapshot.missing
    if not names:
        return "Unknown: no wait could be identified."
    return f"Unknown: {_first_names(names)} could not be inspected."


def _label(index: JobIndex, key: str, verdict: Verdict) -> str:
    if process := index.process(key):
        return process.label
    return next((edge.label for edge in verdict.chain if edge.target == key), key)


def _short_label(state: BlockedState) -> str:
    process = state.process
    has_both = process.rank is not None and not process.numbered
    return f"rank {process.rank} (pid {process.pid})" if has_both else process.pid_text


def _short_labels(index: JobIndex, keys: tuple[str, ...]) -> str:
    states = index.states_of(keys)
    return _enumerate(map(_short_label, states)) if len(states) <= _MAX_NAMES else f"{len(states)} processes"


def _enumerate(names: Iterable[str]) -> str:
    *first, last = list(names) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def _first_names(names: list[str]) -> str:
    more = [f"{len(names) - _MAX_NAMES} more"] if len(names) > _MAX_NAMES else []
    return _enumerate([*names[:_MAX_NAMES], *more])


def _duration(verdict: Verdict) -> str:
    seconds = verdict.waited_s
    if seconds is None or seconds < 1:
        return ""
    return f" (for {seconds:.0f} s)" if seconds < 120 else f" (for {seconds / 60:.0f} min)"


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
