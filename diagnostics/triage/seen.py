"""What one log held, as the stages of the scan keep it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnostics.triage.tracebacks import Traceback

MOST_KEPT = 40


@dataclass(frozen=True)
class Hit:
    """A line that a pattern matches.

    Attributes:
        part: The order of lines that stood in one, in JSON for one.
        harmless: A logger called it a warning, or less.
    """

    source: str
    line: int
    text: str
    rank: str
    traceback: Traceback | None
    part: int = 0
    harmless: bool = False


@dataclass
class Hits:
    """All that a pattern matched: the first lines, how many there are, the ranks that printed them."""

    kept: list[Hit] = field(default_factory=list)
    count: int = 0
    ranks: set[str] = field(default_factory=set)

    def add(self, hit: Hit) -> None:
        """Counts a hit and keeps it if it is among the first."""
        self.count += 1
        if len(self.ranks) < 4096:
            self.ranks.add(hit.rank)
        if len(self.kept) < MOST_KEPT:
            self.kept.append(hit)


@dataclass
class Seen:
    """What one log held.

    Attributes:
        rank: Of the process that wrote it, where its name says so.
        hits: By the index of the rule.
        failures: Tracebacks that ended, the first of each shape; none that Python itself ignored.
        last: The traceback that ended last.
        errors: The first lines that speak of an error outside any traceback, and the last one.
        cut: Tracebacks whose end is missing, and of those without their head, too, the last one.
        loud: Lines that a logger calls an error, and that are no exception; the first ones.
        head: The first bytes, whole where the log is no longer; for its metrics.
        tail: The last bytes, which say how it ended.
        first_failed: What torchrun's table says of the rank that failed first.
        problem: Why the log could not be read to its end; empty if it was.
    """

    source: str
    rank: str = ""
    lines: int = 0
    hits: dict[int, Hits] = field(default_factory=dict)
    failures: list[Traceback] = field(default_factory=list)
    last: Traceback | None = None
    errors: list[Hit] = field(default_factory=list)
    versions: dict[str, tuple[str, int]] = field(default_factory=dict)
    frameworks: Counter[str] = field(default_factory=Counter)
    first_failed: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    cut: list[Traceback] = field(default_factory=list)
    loud: list[Hit] = field(default_factory=list)
    head: bytes = field(default=b"", repr=False)
    tail: bytes = field(default=b"", repr=False)

    def failed_at(self, line: int) -> bool:
        """Whether an exception ended in this line whose message is known."""
        return any(line == hit.line for hits in self.hits.values() for hit in hits.kept)
