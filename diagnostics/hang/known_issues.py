"""Name the known issue that a verdict is, and recommend the fix that the stacks call for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from diagnostics import catalog
from diagnostics.catalog import mitigation_ranking
from diagnostics.catalog.model import Frame as FramePattern
from diagnostics.catalog.model import Issue, Shape
from diagnostics.findings import Finding
from diagnostics.fixes import Advice, Explain, Fix
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.hang.blocking_calls import is_forked
from diagnostics.hang.blocking_thread import BlockedState
from diagnostics.hang.diagnosis import Diagnosis
from diagnostics.hang.snapshot import StackFrame
from diagnostics.hang.verdict import HANG

_load = cache(catalog.load)


@dataclass(frozen=True)
class StackFix:
    """A fix for what a stack shows.

    Attributes:
        causes: Causes of verdicts that it is for.
        trigger: The trigger of the known issue; empty if none is recorded.
        advice: What to change.
    """

    name: str
    causes: tuple[str, ...]
    trigger: str
    advice: str


_STACK_FIXES = {
    fix.name: fix
    for fix in (
        StackFix(
            "openmp_after_fork", ("lock",), "fork_with_lock",
            "Start the process with spawn or forkserver, or set OMP_NUM_THREADS=1 before the fork: a forked child has "
            "none of OpenMP's or BLAS's threads.",
        ),
        StackFix(
            "fork_with_lock", ("lock",), "fork_with_lock",
            'Start the process with multiprocessing.get_context("spawn") or "forkserver": the fork copied a lock that '
            "another thread held, and that thread does not exist in the child.",
        ),
        StackFix(
            "import_lock", ("lock", "locks"), "",
            "Import the module once in the main thread before other threads start: these threads wait for each other's "
            "import locks.",
        ),
        StackFix(
            "semaphore", ("lock", "dead"), "",
            "Hold the multiprocessing lock only inside `with lock:`, and restart the job if its holder died: the "
            "kernel does not release a semaphore when a process ends.",
        ),
        StackFix(
            "two_orders", ("locks",), "two_orders", "Take the two locks in the same order in every thread.",
        ),
        StackFix(
            "raised_with_lock", ("lock",), "raised_with_lock",
            "Hold the lock with `with lock:`: a thread that raises between acquire() and release() never releases it.",
        ),
        StackFix(
            "queue_not_drained", ("full_pipe", "deadlock"), "join_before_get",
            "Take every item out of the queue before join(): a process with items in a multiprocessing queue ends only "
            "when they were read.",
        ),
        StackFix(
            "output_not_read", ("full_pipe", "deadlock"), "wait_before_read",
            "Read the child's output while waiting: communicate() or subprocess.run(capture_output=True) instead of "
            "wait() with PIPE.",
        ),
        StackFix(
            "backlog", ("connect",), "",
            "The server's queue of connections is full because it accepts none: look at what its accept() loop waits "
            "for; raise the backlog only if it merely starts slowly.",
        ),
    )
}  # fmt: skip
_OPENMP = re.compile(r"(?i)gomp|kmp_|openmp|blas")


def with_issue(diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis with the code of the known issue that fits best: the one that requires most frames."""
    verdict = diagnosis.verdict
    if verdict.outcome != HANG:
        return diagnosis
    culprits = list(_frames(diagnosis, verdict.culprits))
    waiters = list(_frames(diagnosis, verdict.victims))
    matches = [
        (len(shape.culprit) > 0, len(shape.waiter) > 0, issue.code)
        for issue in _load().values()
        for shape in issue.hang
        if verdict.cause in shape.causes and _matches(shape, culprits, waiters)
    ]
    if not matches:
        return diagnosis
    best = max(matches, key=lambda match: (match[0] + match[1], match[0], match[2]))
    return replace(diagnosis, verdict=replace(verdict, code=best[2]))


def _frames(diagnosis: Diagnosis, keys: Iterable[str]) -> Iterable[StackFrame]:
    for key in keys:
        state = diagnosis.index.states.get(key)
        for thread, _ in state.steps if state else ():
            yield from thread.frames


def _matches(shape: Shape, culprits: list[StackFrame], waiters: list[StackFrame]) -> bool:
    return _any_frame(shape.culprit, culprits) and _any_frame(shape.waiter, waiters or culprits)


def _any_frame(patterns: tuple[FramePattern, ...], frames: list[StackFrame]) -> bool:
    return not patterns or any(
        pattern.function in ("*", frame.function) and pattern.path in frame.path
        for pattern in patterns
        for frame in frames
    )


