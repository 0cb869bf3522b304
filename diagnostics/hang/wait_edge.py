"""An edge of the wait graph."""

from __future__ import annotations

from dataclasses import dataclass


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
