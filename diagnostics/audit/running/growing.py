"""Files that grow: whole lines and whole records of what came since, whatever is done to the file meanwhile.

A half of a line waits for the other half. A file that is cut short, written anew or replaced by another begins anew,
and what its predecessor still had is read first.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.audit.recorded.readers import listed_completions, metrics, plain, rollouts, trackers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader
    from pathlib import Path

    from diagnostics.audit.recorded.rows import Logged, Row

ROUND = 8 * given.MIB
_HEAD = 256
# Of a log: as many lines of metrics are taken out of one part of it.
_AT_ONCE = 500


class Growing:
    """The bytes of a file as they come.

    Attributes:
        anew: How many times it began anew.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.anew = path, 0
        self._file: BufferedReader | None = None
        self._place, self._head = 0, b""

    def more(self) -> tuple[bytes, bool]:
        """What came since the last time, at most ROUND bytes; and whether it is the beginning of another file.

        Raises:
            OSError: It is there and can't be read; one that is not there is only empty.
        """
        if self._file is None and not self._open():
            return b"", False
        began = self._changed_in_place()
        data = self._read()
        if data or not self._replaced():
            return data, began
        self.close()
        # It may be gone just now, and come later.
        return (self._read(), True) if self._open() else (b"", True)

    def skip(self) -> None:
        """Leaves out what is there."""
        if self._file is not None or self._open():
            assert self._file is not None
            self._place = os.fstat(self._file.fileno()).st_size
            self._head = os.pread(self._file.fileno(), min(_HEAD, self._place), 0)

    def close(self) -> None:
        """Lets go of it."""
        if self._file is not None:
            self._file.close()
        self._file, self._place, self._head = None, 0, b""

    def _open(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            self._file = given.opened(self.path)
        return self._file is not None

    def _read(self) -> bytes:
        assert self._file is not None
        data = os.pread(self._file.fileno(), ROUND, self._place)
        if self._place < _HEAD:
            self._head = self._head[: self._place] + data[: _HEAD - self._place]
        self._place += len(data)
        return data

    def _changed_in_place(self) -> bool:
        """Whether it is shorter than what was read of it, or begins otherwise."""
        assert self._file is not None
        handle = self._file.fileno()
        shorter = os.fstat(handle).st_size < self._place
        if not shorter and os.pread(handle, len(self._head), 0) == self._head:
            return False
        self._place, self._head = 0, b""
        self.anew += 1
        return True

    def _replaced(self) -> bool:
        assert self._file is not None
        mine = os.fstat(self._file.fileno())
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return False  # the next one is not there yet
        other = (now.st_dev, now.st_ino) != (mine.st_dev, mine.st_ino)
        self.anew += other
        return other


class Lines:
    """Whole lines of a file that grows, with their numbers."""

    def __init__(self, growing: Growing) -> None:
        self._growing = growing
        self._part, self._number, self._skipping = b"", 0, False

    def more(self) -> tuple[list[tuple[int, bytes]], bool]:
        """Those that came since, and whether they are of another file."""
        data, anew = self._growing.more()
        if anew:
            self._part, self._number, self._skipping = b"", 0, False
        whole, newline, part = (self._part + data).rpartition(b"\n")
        self._part = part
        found = []
        for line in whole.split(b"\n") if newline else ():
            self._number += 1
            if not self._skipping:
                found.append((self._number, line))
            self._skipping = False
        if len(self._part) > plain.LINE:  # a line as nobody writes: what follows of it is left out, too
            self._part, self._skipping = b"", True
        return found, anew


class Reader:
    """A file of metrics or of samples that grows.

    Attributes:
        unread: Lines that are no JSON where others are.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.unread = path, 0
        self._events = path.name.startswith(trackers.EVENTS)
        self._growing = Growing(path)
        self._lines = Lines(self._growing)
        self._records = b""
        self._is_json: bool | None = None

    @property
    def anew(self) -> int:
        """How many times it began anew."""
        return self._growing.anew

    def more(self) -> tuple[list[Logged | Row], bool]:
        """What came since, in its order; and whether the file began anew before.

        Raises:
            OSError: It can't be read.
        """
        if self._events:
            return self._of_events()
        lines, anew = self._lines.more()
        if anew:
            self._is_json = None
        if self._is_json is None and (first := next((line for _, line in lines if line.strip()), None)):
            self._is_json = first.lstrip().startswith(b"{") and _object(first) is not None
        return list(self._of_json(lines) if self._is_json else self._of_log(lines)), anew

    def skip(self) -> None:
        """Leaves out what is there by now: whole lines, as their writer leaves them between two steps."""
        self._growing.skip()

    def close(self) -> None:
        """Lets go of it."""
        self._growing.close()

    def _of_json(self, lines: list[tuple[int, bytes]]) -> Iterator[Logged | Row]:
        for number, line in lines:
            if not line.strip():
                continue
            entry, place = _object(line), f"{self.path.name}:{number}"
            if entry is None:
                self.unread += 1
                continue
            try:
                yield from _meant(entry, place)
            except plain.UNREADABLE:
                self.unread += 1

    def _of_log(self, lines: list[tuple[int, bytes]]) -> Iterator[Logged]:
        for first in range(0, len(lines), _AT_ONCE):
            part = lines[first : first + _AT_ONCE]
            yield from metrics.of_log(self.path.name, part[0][0], b"\n".join(line for _, line in part))

    def _of_events(self) -> tuple[list[Logged | Row], bool]:
        data, anew = self._growing.more()
        self._records = (b"" if anew else self._records) + data
        steps: dict[int, dict[str, float]] = {}
        try:
            used = trackers.taken(memoryview(self._records), steps)
            self._records = self._records[used:]
        except plain.UNREADABLE:
            self.unread, self._records = self.unread + 1, b""
        if len(self._records) > plain.LINE:
            self.unread, self._records = self.unread + 1, b""
        rows = [metrics.logged(steps[step], f"{self.path.name}, step {step}", step) for step in sorted(steps)]
        return [row for row in rows if row], anew


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = given.parsed(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _meant(entry: dict[str, Any], place: str) -> Iterator[Logged | Row]:
    """Samples where it is a line of such, else metrics; what an evaluation or a whole run came to is none."""
    of: tuple[tuple[Callable[[dict[str, Any]], bool], Callable[..., Any]], ...] = (
        (rollouts.is_text, lambda told, at: [rollouts.of_text(told, at)]),
        (listed_completions.is_one, listed_completions.rows_of),
    )
    for is_one, rows in of:
        if is_one(entry):
            yield from rows(entry, place)
            return
    if "train_runtime" in entry or any(str(name).startswith("eval_") for name in entry):
        return
    if row := metrics.logged(entry, place):
        yield row
