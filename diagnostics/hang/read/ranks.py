"""Ranks of which somebody has told what they are in: each as a process with that one frame."""

from __future__ import annotations

from diagnostics.hang.snapshot import UNNAMED, Process, Snapshot, StackFrame, Thread

C10D = "torch/distributed/distributed_c10d.py"
_NAMES = {
    "ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "_ALLGATHER_BASE": "all_gather_into_tensor",
    "REDUCE_SCATTER": "reduce_scatter", "_REDUCE_SCATTER_BASE": "reduce_scatter_tensor", "BROADCAST": "broadcast",
    "REDUCE": "reduce", "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all_single", "BARRIER": "barrier",
    "GATHER": "gather", "SCATTER": "scatter", "SEND": "send", "RECV": "recv",
}  # fmt: skip


def apart(snapshot: Snapshot) -> bool:
    """Whether ranks are told apart by it."""
    return (
        len({p.threads[0].frames for p in snapshot.processes} | {c.sizes for c in snapshot.collectives}) > 1
    )


def rank(number: int, frame: StackFrame) -> Process:
    """A rank that stands in a frame."""
    thread = Thread(number + 1, "MainThread", (frame,), samples=1, stem=1)
    return Process(number + 1, rank=number, role="trainer", job="told", threads=(thread,))


def inside(name: str) -> StackFrame:
    """The frame of a collective, by NCCL's or PyTorch's name of it."""
    return StackFrame(C10D, _NAMES.get(name.upper(), name if name in _NAMES.values() else "wait"))


def outside() -> StackFrame:
    """The frame of who has not come to it."""
    return StackFrame("flight recorder", "between_collectives")


def unnamed(pid: int, which: str) -> Process:
    """A rank whose number and collective are not said."""
    frames = (inside("wait"), StackFrame(UNNAMED, which))
    return Process(
        pid,
        role="trainer",
        job="told",
        threads=(Thread(pid, "MainThread", frames, samples=1, stem=2),),
    )


def of(frames: dict[int, StackFrame], source: str) -> Snapshot:
    """The frame of each rank."""
    return Snapshot(tuple(rank(number, frame) for number, frame in sorted(frames.items())), source=source)
