"""Define `Verdict`: whether a job hangs, the cause, and the chain of waits (`Edge`) to the blocking processes.

The field names are keys of the JSON document.
"""

from dataclasses import dataclass

HANG, WAITING, PROGRESS, IDLE_JOB, UNKNOWN = "hang", "waiting", "progress", "idle", "unknown"
WATCH_S = 65
"""Seconds of observation that decide a polling wait, above the default patience; the least that `next` recommends."""


@dataclass(frozen=True)
class Edge:
    """An edge of the wait graph: one process waits for another.

    Attributes:
        source: Key of the waiting process.
        target: Key of a process, or a label of a target that was not observed, as "tcp 10.0.0.2:8000".
        kind: Kind of the wait.
        label: The target's name in sentences.
        text: The wait, as "waits for an HTTP response from".
        evidence: The files of /proc and the frames that show the wait.
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
        outcome: HANG, WAITING (too short for a hang so far, or it may still end), PROGRESS, IDLE_JOB or UNKNOWN.
        sentence: The verdict in a few sentences at most.
        cause: A key of wait_kinds.CAUSES; empty if no wait is reported.
        certainty: established, supported or hypothesis.
        culprits: Keys of the blocking processes; labels of blockers that are not processes.
        chain: Edges from a waiting process to the blocking one; for a deadlock, including the whole cycle.
        cycle: Whether the processes wait for each other.
        evidence: Observations of the blocking processes.
        victims: Keys of the processes that wait for the blocking processes, directly or indirectly.
        waited_s: Duration of the longest wait; None if unknown.
        excluded: Texts about causes that the observations rule out.
        unseen: Texts about data that could not be read, with the change that would make it readable.
        next: Commands that would give more evidence.
        code: Code of the known issue; empty if none matches.
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
