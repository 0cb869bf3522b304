"""The verdict on a job: outcome, cause class, and the chain of blocking processes."""

from __future__ import annotations

from dataclasses import dataclass

HANG, WAITING, PROGRESS, IDLE_JOB, UNKNOWN = "hang", "waiting", "progress", "idle", "unknown"
CAUSES = {
    "deadlock": "the processes wait for each other",
    "locks": "threads of one process wait for each other's locks",
    "lock": "a lock is not released",
    "pool": "a task of a full pool waits for another task of the same pool",
    "two_threads": "two threads of one rank are in collectives at once",
    "mismatch": "ranks are in different collectives",
    "absent": "is not in the collective that the others wait in",
    "missing": "there is no such process",
    "stopped": "is stopped",
    "dead": "is dead",
    "kernel": "sleeps in the kernel",
    "spin_python": "computes in Python without an end",
    "spin_native": "computes in native code without an end",
    "input": "waits for input that does not come",
    "blocked_loop": "its event loop is blocked by a call",
    "lost_answer": "is idle but owes a response",
    "lost_message": "waits for a message that no process sends",
    "full_pipe": "writes to a full pipe or queue that no process reads",
    "file_lock": "waits for a file lock that is not released",
    "rendezvous": "waits at the rendezvous for ranks that do not come",
    "connect": "waits for a connection that is not accepted",
    "elsewhere": "is a process that was not observed",
    "pending": "waits for Ray, which runs nothing it waits for",
    "poll": "polls for something that does not come",
    "device": "waits for its device, which does not finish",
    "native": "waits in native code",
    "busy": "computes",
}
"""Classes of causes, and what each means."""


@dataclass(frozen=True)
class Edge:
    """One process waits for another.

    Attributes:
        target: Key of a process, or of something that was not observed, as "tcp 10.0.0.2:8000".
        label: The target's name in sentences.
        text: The wait, as "waits for an HTTP response from".
        evidence: Where that was read: a file of /proc, a frame.
        needs: "all": each target of this kind must come; "any": one would do, or it is not known which.
        certain: Whether it was read directly; else it is what remains when everything else is excluded.
    """

    source: str
    target: str
    kind: str
    label: str
    text: str
    evidence: tuple[str, ...] = ()
    needs: str = "any"
    certain: bool = True


@dataclass(frozen=True)
class Verdict:
    """The verdict on a snapshot.

    Attributes:
        outcome: HANG, WAITING (a hang if it goes on), PROGRESS, IDLE_JOB or UNKNOWN.
        sentence: What blocks the job, in one sentence.
        cause: One of CAUSES; empty without a hang.
        certainty: established, supported or hypothesis.
        culprits: Keys of the blocking processes; labels of blockers that are not processes.
        chain: From a waiting process to the blocking one; of a deadlock the whole cycle.
        evidence: What was observed of the blocking processes.
        victims: Keys of the processes that wait for them, directly or not.
        waited_s: How long the longest wait has lasted, as far as is known.
        excluded: What was looked for and not found.
        unseen: What could not be read, with what would make it readable.
        next: Commands that would show more.
        code: The known issue; empty if none fits.
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
