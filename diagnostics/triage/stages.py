"""What each line that is looked at goes through: six stages, each with what it must remember, in a fixed order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from diagnostics.catalog.literal_prefilter import required_literals
from diagnostics.output.redact import mask, mask_and_cut
from diagnostics.triage import facts
from diagnostics.triage.reading import wrapped
from diagnostics.triage.reading.first_look import MOST_HITS
from diagnostics.triage.reading.prefixes import Line, clean
from diagnostics.triage.rules import FRAME_PATTERN
from diagnostics.triage.seen import Hit, Hits
from diagnostics.triage.tracebacks import HEADER, PATIENCE, Assembler, Traceback, short_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from diagnostics.triage.reading.first_look import FirstLook
    from diagnostics.triage.rules import Rules
    from diagnostics.triage.seen import Seen

# After so many tracebacks of one log no further ones are put together; signatures are still looked for.
MOST_TRACEBACKS = 4000
# Nor after so many lines that were looked at one by one since a traceback was open.
MOST_INSIDE = 200_000
_SHOWN = 400
# So far below "Exception ignored in" its traceback begins; further where ranks print between each other.
_IGNORED_NEXT, _IGNORED_NEAR = 12, 40
_MOST_LOUD, _MOST_CUT = 4, 8
_RUN, _SPACES = " " * 12, re.compile(r" {2,}")
_BAR = re.compile(r"\d%\|")
_RAISED = re.compile(r"\b[A-Za-z_][\w.]{0,120}(?:Error|Exception): ")
_CRASHED = ("Fatal Python error", "Segmentation fault", "core dumped", "terminate called")


class Stages:
    """Hands lines to the stages, which keep what they find in `Seen`, each in fields of its own."""

    def __init__(self, seen: Seen, rules: Rules, first_look: FirstLook) -> None:
        self._ignored = _Ignored()
        self._table = _FirstFailed(seen)
        self._tracebacks = _Tracebacks(seen, first_look)
        self._signatures = _Signatures(seen, rules)
        self._box = _Box()
        self._said = _Said(seen)
        self._number = self._part = 0

    def inside(self, number: int) -> bool:
        """Whether a line has to be looked at whatever stands in it."""
        tracebacks = self._tracebacks
        if number <= tracebacks.until and (tracebacks.open or self._box.traceback):
            tracebacks.inside()
            return True
        return number <= self._table.until

    def take(self, lines: Iterable[Line], number: int) -> None:
        """Takes the lines that stand in one line of the log."""
        for line in lines:
            # A very long line comes in pieces: its parts are counted on.
            self._part = self._part + 1 if number == self._number else 0
            self._number = number
            self._take(line, number)

    def _take(self, line: Line, number: int) -> None:
        self._ignored.take(line, number)
        if self._box.traceback:
            for text, first, boxed in self._box.take(line):
                self._signatures.joined(text, first, boxed.end, self._part, boxed)
        self._table.take(line, number)
        traceback = self._tracebacks.take(line, number)
        if traceback:
            if self._ignored.covers(traceback):
                return
            if traceback.end == number:
                self._tracebacks.keep(traceback)
                self._box.begin(traceback, line)
        if not traceback and line.printed:
            return
        matching = self._matching(line.text)
        if matching and traceback and traceback.end != number and line.around:
            matching = []
        if matching:
            about = traceback or self._tracebacks.before(line, number)
            self._signatures.keep(matching, line, number, self._part, about)
        if self._said.take(line, number, inside=traceback is not None):
            # Of what Python ignored it printed no more than this.
            self._ignored.forget(line)

    def _matching(self, text: str) -> list[int]:
        matching = self._signatures.matching(text)
        if not matching and _RUN in text.strip():
            # A terminal that was copied from pads what it broke.
            matching = self._signatures.matching(_SPACES.sub(" ", text))
        return matching

    def joined(self, text: str, first: str, number: int) -> None:
        """Takes a line that was put together of several, the first of which has this number."""
        self._signatures.joined(text, first, number, self._part, self._tracebacks.ended.get(number))

    def finish(self) -> None:
        """Counts a traceback whose end is missing as an error, where nothing better is there."""
        self._said.cut_off(self._tracebacks.unfinished(), self._tracebacks.headless())


class _Ignored:
    """Tracebacks that Python printed because nobody could catch them: it says so just before, in the same stream."""

    def __init__(self) -> None:
        self._said: dict[str, int] = {}

    def take(self, line: Line, number: int) -> None:
        if line.text.lstrip().startswith(facts.IGNORED) and len(self._said) < 4096:
            self._said[line.stream] = number

    def covers(self, traceback: Traceback) -> bool:
        said = self._said.pop(traceback.stream, None)
        if said is not None:
            near = _IGNORED_NEAR if traceback.stream else _IGNORED_NEXT
            traceback.ignored = traceback.ignored or 0 <= traceback.line - said <= near
        return traceback.ignored

    def forget(self, line: Line) -> None:
        self._said.pop(line.stream, None)


class _FirstFailed:
    """What torchrun's table says of the rank that failed first."""

    def __init__(self, seen: Seen) -> None:
        self.until = 0
        self._rows = seen.first_failed

    def take(self, line: Line, number: int) -> None:
        if facts.FIRST_FAILED in line.text:
            self.until = number + facts.FIRST_FAILED_LINES
        elif number <= self.until and (row := facts.FIRST_FAILED_ROW.fullmatch(line.text)):
            self._rows.setdefault(row["key"], row["value"])


