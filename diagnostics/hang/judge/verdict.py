"""What came of judging a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnostics.hang.link.graph import Edge

HANG, WAITING, PROGRESS, IDLE, UNKNOWN = "hang", "waiting", "progress", "idle", "unknown"
# Cause classes: what is at the end of the chain, and how a sentence says it.
CAUSES = {
    "deadlock": "they wait for each other",
    "locks": "its threads wait for each other's locks",
    "lock": "a lock is not given back",
    "pool": "a task of a full pool waits for another task of it",
    "two_threads": "two of its threads are in collectives at once",
    "mismatch": "ranks are in different collectives",
    "absent": "is not in the collective that the others wait in",
    "missing": "there is no such process",
    "stopped": "is stopped",
    "dead": "is dead",
    "kernel": "sleeps in the kernel",
    "spin_python": "computes in Python without coming back",
    "spin_native": "computes in native code without coming back",
    "input": "waits for input that nobody gives",
    "blocked_loop": "its event loop is blocked by a call",
    "lost_answer": "was asked and has nothing to do: no answer is on its way",
    "lost_message": "waits for something that nobody sends",
    "full_pipe": "waits for room where nobody reads",
    "file_lock": "holds the lock of a file",
    "rendezvous": "waits at the rendezvous for ranks that do not come",
    "connect": "waits to be connected to what does not answer",
    "elsewhere": "is a process that was not looked at",
    "pending": "waits for Ray, which runs nothing of it",
    "poll": "looks again and again for something that does not come",
    "device": "waits for its device, which does not come back",
    "native": "waits in native code",
    "busy": "computes",
}


@dataclass(frozen=True)
class HangVerdict:
    """The verdict of a snapshot.

    Attributes:
        outcome: hang, waiting (it would be one if it goes on), progress, idle, unknown.
        cause: One of CAUSES; empty without a hang.
        certainty: established, supported or hypothesis.
        sentence: What holds the job up, in one sentence.
        culprits: Keys of the processes that hold it up; labels of what is none.
        chain: From a waiter to the culprit; of a deadlock the whole cycle.
        evidence: Of the culprit itself.
        victims: Keys of those that wait, directly or not.
        waited_s: How long the longest of them has waited, as far as is known.
        excluded: What it is not, and how that is known.
        unseen: What could not be looked at, with what would let it be seen.
        next: Commands that would tell more.
        code: Of the known issue, empty if none fits.
    """

    outcome: str
    sentence: str
    cause: str = ""
    certainty: str = "supported"
    culprits: tuple[str, ...] = ()
    chain: tuple[Edge, ...] = ()
    cycle: bool = False
    evidence: tuple[str, ...] = ()
    victims: tuple[str, ...] = ()
    waited_s: float | None = None
    excluded: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    code: str = ""