def stack_fix(diagnosis: Diagnosis) -> StackFix | None:
    """Return the fix for what the stacks show; None if they show nothing particular."""
    verdict = diagnosis.verdict
    states = [diagnosis.index.states[key] for key in verdict.culprits if key in diagnosis.index.states]
    if not states:
        return None
    name = _stack_pattern(diagnosis, states)
    fix = _STACK_FIXES.get(name)
    return fix if fix and verdict.cause in fix.causes else None


def _stack_pattern(diagnosis: Diagnosis, states: list[BlockedState]) -> str:  # noqa: PLR0911
    cause = diagnosis.verdict.cause
    state = states[0]
    frames = [frame for entry in states for thread, _ in entry.steps for frame in thread.frames]
    functions = {frame.function for frame in frames}
    forked = any(is_forked(thread) for thread, _ in state.steps)
    if cause == "connect":
        return "backlog"
    if cause in ("full_pipe", "deadlock"):
        writes = any(f.function in ("_feed", "join_thread", "_finalize_join") for f in frames)
        joins = any("multiprocessing/" in f.path and f.function in ("join", "wait", "poll") for f in frames)
        if writes or (joins and cause == "deadlock" and _has_full_pipe(diagnosis)):
            return "queue_not_drained"
        waits = any(f.path.endswith("subprocess.py") and f.function in ("wait", "_wait") for f in frames)
        return "output_not_read" if waits else ""
    if state.kind == "threads" or (forked and any(_OPENMP.search(name) for name in functions)):
        return "openmp_after_fork"
    if any(
        "importlib" in f.path and f.function in ("acquire", "_lock_unlock_module", "__enter__")
        for f in frames
    ):
        return "import_lock"
    chain = diagnosis.verdict.chain
    if state.kind == "processes_lock" or (chain and chain[-1].kind == "processes_lock"):
        return "semaphore"
    if cause == "locks":
        return "two_orders"
    if cause == "lock" and forked:
        return "fork_with_lock"
    return "raised_with_lock" if cause == "lock" and state.kind == "lock" else ""


def _has_full_pipe(diagnosis: Diagnosis) -> bool:
    return any(edge.kind == "pipe_full" for edge in diagnosis.verdict.chain)


def frameworks_in_stacks(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the frameworks whose files or commands the processes show."""
    texts = [process.title for process in diagnosis.index.snapshot.processes]
    texts += [frame.path for frame in _frames(diagnosis, diagnosis.index.states)]
    joined = "\n".join(dict.fromkeys(texts))
    return tuple(
        name
        for name, framework in FRAMEWORKS.items()
        if (framework.log_marks and re.search(framework.log_marks, joined))
        or any(f"/{module.partition(':')[0].partition('.')[0]}/" in joined for module in framework.modules)
    )


def recommended_fix(diagnosis: Diagnosis, issue: Issue) -> Fix:
    """Return the fix: first what the stacks call for, then the issue's mitigations in the words of one framework."""
    special = stack_fix(diagnosis)
    triggers = (
        (special.trigger,)
        if special and special.trigger in {trigger.name for trigger in issue.triggers}
        else ()
    )
    ranked = mitigation_ranking.recommended_fix(
        issue, triggers=triggers, frameworks=frameworks_in_stacks(diagnosis)
    )
    if special is None:
        return ranked
    helping = tuple(offer for offer in ranked.offers if not triggers or set(triggers) & set(offer.helps))
    return Fix(
        (Advice(special.advice), Explain(issue.code)), helping if triggers else (), ranked.does_not_help
    )


def finding_of(diagnosis: Diagnosis) -> Finding | None:
    """Return the known issue as a finding with its recommended fix; None if the verdict is none."""
    verdict = diagnosis.verdict
    if not verdict.code:
        return None
    issue = _load()[verdict.code]
    labels = {key: state.process.label for key, state in diagnosis.index.states.items()}
    place = next((labels[key] for key in verdict.culprits if key in labels), diagnosis.index.snapshot.source)
    # The last observation of the blocking process is the best evidence: its stack, or an unanswered request.
    evidence = [(line, place) for line in reversed(verdict.evidence)]
    evidence += [(line, labels.get(edge.source, "")) for edge in verdict.chain for line in edge.evidence]
    finding = mitigation_ranking.finding_of_issue(issue, verdict.certainty, evidence)
    return replace(finding, remedy=recommended_fix(diagnosis, issue))


def issue_document(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return title, cause and mitigations of the known issue for the JSON document."""
    code = diagnosis.verdict.code
    special = stack_fix(diagnosis)
    fix = {"fix": special.advice} if special else {}
    return {"code": code, **mitigation_ranking.issue_summary(_load()[code]), **fix} if code else fix
