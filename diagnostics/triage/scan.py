"""One pass over one log: in bounded memory, linear in its size, most of it by a single search over whole blocks."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diagnostics.catalogue import anchors
from diagnostics.triage import facts
from diagnostics.triage.reading import envelopes, wrapped
from diagnostics.triage.reading.first_look import MOST_HITS, FirstLook
from diagnostics.triage.reading.prefixes import Line, clean
from diagnostics.triage.reading.sources import SourceError
from diagnostics.triage.rules import FRAME_PATTERN
from diagnostics.triage.tracebacks import HEADER, PATIENCE, Assembler, Traceback, short_path

if TYPE_CHECKING:
    from diagnostics.triage.reading.sources import Source
    from diagnostics.triage.rules import Rules

# After so many tracebacks of one log no further ones are put together; signatures are still looked for.
MOST_TRACEBACKS = 4000
# Nor after so many lines that were looked at one by one since a traceback was open.
MOST_INSIDE = 200_000
MOST_KEPT = 40
# Of a long line this much on each side of an anchor is looked at.
_WINDOW = 4096
_SHOWN = 400
# So far below "Exception ignored in" its traceback begins; further where ranks print between each other.
_IGNORED_NEXT, _IGNORED_NEAR = 12, 40
_BAR = re.compile(r"\d%\|")
_FATAL = re.compile(
    r"(?:\b[A-Za-z_][\w.]{0,120}(?:Error|Exception)\b: |Fatal Python error"
    r"|Segmentation fault|core dumped|terminate called)"
)
_RANK_FILE = re.compile(
    r"(?:rank|worker|node|local_rank)[-_]?(\d{1,5})(?![0-9a-z])|(?:^|/)(\d{1,4})/(?:stdout|stderr)",
    re.IGNORECASE,
)


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
        hits: By the index of the rule.
        failures: Tracebacks that ended, the first of each shape; none that Python itself ignored.
        last: The traceback that ended last.
        errors: The first lines that speak of an error outside any traceback, and the last one.
        first_failed: What torchrun's table says of the rank that failed first.
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
    first_failed: dict[str, str] = field(default_factory=dict)
    problem: str = ""


def scan(source: Source, rules: Rules) -> Seen:
    """Reads a log once; what can't be read to its end is reported with what was seen of it."""
    scanner = _Scanner(source.name, rules)
    try:
        for block in source.blocks():
            scanner.block(block.data, block.first_line)
    except SourceError as error:
        scanner.seen.problem = str(error)
    scanner.finish()
    return scanner.seen


