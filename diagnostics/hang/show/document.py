"""The document `grpo-doctor.hang.v1`: what every other form of output is made from."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from diagnostics.hang import waits
from diagnostics.hang.judge.verdict import CAUSES, HANG, IDLE, PROGRESS
from diagnostics.output import clean
from diagnostics.output.findings import FINDINGS, FINE, INCOMPLETE

if TYPE_CHECKING:
    from diagnostics.hang.judge.decide import JudgedJob
    from diagnostics.hang.stands import Stand

SCHEMA = "grpo-doctor.hang.v1"
_FRAMES = 12


def document(judged: JudgedJob, helps: dict[str, Any] | None = None) -> dict[str, Any]:
    """All that came of it, as JSON; nothing of the caller's person stands in it."""
    verdict, index = judged.verdict, judged.index
    found = {
        "schema": SCHEMA,
        "outcome": verdict.outcome,
        "cause": verdict.cause,
        "cause_means": CAUSES.get(verdict.cause, ""),
        "certainty": verdict.certainty,
        "code": verdict.code,
        "sentence": verdict.sentence,
        "culprits": list(verdict.culprits),
        "victims": list(verdict.victims),
        "cycle": verdict.cycle,
        "waited_s": verdict.waited_s,
        "chain": [_edge(edge) for edge in verdict.chain],
        "evidence": list(verdict.evidence),
        "excluded": list(verdict.excluded),
        "unseen": list(verdict.unseen),
        "next": list(verdict.next),
        "helps": helps or {},
        "processes": [
            _process(stand) for _, stand in sorted(index.stands.items(), key=lambda item: _order(item[1]))
        ],
        "edges": [_edge(edge) for edges in judged.edges.values() for edge in edges],
        "watched_s": index.snapshot.seconds,
        "source": index.snapshot.source,
        "notes": list(index.snapshot.notes),
    }
    cleaned: dict[str, Any] = clean.shareable(clean.own(found))
    for process in cleaned["processes"]:
        # A host's name is taken out of what is shared; the number that it has here is none.
        process["host"] = process["key"].rpartition("/")[0]
    return cleaned


def exit_code(outcome: str) -> int:
    """0 nothing hangs, 1 something does, 3 it is not known."""
    return {HANG: FINDINGS, IDLE: FINE, PROGRESS: FINE}.get(outcome, INCOMPLETE)


def _order(stand: Stand) -> tuple[int, int, int]:
    process = stand.process
    return (0 if process.rank is not None else 1, process.rank or 0, process.pid)


def _edge(edge: Any) -> dict[str, Any]:
    return asdict(edge) | {"evidence": list(edge.evidence)}


def _process(stand: Stand) -> dict[str, Any]:
    process, thread = stand.process, stand.thread
    frame = stand.wait.place or stand.wait.frame
    return {
        "key": process.key,
        "pid": process.pid,
        "ppid": process.ppid,
        "host": process.host,
        "role": process.role,
        "rank": process.rank,
        "label": process.label,
        "state": process.state,
        "stands": stand.kind,
        "text": waits.KINDS[stand.kind],
        "where": str(frame) if frame else "",
        "frames": [str(item) for item in (thread.frames if thread else ())[:_FRAMES]],
        "threads": len(process.threads),
        "asleep_s": stand.asleep_s,
        "unseen": list(process.unseen),
        "runnable": round(thread.runnable, 2) if thread and thread.runnable is not None else None,
    }
