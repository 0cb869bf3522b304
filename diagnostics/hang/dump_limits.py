"""Limit the verdict on a dump: it is one sample, without times and sockets, and often of only some processes."""

from __future__ import annotations

import re
from collections import Counter

from diagnostics.hang import sentences
from diagnostics.hang.blocking_calls import LIBRARY
from diagnostics.hang.blocking_thread import BlockedState
from diagnostics.hang.job_index import JobIndex
from diagnostics.hang.root_blockers import RootBlocker
from diagnostics.hang.verdict import HANG, UNKNOWN, Verdict

# Computing that a stack names, rather than a tool's guess whether a thread runs.
_NAMED_WORK = ("compile", "load", "import")
# Causes shown by a thread's own wait; a thread other than the main one may idle that way.
_OWN_WAITS = ("lost_message", "lock", "poll", "elsewhere", "native", "full_pipe", "connect", "pending")
_WORKER_WAITS = ("processes_queue", "processes_lock", "pipe")
_FIRST_FUNCTIONS = (
    "<module>", "main", "_main", "_bootstrap", "_bootstrap_inner", "_start", "clone", "clone3",
)  # fmt: skip
_OWN_FRAMES_OF_WORK = 4
_THREAD_START = re.compile(r"_bootstrap(_inner)?|_{0,2}clone3?|start_thread|thread_start")
# The cause that a kind of wait in a partial dump allows, and the reason in the sentence.
_INFERENCES = {
    "collective": ("absent", "a rank of its group has not come, is in another collective, or is gone"),
    "device": ("device", "a kernel there, or a collective that a rank has not joined, does not finish"),
}


def was_interrupted(index: JobIndex, state: BlockedState) -> bool:
    """Return whether the dump shows an endless computation that a user interrupted."""
    return not index.snapshot.live and state.kind in ("symbolic", "regex")


def waits_may_be_missing(index: JobIndex, busy: list[str]) -> bool:
    """Return whether the waiting processes may be missing from the dump."""
    return not index.snapshot.live and not any(index.states[key].kind in _NAMED_WORK for key in busy)


def other_end_may_be_missing(index: JobIndex, blocker: RootBlocker) -> bool:
    """Return whether a wait in a dump is one whose other end, or whose main thread, is not in it."""
    if index.snapshot.live or blocker.chain or blocker.level != "stuck":
        return False
    states = index.states_of(blocker.culprits)
    labelled = index.snapshot.source.startswith("py-spy")  # it names the main thread reliably
    if blocker.cause == "elsewhere" or any(
        _may_be_idle_worker(state) and not (labelled and state.steps[0][0].name == "MainThread")
        for state in states
    ):
        return True
    return blocker.cause in _OWN_WAITS and bool(states) and not any(map(_starts_at_main, states))


def _may_be_idle_worker(state: BlockedState) -> bool:
    """Return whether the dump is a part without a caller: it may be a worker's, which idles so."""
    starts = bool(state.frames) and state.frames[-1].function in _FIRST_FUNCTIONS
    return state.kind in _WORKER_WAITS and state.call.caller is None and not starts


def _starts_at_main(state: BlockedState) -> bool:
    """Return whether the way to what a process waits for begins at its main thread."""
    if not state.steps:
        return False
    first = state.steps[0][0]
    labelled = first.name == "MainThread" or first.tid == state.process.pid
    own_frames = [frame for frame in first.frames if not LIBRARY.search(frame.path)]
    started = first.frames and _THREAD_START.fullmatch(first.frames[-1].function)
    return labelled or len(own_frames) >= _OWN_FRAMES_OF_WORK or not started


def rank_is_elsewhere(index: JobIndex, blocker: RootBlocker) -> bool:
    """Return whether a rank is in its own code while others wait in a collective: who took the dump had waited."""
    states = index.states_of(blocker.culprits)
    last = blocker.chain[-1].kind if blocker.chain else ""
    return not index.snapshot.live and last == "collective" and any(s.kind == "compute" for s in states)


def infer_from_partial_dump(index: JobIndex, verdict: Verdict) -> Verdict:
    """Return the verdict; for an undecided dump only the cause that its waits allow, without a process."""
    kinds = Counter(state.kind for state in index.states.values() if state.kind in _INFERENCES)
    if index.snapshot.live or verdict.outcome != UNKNOWN or not kinds:
        return verdict
    [(kind, _)] = kinds.most_common(1)
    keys = tuple(key for key, state in index.states.items() if state.kind == kind)
    cause, reason = _INFERENCES[kind]
    sentence, evidence = sentences.inferred(index, keys, reason), sentences.evidence_of(index, keys)
    waited_s = verdict.waited_s
    return Verdict(HANG, sentence, cause, "hypothesis", victims=keys, evidence=evidence, waited_s=waited_s)
