"""Collect the facts of a log from its lines: tracebacks, signature matches, errors, releases, frameworks, failed ranks.

`scan.py` selects the lines. `FactCollector` writes the facts into a `LogFacts`; their number is limited.
"""

import re
from collections.abc import Iterable
from typing import Any

import re2

from diagnostics.catalog.signatures import required_literals
from diagnostics.logs.prefixes import Line, parse_line
from diagnostics.logs.tracebacks import BOX, HEADER, MAX_GAP, Traceback, TracebackParser, short_path
from diagnostics.triage import line_patterns
from diagnostics.triage.log_facts import MAX_TEXT, Hits, LogFacts, context
from diagnostics.triage.rules import FRAME_PATTERN, MAX_HITS, AnchorSearch, Rules

# After this number of tracebacks in a log, or of lines inside tracebacks, no further tracebacks are parsed.
MAX_TRACEBACKS = 4000
MAX_INNER_LINES = 200_000
# Maximum number of lines from "Exception ignored in" to its traceback; more if the stream has a name, because ranks
# may print at the same time.
_IGNORED_DISTANCE, _IGNORED_DISTANCE_OF_STREAM = 12, 40
_MAX_STREAMS = 4096
_MAX_ERROR_LINES, _MAX_UNFINISHED = 4, 8
# Maximum number of lines by which a message in a box of rich continues.
_MAX_BOX_LINES = 4
_MISSING_NAME = re.compile(r"cannot import name '(\w+)'")
_BAR = re.compile(r"\d%\|")
_RAISED = re.compile(r"(?<![A-Za-z0-9_.])[A-Za-z_][\w.]{0,120}(?:Error|Exception): ")
# Beginning of the text that stands for the exception of a traceback that is cut off.
CUT_TRACEBACK = "a traceback without its end"
_CRASHED = ("Fatal Python error", "Segmentation fault", "core dumped", "terminate called")


