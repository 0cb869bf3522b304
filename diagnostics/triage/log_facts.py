"""Define `LogFacts`, the facts that the scan of one log collects, and its parts `Hit` and `Hits`.

A `Hit` is one line of a log as evidence. `Hits` are the matches of one pattern. `has_frame` searches tracebacks for a
frame of a catalog entry.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from diagnostics.catalog.model import Frame
from diagnostics.logs.tracebacks import Traceback
from diagnostics.output.redact import MASK, mask, redact, remember_line, truncate

MAX_FIRST_HITS = 40
MAX_TEXT = 4096
"""Maximum number of characters of a line that are kept as evidence."""
CONTEXT = 1 << 14
"""Number of bytes before a text in which a label may show that it is a secret, a person or a machine."""
_MAX_RANKS = _MAX_RAW_LINES = 4096
_MAX_FIRST_ERRORS = 4


def context(data: bytes) -> bytes:
    """Return the end of the text before a message: at most three lines, the message's own, and CONTEXT bytes."""
    return b"\n".join(data[-CONTEXT:].rsplit(b"\n", 4)[-4:])


def has_frame(frame: Frame, frames: Iterable[tuple[str, str]]) -> bool:
    """Return whether a frame that a catalog entry names is among the frames (path, function) of tracebacks."""
    return any(
        path.endswith(frame.path) and function.rpartition(".")[2] == frame.function
        for path, function in frames
    )


@dataclass(frozen=True)
class Hit:
    """A line of a log, as evidence.

    Attributes:
        source: Name of the log.
        line: Number of the line.
        text: The message, or a part of a long one; secrets may be masked.
        rank: The rank that printed it; empty if unknown.
        traceback: The traceback to which it belongs; None if it belongs to none.
        part: Position among the lines of one JSON record; 0 for an ordinary line.
        is_harmless: Whether the line reports no failure: a warning or lower, a retry or an ignored error.
        before: The end of the log's text before the message, with the prefixes of its line.
    """

    source: str
    line: int
    text: str
    rank: str = ""
    traceback: Traceback | None = None
    part: int = 0
    is_harmless: bool = False
    before: bytes = field(default=b"", compare=False, repr=False)

    @property
    def quoted(self) -> str:
        """The text with secrets masked, also one whose label is before it in its line or on one of three lines before.

        A name of a person or a machine that only the text before it shows is replaced, too. If the label of a
        collection may be even further away, what may be in the collection is masked.
        """
        before = self.before.decode("utf-8", "replace")
        if len(self.before) >= CONTEXT and not re.search(r"[\n\])}]", before):
            before = "secrets=["
        masked, shared = (self._changed(change, before) for change in (mask, redact))
        return masked if redact(masked) == redact(shared) else redact(shared)

    def _changed(self, change: Callable[[str], str], before: str) -> str:
        """Change the text together with the text before it, and return the part from where that is another."""
        changed = change(before + self.text)
        changed = changed[len(os.path.commonprefix([change(before), changed])) :]
        return "\n".join(changed.split("\n")[-self.text.count("\n") - 1 :]) or MASK * bool(self.text)

    @property
    def location(self) -> str:
        """Name of the log and number of the line, as `file:line`."""
        return f"{self.source}:{self.line}"


@dataclass
class Hits:
    """The matches of one pattern: the first lines, the number of matches, and the ranks that printed them."""

    first_hits: list[Hit] = field(default_factory=list)
    count: int = 0
    ranks: set[str] = field(default_factory=set)

    def add(self, hit: Hit) -> None:
        """Count a hit, and keep it if it is among the first."""
        self.count += 1
        if len(self.ranks) < _MAX_RANKS:
            self.ranks.add(hit.rank)
        if len(self.first_hits) < MAX_FIRST_HITS:
            self.first_hits.append(hit)


