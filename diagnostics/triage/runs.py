"""Several runs in one log: where the last one begins, as people start again with `>>` and paste what they have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnostics.triage.tracebacks import HEADER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from diagnostics.triage.seen import Seen

# The first lines of a log are those of a run's beginning.
_FIRST = 3
# What is left of such a line without its values must be so long to be told again.
_LEAST = 16
_BANNER = re.compile(
    r"vLLM API server version |LLM engine \(v|Started a local Ray instance|Tracking run with wandb version"
)
_VALUES = re.compile(r"\d+|\x1b\[\d*m")


def last_begins(log: Seen, failed: Collection[int]) -> int:
    """The line in which the last run of a log begins that failed; 0 where there is no more than one.

    A run begins where a line of a beginning comes again, and something failed in between. Of a long log, beginning and
    end are looked at.

    Args:
        log: What it held.
        failed: The lines in which something failed.
    """
    known: set[str] = set()
    firsts = begun = last = 0
    for number, text in _lines(log) if failed else ():
        shape = _VALUES.sub("", text)
        if HEADER in text:
            # What stands in a traceback comes again for each rank.
            firsts = _FIRST
        elif len(shape) < _LEAST:
            continue
        elif firsts < _FIRST:
            firsts += 1
            known.add(shape)
        elif shape in known:
            if any(begun <= line < number for line in failed):
                begun = number
                last = number if any(line >= number for line in failed) else last
        elif _BANNER.search(text):
            known.add(shape)
    return last


def _lines(log: Seen) -> Iterator[tuple[int, str]]:
    """The lines of the beginning and the end that are not empty, with their numbers."""
    head = log.head.split(b"\n")
    tail = log.tail.split(b"\n")
    if tail and not tail[-1]:
        tail.pop()
    yield from _numbered(head, 1)
    first = log.lines - len(tail) + 1
    skipped = max(0, len(head) + 1 - first)
    yield from _numbered(tail[skipped:], first + skipped)


def _numbered(lines: Iterable[bytes], first: int) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, first):
        if text := line.decode("utf-8", "replace").strip():
            yield number, text