class _Scanner:
    def __init__(self, name: str, rules: Rules) -> None:
        self.seen = Seen(name)
        self.rules = rules
        self.assembler = Assembler()
        self.first_look = FirstLook(rules)
        self.tracebacks = 0
        self.inside = 0
        self.shapes: set[Any] = set()
        self.inside_until = 0
        self.ignored: dict[str, int] = {}
        self.part = 0
        self.part_of = 0
        self.ended: dict[int, Traceback] = {}
        self.boxed: _Boxed | None = None
        self.table_until = 0
        match = _RANK_FILE.search(name)
        self.rank = next(filter(None, match.groups()), "") if match else ""

    def block(self, data: bytes, number: int) -> None:
        """Looks through a block: from anchor to anchor, and line by line while a traceback is open."""
        first, position, size = number, 0, len(data)
        while position < size:
            inside = bool(self.boxed or self.assembler.open) and number <= self.inside_until
            if inside or number <= self.table_until:
                end = _line_end(data, position)
                self.line(data, position, end, position, number)
                self.inside += 1
                if self.inside == MOST_INSIDE:
                    self._stop_assembling()
            else:
                match = self.first_look.search(data, position)
                if match is None:
                    number += data.count(b"\n", position)
                    break
                start = max(data.rfind(b"\n", 0, match.start()) + 1, position)
                number += data.count(b"\n", position, start)
                position = start
                end = _line_end(data, match.start())
                whole = self.line(data, start, end, match.start(), number)
                self.first_look.count(match.group(), self.seen.hits)
                end = end if whole or end - match.start() <= 2 * _WINDOW else match.start() + 2 * _WINDOW
            number += data.count(b"\n", position, end)
            position = end
        if first == 1 and size <= wrapped.LARGEST:
            self._rejoin(data)
        self.seen.lines = max(self.seen.lines, number if data[-1:] != b"\n" else number - 1)

    def finish(self) -> None:
        """Counts a traceback whose end is missing as an error, where nothing better is there."""
        cut = [one for one in self.assembler.open.values() if one.headed and one.frames and not one.ignored]
        if cut and not self.seen.failures and not self.seen.errors:
            path, function = cut[0].frames[-1]
            text = f"a traceback without its end, in {short_path(path)}, {function}"
            self._error(Hit(self.seen.source, cut[0].line, text, cut[0].rank or self.rank, None))

    def line(self, data: bytes, start: int, end: int, anchor: int, number: int) -> bool:
        """Looks at one line, or at what is around an anchor in a very long one; tells whether it was the whole."""
        if (
            end - start > 2 * _WINDOW
            and end - start <= envelopes.LONGEST
            and self._envelope(data[start:end], number)
        ):
            return True
        raw = data[max(start, anchor - _WINDOW) : min(end, anchor + 2 * _WINDOW)]
        text = raw.decode("utf-8", "replace").rstrip("\r\n")
        if "\r" in text and len(parts := [part for part in text.split("\r") if part.strip()]) > 1:
            for part in parts[-20:]:
                if not self._envelope(part.encode(), number):
                    self._text(clean(part), number)
        elif not self._envelope(raw, number):
            self._text(clean(text), number)
        return len(raw) == end - start

    def _envelope(self, raw: bytes, number: int) -> bool:
        """Looks at the lines within a line, if it is of that kind."""
        if b"\\n" not in raw and b'{"' not in raw[:400]:
            return False
        inner = envelopes.opened(clean(raw.decode("utf-8", "replace").rstrip("\r\n")))
        for line in inner or ():
            # Docker's object around a logger's.
            for innermost in envelopes.opened(line) or (line,):
                self._text(innermost, number)
        return inner is not None

    def _text(self, line: Line, number: int) -> None:
        self.part = self.part + 1 if number == self.part_of else 0
        self.part_of = number
        if line.text.lstrip().startswith(facts.IGNORED) and len(self.ignored) < 4096:
            self.ignored[line.stream] = number
        if self.boxed:
            self._after_box(line)
        self._table(line.text, number)
        traceback = None
        if self.tracebacks < MOST_TRACEBACKS and self.inside < MOST_INSIDE:
            traceback = self.assembler.take(line, number)
        if traceback:
            self.inside_until = number + PATIENCE
            if self._is_ignored(traceback):
                return
            self._traceback(traceback, line, number)
        self._match(line, number, traceback)
        for package, version in facts.versions(line.text):
            self.seen.versions.setdefault(package, (version, number))
        if traceback is None:
            self.seen.frameworks.update(facts.frameworks(line.prefix + line.text))
            if not line.harmless and _FATAL.search(line.text):
                # Of what Python ignored it printed no more than this.
                self.ignored.pop(line.stream, None)
                self._error(
                    Hit(self.seen.source, number, line.text.strip()[:400], line.rank or self.rank, None)
                )

    def _table(self, text: str, number: int) -> None:
        """Takes up what torchrun says of the rank that failed first."""
        if facts.FIRST_FAILED in text:
            self.table_until = number + facts.FIRST_FAILED_LINES
        elif number <= self.table_until and (row := facts.FIRST_FAILED_ROW.fullmatch(text)):
            self.seen.first_failed.setdefault(row["key"], row["value"])

    def _is_ignored(self, traceback: Traceback) -> bool:
        """Whether Python said just before, in the same stream, that it ignores what follows."""
        said = self.ignored.get(traceback.stream)
        if said is not None:
            near = _IGNORED_NEAR if traceback.stream else _IGNORED_NEXT
            traceback.ignored = traceback.ignored or 0 <= traceback.line - said <= near
            del self.ignored[traceback.stream]
        return traceback.ignored

    def _match(self, line: Line, number: int, about: Traceback | None) -> None:
        indexes = self.rules.set.match(line.text)
        about = about or (self.assembler.before(line.stream, number) if indexes else None)
        for index in indexes:
            self._hit(index, line, number, about)

    def _hit(self, index: int, line: Line, number: int, about: Traceback | None) -> None:
        hits = self.seen.hits.setdefault(index, Hits())
        text, rank = self._shown(index, line.text), line.rank or self.rank
        hits.add(Hit(self.seen.source, number, text, rank, about, self.part, line.harmless))

    def _shown(self, index: int, text: str) -> str:
        """A line as evidence: of a long one the part that tells."""
        text = text.strip()
        if len(text) > _SHOWN:
            rule = self.rules.rules[index]
            places = [
                place for one in anchors.required(rule.code, rule.pattern) if (place := text.find(one)) >= 0
            ]
            start = max(0, min(places, default=0) - _SHOWN // 2)
            text = text[start:]
        return text[:_SHOWN]

    def _rejoin(self, data: bytes) -> None:
        """Looks for what was broken over lines at the width of a terminal."""
        lines = data.decode("utf-8", "replace").split("\n")
        for index, text in wrapped.rejoined(lines):
            if self.first_look.search(text.encode(), 0):
                self._joined(text, lines[index], index + 1, self.ended.get(index + 1))

    def _joined(self, text: str, first: str, number: int, about: Traceback | None) -> None:
        alone = set(self.rules.set.match(first))
        for index in self.rules.set.match(text):
            known = self.seen.hits.get(index)
            if index not in alone and not (known and any(hit.line == number for hit in known.kept)):
                self._hit(index, Line(text, level=clean(first).level), number, about)

    def _after_box(self, line: Line) -> None:
        """After a traceback in a box, which was printed at the width of a terminal, its message may go on."""
        assert self.boxed is not None
        boxed = self.boxed
        if line.stream != boxed.traceback.stream or _BAR.search(line.text):
            return
        boxed.pieces.append(line.text)
        if not wrapped.goes_on(line.text) or len(boxed.pieces) > 4:
            self.boxed = None
            return
        for text in wrapped.together(boxed.pieces):
            self._joined(text, boxed.pieces[0], boxed.traceback.end, boxed.traceback)

    def _error(self, hit: Hit) -> None:
        kept = self.seen.errors
        if len(kept) > 4:
            kept.pop()
        kept.append(hit)

    def _traceback(self, traceback: Traceback, line: Line, number: int) -> None:
        if traceback.end != number:
            return
        if traceback.boxed:
            self.boxed = _Boxed(traceback, [line.text])
        self.tracebacks += 1
        if self.tracebacks == MOST_TRACEBACKS:
            self._stop_assembling()
        traceback.rank = traceback.rank or self.rank
        for path, _ in traceback.frames:
            self.seen.frameworks.update(facts.frameworks(short_path(path)))
        self.seen.last = traceback
        if len(self.ended) < MOST_HITS:
            self.ended[number] = traceback
        if len(self.seen.failures) < MOST_HITS and traceback.shape not in self.shapes:
            self.shapes.add(traceback.shape)
            self.seen.failures.append(traceback)

    def _stop_assembling(self) -> None:
        self.assembler.open.clear()
        self.first_look.drop({HEADER, FRAME_PATTERN})


@dataclass
class _Boxed:
    """A traceback in a box whose message may have been broken, and what followed it."""

    traceback: Traceback
    pieces: list[str]


def _line_end(data: bytes, position: int) -> int:
    return data.find(b"\n", max(position, 0)) + 1 or len(data)
