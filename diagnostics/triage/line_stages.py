"""Check each line of a log in stages: tracebacks, signatures, errors, releases, torchrun's table of failed ranks.

`LineStages` passes a line to the stages; each stage writes its own fields of `LogFacts`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from diagnostics.catalog.literal_prefilter import required_literals
from diagnostics.logs import wrapping
from diagnostics.logs.prefixes import Line, clean
from diagnostics.logs.tracebacks import HEADER, PATIENCE, Traceback, TracebackParser, short_path
from diagnostics.output.redact import mask, mask_and_cut
from diagnostics.triage import log_facts
from diagnostics.triage.model import Hit, Hits, LogFacts
from diagnostics.triage.rules import FRAME_PATTERN, MAX_HITS, AnchorSearch, Rules

# After so many tracebacks of one log, or inner lines of tracebacks, no further tracebacks are parsed.
MAX_TRACEBACKS = 4000
MAX_INNER_LINES = 200_000
_SHOWN = 400
# Lines between "Exception ignored in" and its traceback; more where ranks print at the same time.
_IGNORED_NEXT, _IGNORED_NEAR = 12, 40
_MAX_ERROR_LINES, _MAX_CUT = 4, 8
_BAR = re.compile(r"\d%\|")
_RAISED = re.compile(r"\b[A-Za-z_][\w.]{0,120}(?:Error|Exception): ")
_CRASHED = ("Fatal Python error", "Segmentation fault", "core dumped", "terminate called")


class LineStages:
    """Pass lines to the stages; each stage writes its own fields of `LogFacts`."""

    def __init__(self, log: LogFacts, rules: Rules, anchors: AnchorSearch) -> None:
        self._ignored = _Ignored()
        self._table = _FirstFailed(log)
        self._tracebacks = _Tracebacks(log, anchors)
        self._signatures = _Signatures(log, rules)
        self._box = _Box()
        self._errors = _OtherFacts(log)
        self._number = self._part = 0

    def needs_every_line(self, number: int) -> bool:
        """Whether a line must be checked even without an anchor."""
        tracebacks = self._tracebacks
        if number <= tracebacks.until and (tracebacks.open or self._box.traceback):
            tracebacks.count_inner_line()
            return True
        return number <= self._table.until

    def add_lines(self, lines: Iterable[Line], number: int) -> None:
        """Check the lines that are in one line of the log."""
        for line in lines:
            # A very long line comes in pieces: the count continues.
            self._part = self._part + 1 if number == self._number else 0
            self._number = number
            self._add_line(line, number)

    def _add_line(self, line: Line, number: int) -> None:
        self._ignored.add_line(line, number)
        if self._box.traceback:
            for text, first, boxed in self._box.add_line(line):
                self._signatures.add_joined_line(text, first, boxed.end, self._part, boxed)
        self._table.add_line(line, number)
        traceback = self._tracebacks.add_line(line, number)
        if traceback:
            if self._ignored.is_ignored(traceback):
                return
            if traceback.end == number:
                self._tracebacks.keep_traceback(traceback)
                self._box.begin(traceback, line)
        if not traceback and line.is_sample:
            return
        matching = self._signatures.matching(line.text)
        if matching and traceback and traceback.end != number and line.is_code_context:
            matching = []
        if matching:
            owner = traceback or self._tracebacks.ended_before(line, number)
            self._signatures.keep_hits(matching, line, number, self._part, owner)
        if self._errors.add_line(line, number, in_traceback=traceback is not None):
            # Python printed the ignored exception without a traceback.
            self._ignored.forget(line)

    def add_joined_line(self, text: str, first: str, number: int) -> None:
        """Check a line that was joined from several; `number` is that of the first one."""
        self._signatures.add_joined_line(text, first, number, self._part, self._tracebacks.ended.get(number))

    def finish(self) -> None:
        """Report a traceback without an end as an error if the log has no other failure."""
        self._errors.add_cut(
            self._tracebacks.unfinished(headed=True), self._tracebacks.unfinished(headed=False)
        )


class _Ignored:
    """Tracebacks below "Exception ignored in" in the same stream."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def add_line(self, line: Line, number: int) -> None:
        if line.text.lstrip().startswith(log_facts.IGNORED) and len(self._numbers) < 4096:
            self._numbers[line.stream] = number

    def is_ignored(self, traceback: Traceback) -> bool:
        number = self._numbers.pop(traceback.stream, None)
        if number is not None:
            distance = _IGNORED_NEAR if traceback.stream else _IGNORED_NEXT
            traceback.ignored = traceback.ignored or 0 <= traceback.line - number <= distance
        return traceback.ignored

    def forget(self, line: Line) -> None:
        self._numbers.pop(line.stream, None)


class _FirstFailed:
    """torchrun's table of the rank that failed first."""

    def __init__(self, log: LogFacts) -> None:
        self.until = 0
        self._rows = log.first_failed

    def add_line(self, line: Line, number: int) -> None:
        if log_facts.FIRST_FAILED in line.text:
            self.until = number + log_facts.FIRST_FAILED_LINES
        elif number <= self.until and (row := log_facts.FIRST_FAILED_ROW.fullmatch(line.text)):
            self._rows.setdefault(row["key"], row["value"])


