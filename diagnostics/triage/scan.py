"""One pass over one log: in bounded memory, linear in its size, most of it by a single search over whole blocks."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diagnostics.triage import anchors, facts
from diagnostics.triage.prefixes import clean
from diagnostics.triage.rules import unquoted
from diagnostics.triage.sources import SourceError
from diagnostics.triage.tracebacks import FRAME, HEADER, PATIENCE, Assembler, Traceback, short_path

if TYPE_CHECKING:
    from diagnostics.triage.prefixes import Line
    from diagnostics.triage.rules import Rules
    from diagnostics.triage.sources import Source

# An anchor seen so often says nothing new: it is no longer looked for, and its count is a lower bound.
MOST_HITS = 400
# After so many tracebacks of one log no further ones are put together; signatures are still looked for.
MOST_TRACEBACKS = 4000
MOST_KEPT = 40
# Of a long line this much on each side of an anchor is looked at.
_WINDOW = 4096
_FATAL = re.compile(
    r"(?:\b[A-Za-z_][\w.]*(?:Error|Exception)\b: |Fatal Python error|Segmentation fault|core dumped|terminate called)"
)
_RANK_FILE = re.compile(
    r"(?:rank|worker|node|local_rank)[-_]?(\d{1,5})(?!\d)|(?:^|/)(\d{1,4})/(?:stdout|stderr)", re.IGNORECASE
)


@dataclass(frozen=True)
class Hit:
    """A line that a pattern matches."""

    source: str
    line: int
    text: str
    rank: str
    traceback: Traceback | None


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
        hits: By the index of the rule.
        failures: Tracebacks that ended, the first of each shape; none that Python itself ignored.
        last: The traceback that ended last.
        errors: The first lines that speak of an error outside any traceback, and the last one.
        problem: Why the log could not be read to its end; empty if it was.
    """

    source: str
    lines: int = 0
    hits: dict[int, Hits] = field(default_factory=dict)
    failures: list[Traceback] = field(default_factory=list)
    last: Traceback | None = None
    errors: list[Hit] = field(default_factory=list)
    versions: dict[str, tuple[str, int]] = field(default_factory=dict)
    frameworks: Counter[str] = field(default_factory=Counter)
    problem: str = ""


def scan(source: Source, rules: Rules) -> Seen:
    """Reads a log once; what can't be read to its end is reported with what was seen of it."""
    scanner = _Scanner(source.name, rules)
    try:
        for block in source.blocks():
            scanner.block(block.data, block.first_line)
    except SourceError as error:
        scanner.seen.problem = str(error)
    return scanner.seen


class _Scanner:
    def __init__(self, name: str, rules: Rules) -> None:
        self.seen = Seen(name)
        self.rules = rules
        self.assembler = Assembler()
        self.anchors = list(rules.anchors)
        self.literals = {unquoted(anchor) for anchor in rules.anchors if anchor not in facts.ANCHOR_PATTERNS}
        self.prefilter: Any = rules.prefilter
        self.counts: Counter[str] = Counter()
        self.tracebacks = 0
        self.shapes: set[Any] = set()
        self.inside_until = 0
        self.ignored_line = 0
        match = _RANK_FILE.search(name)
        self.rank = next(filter(None, match.groups()), "") if match else ""

    def block(self, data: bytes, number: int) -> None:
        """Looks through a block: from anchor to anchor, and line by line while a traceback is open."""
        position, size = 0, len(data)
        while position < size:
            if self.assembler.open and number <= self.inside_until:
                end = _line_end(data, position)
                self.line(data[position : min(end, position + 2 * _WINDOW)], number)
            else:
                match = self.prefilter.search(data, position)
                if match is None:
                    number += data.count(b"\n", position)
                    break
                start = data.rfind(b"\n", 0, match.start()) + 1
                start = max(start, position)
                number += data.count(b"\n", position, start)
                position = start
                end = _line_end(data, match.end() - 1)
                piece = data[max(start, match.start() - _WINDOW) : min(end, match.end() + _WINDOW)]
                self.line(piece, number)
                self._count(match.group())
                end = end if end - match.end() <= _WINDOW else match.end() + _WINDOW
            number += data.count(b"\n", position, end)
            position = end
        self.seen.lines = max(self.seen.lines, number if data[-1:] != b"\n" else number - 1)

    def _count(self, found: bytes) -> None:
        """Counts an anchor and drops it once it has been seen too often; those that are patterns count as one."""
        text = found.decode("utf-8", "replace")
        name = text if text in self.literals else ""
        self.counts[name] += 1
        if self.counts[name] == MOST_HITS and name != HEADER and not FRAME.startswith(name or "-"):
            self._drop(
                {name} if name else {anchor for anchor in self.anchors if anchor in facts.ANCHOR_PATTERNS}
            )

    def _drop(self, names: set[str]) -> None:
        self.anchors = [anchor for anchor in self.anchors if not {anchor, unquoted(anchor)} & names]
        self.prefilter = anchors.union(self.anchors) if self.anchors else _NOTHING

    def line(self, raw: bytes, number: int) -> None:
        """Looks at one line, or at what is around an anchor in a very long one."""
        text = raw.decode("utf-8", "replace").rstrip("\r\n")
        if "\r" in text and len(parts := [part for part in text.split("\r") if part.strip()]) > 1:
            for part in parts[-20:]:
                self._text(clean(part), number)
            return
        self._text(clean(text), number)

    def _text(self, line: Line, number: int) -> None:
        if line.text.startswith(facts.IGNORED):
            self.ignored_line = number
        traceback = None
        if self.tracebacks < MOST_TRACEBACKS:
            traceback = self.assembler.take(line.text, line.stream, line.rank, number)
        if traceback:
            self.inside_until = number + PATIENCE
            traceback.ignored = bool(self.ignored_line) and traceback.line - self.ignored_line in {1, 2}
            if traceback.ignored:
                return
            self._traceback(traceback, number)
        rank = line.rank or self.rank
        about = traceback or self.assembler.before(line.stream, number)
        for index in self.rules.set.match(line.text):
            hits = self.seen.hits.setdefault(index, Hits())
            hits.add(Hit(self.seen.source, number, line.text.strip()[:400], rank, about))
        for package, version in facts.versions(line.text):
            self.seen.versions.setdefault(package, (version, number))
        if traceback is None:
            self.seen.frameworks.update(facts.frameworks(line.text))
            if _FATAL.search(line.text):
                self._error(Hit(self.seen.source, number, line.text.strip()[:400], rank, None))

    def _error(self, hit: Hit) -> None:
        kept = self.seen.errors
        if len(kept) > 4:
            kept.pop()
        kept.append(hit)

    def _traceback(self, traceback: Traceback, number: int) -> None:
        if traceback.end != number:
            return
        self.tracebacks += 1
        if self.tracebacks == MOST_TRACEBACKS:
            self.assembler.open.clear()
            self._drop({HEADER, FRAME})
        traceback.rank = traceback.rank or self.rank
        for path, _ in traceback.frames:
            self.seen.frameworks.update(facts.frameworks(short_path(path)))
        self.seen.last = traceback
        if len(self.seen.failures) < MOST_HITS and traceback.shape not in self.shapes:
            self.shapes.add(traceback.shape)
            self.seen.failures.append(traceback)


class _Nothing:
    @staticmethod
    def search(data: bytes, position: int) -> None:
        """Finds nothing: every anchor has been seen too often."""


_NOTHING = _Nothing()


def _line_end(data: bytes, position: int) -> int:
    return data.find(b"\n", max(position, 0)) + 1 or len(data)
