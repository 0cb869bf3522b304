"""One pass over one log: in bounded memory, linear in its size, most of it by a single search over whole blocks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnostics.triage.endings import TAIL
from diagnostics.triage.reading import envelopes, wrapped
from diagnostics.triage.reading.first_look import FirstLook
from diagnostics.triage.reading.logs import SourceError
from diagnostics.triage.reading.prefixes import clean
from diagnostics.triage.seen import Seen
from diagnostics.triage.stages import Stages

if TYPE_CHECKING:
    from diagnostics.triage.reading.logs import LogSource
    from diagnostics.triage.rules import Rules

# Of a long line this much on each side of an anchor is looked at.
_WINDOW = 4096
# So much of its beginning is kept for the metrics.
HEAD = 1 << 16
# verl prints a prompt, what was answered, and then what it was worth; what is in between may be of many lines.
_SAMPLE = re.compile(rb"(?:^|\n)([^\n]{0,80}?pid=[^\n]{1,60}?)\[(?:(prompt|response)|ground_truth|score)\]")
_SAMPLE_BEFORE = 1 << 13
_RANK_FILE = re.compile(
    r"(?:rank|worker|node|local_rank)[-_]?(\d{1,5})(?![0-9a-z])|(?:^|/)(\d{1,4})/(?:stdout|stderr)",
    re.IGNORECASE,
)


def scan(source: LogSource, rules: Rules) -> Seen:
    """Reads a log once; what can't be read to its end is reported with what was seen of it."""
    match = _RANK_FILE.search(source.name)
    seen = Seen(source.name, next(filter(None, match.groups()), "") if match else "")
    walk = _BlockWalk(seen, rules)
    try:
        for block in source.blocks():
            walk.block(block)
            seen.head = seen.head or block[:HEAD]
            seen.tail = (seen.tail + block[-TAIL:])[-TAIL:]
    except SourceError as error:
        seen.problem = str(error)
    walk.stages.finish()
    return seen


class _BlockWalk:
    """Goes through blocks of bytes, and hands to the stages the lines that are worth it."""

    def __init__(self, seen: Seen, rules: Rules) -> None:
        self._seen = seen
        self._number = 1
        self._samples: bool | None = None
        self._first_look = FirstLook(rules)
        self.stages = Stages(seen, rules, self._first_look)

    def block(self, data: bytes) -> None:
        """Looks through a block: from anchor to anchor, and line by line while a traceback is open."""
        first = number = self._number
        position, size = 0, len(data)
        self._samples = None
        while position < size:
            if self.stages.inside(number):
                end = _line_end(data, position)
                self._line(data, position, end, position, number)
            else:
                match = self._first_look.search(data, position)
                if match is None:
                    number += data.count(b"\n", position)
                    break
                start = max(data.rfind(b"\n", 0, match.start()) + 1, position)
                number += data.count(b"\n", position, start)
                position = start
                end = _line_end(data, match.start())
                whole = self._line(data, start, end, match.start(), number)
                self._first_look.count(match.group(), self._seen.hits)
                end = end if whole or end - match.start() <= 2 * _WINDOW else match.start() + 2 * _WINDOW
            number += data.count(b"\n", position, end)
            position = end
        self._number = number
        if first == 1 and size <= wrapped.LARGEST:
            self._rejoin(data)
        self._seen.lines = max(self._seen.lines, number if data[-1:] != b"\n" else number - 1)

    def _line(self, data: bytes, start: int, end: int, anchor: int, number: int) -> bool:
        """Looks at one line, or at what is around an anchor in a very long one; tells whether it was the whole."""
        if (
            2 * _WINDOW < end - start <= envelopes.LONGEST
            and (inner := envelopes.inside(data[start:end])) is not None
        ):
            self.stages.take(inner, number)
            return True
        if self._samples is None:
            # Not before there is a line to look at: most blocks have none.
            self._samples = b"[prompt]" in data or b"[response]" in data
        if self._samples and _in_sample(data, start, end):
            return True
        raw = data[max(start, anchor - _WINDOW) : min(end, anchor + 2 * _WINDOW)]
        text = raw.decode("utf-8", "replace").rstrip("\r\n")
        if "\r" in text and len(parts := [part for part in text.split("\r") if part.strip()]) > 1:
            for part in parts[-20:]:
                inner = envelopes.inside(part.encode())
                self.stages.take([clean(part)] if inner is None else inner, number)
        else:
            inner = envelopes.inside(raw)
            self.stages.take([clean(text)] if inner is None else inner, number)
        return len(raw) == end - start

    def _rejoin(self, data: bytes) -> None:
        """Looks for what was broken over lines at the width of a terminal."""
        lines = data.decode("utf-8", "replace").split("\n")
        for index, text in wrapped.rejoined(lines):
            if self._first_look.search(text.encode(), 0):
                self.stages.joined(text, lines[index], index + 1)


def _in_sample(data: bytes, start: int, end: int) -> bool:
    """Whether a line belongs to a sample that the same process began to print before it, and that has not ended."""
    before = data[max(0, start - _SAMPLE_BEFORE) : start]
    if b"[response]" not in before and b"[prompt]" not in before:
        return False
    begun = {match[1]: bool(match[2]) for match in _SAMPLE.finditer(before)}
    return any(is_open and data.startswith(prefix, start, end) for prefix, is_open in begun.items())


def _line_end(data: bytes, position: int) -> int:
    return data.find(b"\n", max(position, 0)) + 1 or len(data)