class _Tracebacks:
    """Parsed tracebacks; the first of each shape is kept."""

    def __init__(self, log: LogFacts, anchors: AnchorSearch) -> None:
        self.until = 0
        self.ended: dict[int, Traceback] = {}
        self._log = log
        self._anchors = anchors
        self._parser = TracebackParser()
        self.open = self._parser.open
        self._count = 0
        self._inner_lines = 0
        self._shapes: set[Any] = set()

    def count_inner_line(self) -> None:
        self._inner_lines += 1
        if self._inner_lines == MAX_INNER_LINES:
            self._give_up()

    def add_line(self, line: Line, number: int) -> Traceback | None:
        if self._count >= MAX_TRACEBACKS or self._inner_lines >= MAX_INNER_LINES:
            return None
        traceback = self._parser.add_line(line, number)
        if traceback:
            self.until = number + PATIENCE
        return traceback

    def keep_traceback(self, traceback: Traceback) -> None:
        self._count += 1
        if self._count == MAX_TRACEBACKS:
            self._give_up()
        log = self._log
        traceback.rank = traceback.rank or log.rank
        for path, _ in traceback.frames:
            log.frameworks.update(log_facts.mentioned_frameworks(path))
        log.last = traceback
        if len(self.ended) < MAX_HITS:
            self.ended[traceback.end] = traceback
        if len(log.failures) < MAX_HITS and traceback.shape not in self._shapes:
            self._shapes.add(traceback.shape)
            log.failures.append(traceback)

    def ended_before(self, line: Line, number: int) -> Traceback | None:
        return self._parser.ended_before(line.stream, number)

    def unfinished(self, *, headed: bool) -> list[Traceback]:
        return [it for it in self.open.values() if it.headed is headed and it.frames and not it.ignored]

    def _give_up(self) -> None:
        self.open.clear()
        self._anchors.drop({HEADER, FRAME_PATTERN})


class _Signatures:
    """Lines that match the catalog's patterns."""

    def __init__(self, log: LogFacts, rules: Rules) -> None:
        self._log = log
        self._rules = rules
        self.matching = rules.set.match

    def keep_hits(
        self, indexes: list[int], line: Line, number: int, part: int, owner: Traceback | None
    ) -> None:
        log = self._log
        for index in indexes:
            text, rank = self._excerpt(index, line.text), line.rank or log.rank
            hit = Hit(log.source, number, text, rank, owner, part, line.harmless)
            log.hits.setdefault(index, Hits()).add(hit)

    def add_joined_line(self, text: str, first: str, number: int, part: int, owner: Traceback | None) -> None:
        # Patterns that match one piece alone were counted with that piece.
        in_piece = {*self.matching(first), *self.matching(text[len(clean(first).text) :])}
        for index in self.matching(text):
            hits = self._log.hits.get(index)
            if index not in in_piece and not (hits and any(hit.line == number for hit in hits.first_hits)):
                self.keep_hits([index], Line(text, level=clean(first).level), number, part, owner)

    def _excerpt(self, index: int, text: str) -> str:
        """Return a line as evidence: of a long line the part that matches."""
        text = text.strip()
        if len(text) > _SHOWN:
            text = mask(text)
            rule = self._rules.rules[index]
            literals = required_literals(rule.code, rule.pattern)
            positions = [position for literal in literals if (position := text.find(literal)) >= 0]
            text = text[max(0, min(positions, default=0) - _SHOWN // 2) :]
        return text[:_SHOWN]


class _Box:
    """A traceback in a box of rich: its message may continue on the lines below."""

    def __init__(self) -> None:
        self.traceback: Traceback | None = None
        self._pieces: list[str] = []

    def begin(self, traceback: Traceback, line: Line) -> None:
        if traceback.boxed:
            self.traceback, self._pieces = traceback, [line.text]

    def add_line(self, line: Line) -> Iterator[tuple[str, str, Traceback]]:
        """Yield the possible messages before wrapping: text, its first line, the traceback."""
        boxed, pieces = self.traceback, self._pieces
        if boxed is None or line.stream != boxed.stream or _BAR.search(line.text):
            return
        pieces.append(line.text)
        if not wrapping.is_continuation(line.text) or len(pieces) > 4:
            self.traceback = None
            return
        for text in wrapping.join_pieces(pieces):
            yield text, pieces[0], boxed


class _OtherFacts:
    """Releases, frameworks, and errors outside any traceback."""

    def __init__(self, log: LogFacts) -> None:
        self._log = log

    def add_line(self, line: Line, number: int, *, in_traceback: bool) -> bool:
        """Check a line; return whether it is an error outside any traceback."""
        log = self._log
        for package, version in log_facts.installed_versions(line.text):
            log.versions.setdefault(package, (version, number))
        if in_traceback:
            return False
        log.frameworks.update(log_facts.mentioned_frameworks(line.prefix + line.text))
        is_error = not line.harmless and _is_fatal(line.text)
        if is_error or (line.error and len(log.error_lines) < _MAX_ERROR_LINES):
            hit = log.hit(number, mask_and_cut(line.text.strip(), _SHOWN), line.rank)
            if is_error:
                self._add_error(hit)
            else:
                log.error_lines.append(hit)
        return is_error

    def add_cut(self, unfinished: list[Traceback], headless: list[Traceback]) -> None:
        log = self._log
        log.cut = [*unfinished[:_MAX_CUT], *headless[-1:]]
        if unfinished and not log.failures and not log.errors:
            path, function = unfinished[0].frames[-1]
            text = f"a traceback without its end, in {short_path(path)}, {function}"
            self._add_error(log.hit(unfinished[0].line, text, unfinished[0].rank))

    def _add_error(self, hit: Hit) -> None:
        """Keep the first four errors and the last one."""
        errors = self._log.errors
        if len(errors) > 4:
            errors.pop()
        errors.append(hit)


def _is_fatal(text: str) -> bool:
    """Whether a line reports an error; the plain search comes first because it is much faster."""
    has_exception = ("Error: " in text or "Exception: " in text) and _RAISED.search(text)
    return bool(has_exception) or any(mark in text for mark in _CRASHED)