@dataclass
class LogFacts:
    """The facts of one log.

    Attributes:
        source: Name of the log.
        rank: Rank of the process, if the file name has it; else empty.
        lines: Number of lines.
        hits: Matches of each rule, by the rule's index in `Rules.rules`.
        failures: Completed tracebacks, the first of each shape, without those that Python ignored.
        last_traceback: The traceback that ended last.
        versions: Package -> (release, number of the line that reports it).
        frameworks: Number of lines and frames with the marks of each framework.
        errors: The first lines that report an error outside any traceback, and the last such line.
        cut_tracebacks: Tracebacks without an end; of those without a header only the last one.
        logged_errors: The first lines that a logger marks as an error and that are not in `errors`.
        head: The first bytes, in which metrics, releases, requirements and callers are searched.
        tail: The last bytes, in which metrics and the end of the run are searched.
        first_failed: Rows of torchrun's table of the rank that failed first.
        problem: Reason why the log could not be read to its end; empty if it could.
        before: During the scan, the end of the text before the current line.
        raw: During the scan, the current line as it is in the log, after the text before it.
        raw_lines: `raw` of the lines that are evidence, by their number.
    """

    source: str
    rank: str = ""
    lines: int = 0
    hits: dict[int, Hits] = field(default_factory=dict)
    failures: list[Traceback] = field(default_factory=list)
    last_traceback: Traceback | None = None
    errors: list[Hit] = field(default_factory=list)
    versions: dict[str, tuple[str, int]] = field(default_factory=dict)
    frameworks: Counter[str] = field(default_factory=Counter)
    first_failed: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    cut_tracebacks: list[Traceback] = field(default_factory=list)
    logged_errors: list[Hit] = field(default_factory=list)
    head: bytes = field(default=b"", repr=False)
    tail: bytes = field(default=b"", repr=False)
    before: bytes = field(default=b"", repr=False)
    raw: bytes = field(default=b"", repr=False)
    raw_lines: dict[int, bytes] = field(default_factory=dict, repr=False)

    def keep_raw(self, number: int) -> None:
        """Keep the raw text of the current line; of too many or very long lines, remember the masked words at once."""
        if len(self.raw) > 2 * CONTEXT or len(self.raw_lines) > _MAX_RAW_LINES:
            remember_line(self.raw.decode("utf-8", "replace"))
        elif self.raw:
            self.raw_lines[number] = self.raw

    def remember_masked_words(self, number: int) -> None:
        """Let redaction mask in all texts what it masks in a line of the log, of which they may be made."""
        text = self.raw_lines.get(number, b"").decode("utf-8", "replace")
        remember_line(text or "\n".join(self.lines_from(max(1, number - 3), min(number, 4))))
        # OmegaConf names the key of a value on the next line.
        remember_line("\n".join(self.lines_from(number, 2)) if "could not be converted" in text else "")

    def hit(self, number: int, text: str, rank: str = "", start: int = 0, **attributes: Any) -> Hit:
        """Return a line, from position `start` on, as evidence; `attributes` are other attributes of `Hit`."""
        self.keep_raw(number)
        attributes = {"before": self.before + text[:start].encode()} | attributes
        return Hit(self.source, number, truncate(text[start:], MAX_TEXT), rank or self.rank, **attributes)

    def lines_from(self, first: int, count: int) -> list[str]:
        r"""Return up to `count` lines from number `first` on; empty if `first` is neither in `head` nor in `tail`.

        >>> log = LogFacts("a.log", lines=9, head=b"1\n2\n", tail=b"8\n9\n")
        >>> log.lines_from(1, 2), log.lines_from(5, 2), log.lines_from(8, 2)
        (['1', '2'], [], ['8', '9'])
        """
        head, tail = self.head.split(b"\n"), self.tail.split(b"\n")
        # The tail's last piece is the rest after the last line's end.
        start = self.lines - len(tail) + (0 if tail[-1] else 1)
        later = tail[first - 1 - start :] if first > start else []
        lines = head[first - 1 :] if first < len(head) or start < 0 else later
        return [line.decode("utf-8", "replace").rstrip("\r") for line in lines[:count]]

    def add_error(self, hit: Hit) -> None:
        """Add an error line; the first four stay, and after them only the newest is kept."""
        if len(self.errors) > _MAX_FIRST_ERRORS:
            self.errors.pop()
        self.errors.append(hit)