class _Tracebacks:
    """Tracebacks put together, the first of each shape kept, as long as there are not too many."""

    def __init__(self, seen: Seen, first_look: FirstLook) -> None:
        self.until = 0
        self.ended: dict[int, Traceback] = {}
        self._seen = seen
        self._first_look = first_look
        self._assembler = Assembler()
        self.open = self._assembler.open
        self._count = 0
        self._inside = 0
        self._shapes: set[Any] = set()

    def inside(self) -> None:
        self._inside += 1
        if self._inside == MOST_INSIDE:
            self._give_up()

    def take(self, line: Line, number: int) -> Traceback | None:
        if self._count >= MOST_TRACEBACKS or self._inside >= MOST_INSIDE:
            return None
        traceback = self._assembler.take(line, number)
        if traceback:
            self.until = number + PATIENCE
        return traceback

    def keep(self, traceback: Traceback) -> None:
        self._count += 1
        if self._count == MOST_TRACEBACKS:
            self._give_up()
        seen = self._seen
        traceback.rank = traceback.rank or seen.rank
        for path, _ in traceback.frames:
            seen.frameworks.update(facts.frameworks(short_path(path)))
        seen.last = traceback
        if len(self.ended) < MOST_HITS:
            self.ended[traceback.end] = traceback
        if len(seen.failures) < MOST_HITS and traceback.shape not in self._shapes:
            self._shapes.add(traceback.shape)
            seen.failures.append(traceback)

    def before(self, line: Line, number: int) -> Traceback | None:
        return self._assembler.before(line.stream, number)

    def unfinished(self) -> list[Traceback]:
        return [one for one in self.open.values() if one.headed and one.frames and not one.ignored]

    def headless(self) -> list[Traceback]:
        return [one for one in self.open.values() if not one.headed and one.frames and not one.ignored]

    def _give_up(self) -> None:
        self.open.clear()
        self._first_look.drop({HEADER, FRAME_PATTERN})