class FactCollector:
    """Adds the facts of each line to a `LogFacts`; call `finish` at the end of the log."""

    def __init__(self, log: LogFacts, rules: Rules, anchors: AnchorSearch) -> None:
        self._log = log
        self._rules = rules
        self._anchors = anchors
        self._match = rules.set.match
        self._tracebacks = TracebackParser()
        self._traceback_until = self._traceback_count = self._inner_lines = 0
        self._shapes: set[Any] = set()
        # The line of "Exception ignored in", by stream.
        self._ignored: dict[str, int] = {}
        # A traceback in a box of rich, and the lines of its message.
        self._boxed: Traceback | None = None
        self._box_lines: list[str] = []
        self._table_until = 0
        self._number = self._part = 0

    def needs_every_line(self, number: int) -> bool:
        """Return whether a line must be checked even without an anchor: in a traceback or in torchrun's table.

        At MAX_INNER_LINES lines in tracebacks, no further tracebacks are parsed.
        """
        if number <= self._traceback_until and (self._tracebacks.open or self._boxed):
            self._inner_lines += 1
            if self._inner_lines == MAX_INNER_LINES:
                self._give_up_tracebacks()
            return True
        return number <= self._table_until

    def add_lines(self, lines: Iterable[Line], number: int) -> None:
        """Check one line of the log, which contains several `lines` if it is a JSON record."""
        for line in lines:
            # A very long line is passed in several calls: the position continues.
            self._part = self._part + 1 if number == self._number else 0
            self._number = number
            # The label of a secret may be in a prefix, or in the text before, of the same record.
            self._log.before += line.prefix.encode()
            self._add_line(line, number)
            self._log.before = context(self._log.before + line.text.encode() + b"\n")

    def _add_line(self, line: Line, number: int) -> None:
        """Add the facts of a line; the exception of an ignored traceback and a printed sample give none."""
        is_ignored = line.text.lstrip().startswith(line_patterns.IGNORED_EXCEPTION)
        if is_ignored and len(self._ignored) < _MAX_STREAMS:
            self._ignored[line.stream] = number
        if self._boxed:
            self._add_box_line(self._boxed, line)
        self._add_table_row(line, number)
        traceback = self._add_traceback_line(line, number)
        if traceback:
            if self._is_ignored(traceback):
                return
            if traceback.end == number:
                self._add_traceback(traceback, line)
        elif line.is_sample:
            return
        text = line.text
        if traceback and traceback.end == number and traceback.type not in text:
            text = f"{traceback.type}: {text}"
        matching = self._matching_rules(text)
        if matching and not (traceback and traceback.end != number and line.is_code_context):
            owner = traceback or self._tracebacks.ended_before(line.stream, number)
            self._add_hits(matching, line, number, owner)
        self._add_line_facts(line, number, in_traceback=traceback is not None)

    def _matching_rules(self, text: str) -> list[int]:
        """Return the rules that match a line, without those that match the name in "cannot import name"."""
        name = _MISSING_NAME.search(text)
        rules = self._rules.rules
        return [it for it in self._match(text) if not (name and re2.search(rules[it].pattern, name[1]))]

    def finish(self) -> None:
        """Store the tracebacks without an end; the first with a header is an error if the log has no other failure."""
        log = self._log
        cut = [it for it in self._tracebacks.open.values() if it.frames and not it.ignored]
        unfinished = [it for it in cut if it.headed]
        log.cut_tracebacks = [*unfinished[:_MAX_UNFINISHED], *[it for it in cut if not it.headed][-1:]]
        if unfinished and not log.failures and not log.errors:
            path, function = unfinished[0].frames[-1]
            text = f"{CUT_TRACEBACK}, in {short_path(path)}, {function}"
            log.add_error(log.hit(unfinished[0].line, text, unfinished[0].rank))

    def _add_table_row(self, line: Line, number: int) -> None:
        """Store a row of torchrun's table of the rank that failed first; of several tables, the first counts."""
        if line_patterns.FAILED_RANK_TITLE in line.text:
            self._table_until = number + line_patterns.FAILED_RANK_LINES
        elif number <= self._table_until and (row := line_patterns.FAILED_RANK_ROW.fullmatch(line.text)):
            self._log.first_failed.setdefault(row["key"], row["value"])

    def _add_traceback_line(self, line: Line, number: int) -> Traceback | None:
        if self._traceback_count >= MAX_TRACEBACKS or self._inner_lines >= MAX_INNER_LINES:
            return None
        traceback = self._tracebacks.add_line(line, number)
        if traceback:
            self._traceback_until = number + MAX_GAP
        return traceback

    def _is_ignored(self, traceback: Traceback) -> bool:
        """Return whether a traceback follows "Exception ignored in" in the same stream."""
        number = self._ignored.pop(traceback.stream, None)
        if number is not None:
            distance = _IGNORED_DISTANCE_OF_STREAM if traceback.stream else _IGNORED_DISTANCE
            traceback.ignored = traceback.ignored or 0 <= traceback.line - number <= distance
        return traceback.ignored

    def _add_traceback(self, traceback: Traceback, line: Line) -> None:
        """Store a completed traceback: as the last one, and as a failure if its shape is new."""
        self._traceback_count += 1
        if self._traceback_count == MAX_TRACEBACKS:
            self._give_up_tracebacks()
        log = self._log
        traceback.rank = traceback.rank or log.rank
        for path, _ in traceback.frames:
            log.frameworks.update(line_patterns.mentioned_frameworks(path))
        log.last_traceback = traceback
        log.keep_raw(traceback.end)
        if len(log.failures) < MAX_HITS and traceback.shape not in self._shapes:
            self._shapes.add(traceback.shape)
            log.failures.append(traceback)
        if traceback.boxed:
            self._boxed, self._box_lines = traceback, [line.text]

    def _give_up_tracebacks(self) -> None:
        """Drop the open tracebacks, and stop searching for the beginnings of tracebacks and frames."""
        self._tracebacks.open.clear()
        self._anchors.drop({HEADER, FRAME_PATTERN})

    def _add_hits(self, indexes: list[int], line: Line, number: int, owner: Traceback | None) -> None:
        """Store a line as a hit of the rules with these indexes."""
        log = self._log
        for index in indexes:
            details = {"traceback": owner, "part": self._part, "is_harmless": line.is_harmless}
            text = line.text.strip()
            hit = log.hit(number, text, line.rank, self._excerpt_start(index, text), **details)
            log.hits.setdefault(index, Hits()).add(hit)

    def _add_box_line(self, boxed: Traceback, line: Line) -> None:
        """Match a message inside a rich box together with the wrapped lines that may continue it."""
        if line.stream != boxed.stream or _BAR.search(line.text):
            return
        self._box_lines.append(line.text)
        if not _is_continuation(line.text) or len(self._box_lines) > _MAX_BOX_LINES:
            self._boxed = None
            return
        first, *rest = self._box_lines
        for text in (first + "".join(rest), " ".join([first, *map(str.lstrip, rest)])):
            # Patterns that match a single piece were already counted with that piece.
            in_piece = {*self._match(first), *self._match(text[len(first) :])}
            for index in self._match(text):
                hits = self._log.hits.get(index)
                if index not in in_piece and not (
                    hits and any(hit.line == boxed.end for hit in hits.first_hits)
                ):
                    self._add_hits([index], Line(text), boxed.end, boxed)

    def _excerpt_start(self, index: int, text: str) -> int:
        """Return where the evidence in a line begins: in a long one, before a literal text of the rule."""
        if len(text) <= MAX_TEXT:
            return 0
        literals = required_literals(self._rules.rules[index].code, self._rules.rules[index].pattern)
        first = min((at for literal in literals if (at := text.find(literal)) >= 0), default=0)
        return text.find(" ", first - MAX_TEXT // 2, first) + 1 or first if first > MAX_TEXT // 2 else 0

    def _add_line_facts(self, line: Line, number: int, *, in_traceback: bool) -> None:
        """Add releases and, outside tracebacks, frameworks and error lines."""
        log = self._log
        for package, version in line_patterns.installed_versions(line.text):
            log.versions.setdefault(package, (version, number))
        if in_traceback:
            return
        log.frameworks.update(line_patterns.mentioned_frameworks(line.prefix + line.text))
        is_error = not line.is_harmless and _is_fatal(line.text)
        if is_error or (line.is_error and len(log.logged_errors) < _MAX_ERROR_LINES):
            hit = log.hit(number, line.text.strip(), line.rank)
            if is_error:
                log.add_error(hit)
                # Python printed an ignored exception without a traceback.
                self._ignored.pop(line.stream, None)
            else:
                log.logged_errors.append(hit)


def _is_continuation(piece: str) -> bool:
    """Return whether a line may continue the previous one: it has no prefix and starts no traceback or frame."""
    line, text = parse_line(piece), piece.lstrip()
    starts = line.level or line.clocks or line.stream or HEADER in piece or text.startswith('File "')
    return bool(text) and not starts and text[0] not in BOX


def _is_fatal(text: str) -> bool:
    """Return whether a line names an exception with its message, or a crash of the process."""
    has_exception = ("Error: " in text or "Exception: " in text) and _RAISED.search(text)
    return bool(has_exception) or any(mark in text for mark in _CRASHED)
