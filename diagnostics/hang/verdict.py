"""The verdict on a job: whether it hangs, the cause, and the chain of waits that leads to the blocking processes."""

from __future__ import annotations

from dataclasses import dataclass

HANG, WAITING, PROGRESS, IDLE_JOB, UNKNOWN = "hang", "waiting", "progress", "idle", "unknown"


@dataclass(frozen=True)
class Edge:
    """One process waits for another.

    Attributes:
        target: Key of a process, or of something that was not observed, as "tcp 10.0.0.2:8000".
        label: The target's name in sentences.
        text: The wait, as "waits for an HTTP response from".
        evidence: The files of /proc and the frames that show it.
        needs: "all" if every target must arrive before the wait ends; "any" if one is enough, or it is unknown which.
        certain: Whether the wait was observed directly; otherwise it was inferred by exclusion.
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
        cause: One of wait_kinds.CAUSES; empty without a hang.
        certainty: established, supported or hypothesis.
        culprits: Keys of the blocking processes; labels of blockers that are not processes.
        chain: From a waiting process to the blocking one; of a deadlock the whole cycle.
        evidence: What was observed of the blocking processes.
        victims: Keys of the processes that wait for them, directly or not.
        waited_s: How long the longest wait has lasted, as far as is known.
        excluded: What was looked for and not found.
        unseen: Texts about what could not be read, and what would make it readable.
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