class _Signatures:
    """The catalogue's patterns, and what of the log they match."""

    def __init__(self, seen: Seen, rules: Rules) -> None:
        self._seen = seen
        self._rules = rules
        self.matching = rules.set.match

    def keep(self, indexes: list[int], line: Line, number: int, part: int, about: Traceback | None) -> None:
        seen = self._seen
        for index in indexes:
            text, rank = self._shown(index, line.text), line.rank or seen.rank
            hit = Hit(seen.source, number, text, rank, about, part, line.harmless)
            seen.hits.setdefault(index, Hits()).add(hit)

    def joined(self, text: str, first: str, number: int, part: int, about: Traceback | None) -> None:
        # What its first piece or the rest shows by itself does not need the two together.
        alone = {*self.matching(first), *self.matching(text[len(clean(first).text) :])}
        for index in self.matching(text):
            known = self._seen.hits.get(index)
            if index not in alone and not (known and any(hit.line == number for hit in known.kept)):
                self.keep([index], Line(text, level=clean(first).level), number, part, about)

    def _shown(self, index: int, text: str) -> str:
        """A line as evidence: of a long one the part that tells."""
        text = text.strip()
        if len(text) > _SHOWN:
            text = mask(text)
            rule = self._rules.rules[index]
            places = [
                place for one in required_literals(rule.code, rule.pattern) if (place := text.find(one)) >= 0
            ]
            text = text[max(0, min(places, default=0) - _SHOWN // 2) :]
        return text[:_SHOWN]


class _Box:
    """A traceback in a box, which was printed at the width of a terminal: below it, its message may go on."""

    def __init__(self) -> None:
        self.traceback: Traceback | None = None
        self._pieces: list[str] = []

    def begin(self, traceback: Traceback, line: Line) -> None:
        if traceback.boxed:
            self.traceback, self._pieces = traceback, [line.text]

    def take(self, line: Line) -> Iterator[tuple[str, str, Traceback]]:
        """Yields messages as they may have been before they were broken: text, its first line, the traceback."""
        boxed, pieces = self.traceback, self._pieces
        if boxed is None or line.stream != boxed.stream or _BAR.search(line.text):
            return
        pieces.append(line.text)
        if not wrapped.goes_on(line.text) or len(pieces) > 4:
            self.traceback = None
            return
        for text in wrapped.together(pieces):
            yield text, pieces[0], boxed


class _Said:
    """What the log says besides: releases, frameworks, and errors outside any traceback."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def take(self, line: Line, number: int, *, inside: bool) -> bool:
        """Takes a line, inside a traceback or not; tells whether it is an error by itself."""
        seen = self._seen
        for package, version in facts.versions(line.text):
            seen.versions.setdefault(package, (version, number))
        if inside:
            return False
        seen.frameworks.update(facts.frameworks(line.prefix + line.text))
        if line.harmless or not _is_fatal(line.text):
            if line.error and len(seen.loud) < _MOST_LOUD:
                seen.loud.append(
                    Hit(
                        seen.source,
                        number,
                        mask_and_cut(line.text.strip(), _SHOWN),
                        line.rank or seen.rank,
                        None,
                    )
                )
            return False
        self._error(
            Hit(seen.source, number, mask_and_cut(line.text.strip(), _SHOWN), line.rank or seen.rank, None)
        )
        return True

    def cut_off(self, unfinished: list[Traceback], headless: list[Traceback]) -> None:
        seen = self._seen
        seen.cut = [*unfinished[:_MOST_CUT], *headless[-1:]]
        if unfinished and not seen.failures and not seen.errors:
            path, function = unfinished[0].frames[-1]
            text = f"a traceback without its end, in {short_path(path)}, {function}"
            self._error(Hit(seen.source, unfinished[0].line, text, unfinished[0].rank or seen.rank, None))

    def _error(self, hit: Hit) -> None:
        kept = self._seen.errors
        if len(kept) > 4:
            kept.pop()
        kept.append(hit)


def _is_fatal(text: str) -> bool:
    """Whether a line speaks of an error by itself; looked for as text first, which is quicker by far."""
    raised = ("Error: " in text or "Exception: " in text) and _RAISED.search(text)
    return bool(raised) or any(mark in text for mark in _CRASHED)
