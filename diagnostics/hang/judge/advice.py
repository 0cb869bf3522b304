"""What a verdict excludes, and the commands that would tell more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.hang.judge.verdict import HANG, IDLE, UNKNOWN, WAITING

if TYPE_CHECKING:
    from diagnostics.hang.judge.verdict import HangVerdict
    from diagnostics.hang.link.graph import Index


def excluded(index: Index, verdict: HangVerdict) -> tuple[str, ...]:
    """What was looked for and not found, said only of what was really seen."""
    if verdict.outcome == HANG:
        return ()
    stands = [s for s in index.stands.values() if s.process.role != "helper"]
    known = [s for s in stands if s.process.state]
    told = []
    if known and not any(s.kind in ("stopped", "dead", "kernel") for s in known):
        told.append(f"none of {len(known)} processes is stopped, dead or in the kernel (/proc/PID/stat)")
    seen = [s for s in stands if s.kind != "unseen"]
    if seen and not verdict.cycle:
        told.append(f"no cycle of waits among the {len(seen)} processes whose stacks were seen")
    return tuple(told)


def further(index: Index, verdict: HangVerdict) -> tuple[str, ...]:
    """The next commands, where the evidence does not suffice."""
    if verdict.outcome == WAITING:
        watch = (
            "where its wait wakes up now and then, only watching tells how long it lasts: hang --seconds 65"
        )
        return ("look again in a minute: python -m diagnostics hang", watch)
    if verdict.outcome == IDLE:
        return ()
    if verdict.outcome == HANG and verdict.cause not in ("native", "elsewhere", "spin_native", "pending"):
        return ()
    told = []
    culprit = next((index.process(key) for key in verdict.culprits if index.process(key)), None)
    ranks = [s for s in index.stands.values() if s.kind in ("collective", "rendezvous")]
    if verdict.cause == "elsewhere":
        told.append("run hang on the host at the other end of that connection, or on all: hang --hosts FILE")
    if verdict.cause == "pending":
        told += ["ray status", "ray list actors --filter state=PENDING_CREATION", "ray list placement-groups"]
    if ranks and verdict.outcome == UNKNOWN:
        told += [
            "ncclRAS, NCCL 2.24 or newer: ncclras -v (which rank lags in which communicator)",
            "with TORCH_FR_BUFFER_SIZE=2000 in the job: its flight recorder, then hang --from FILE…",
        ]
    if culprit is not None and culprit.python and verdict.outcome == UNKNOWN:
        told.append(f"py-spy dump --native --pid {culprit.pid}")
    return tuple(told)
