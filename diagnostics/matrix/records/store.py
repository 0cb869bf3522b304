"""The store of verdicts: JSON lines, only ever appended to, safe against being killed at any moment.

A line is written with one `write` and synced to disk before the matrix goes on, so what was finished stays
finished. A line torn by a kill or a full disk is dropped when the store is opened again. A lock on a second
file keeps two runs from writing at once; the kernel releases it with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics import given
from diagnostics.matrix.records import taken_in
from diagnostics.matrix.records.events import Event, from_line, to_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class StoreError(RuntimeError):
    """Raised when a store can't be read or written; one line that says which, and why."""


class StoreBusyError(StoreError):
    """Raised when another run of the matrix holds the store."""


@dataclass(frozen=True)
class Store:
    """The folder in which a matrix keeps its verdicts."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file of events."""
        return self.folder / "store.jsonl"

    def read(self) -> list[Event]:
        """Returns the events, oldest first. Lines that are none (a torn last one) are left out."""
        if not self.path.exists():
            return []
        with _said(self.path, "read"):
            text = self.path.read_text(encoding="utf-8", errors="replace")
        found = (from_line(line) for line in text.split("\n") if line)
        return [event for event in found if event is not None]

    def append(self, event: Event) -> None:
        """Adds an event and returns when it is on disk.

        Raises:
            StoreError: it could not be written whole; what was written before stands.
        """
        with _said(self.path, "written"):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                data = (to_line(event) + "\n").encode()
                while data:
                    data = data[os.write(descriptor, data) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def merge(self, other: Store) -> int:
        """Takes in the events of another store that are not here yet, and their logs; returns how many were new.

        The caller holds this store. What both hold is not doubled, so merging twice is merging once.

        Raises:
            StoreError: The other one holds what no run writes, or a log that lies elsewhere; nothing was taken in.
        """
        known = {to_line(event) for event in self.read()}
        new = [(place, event) for place, event in other.checked() if to_line(event) not in known]
        for place, event in new:
            with _taken(place):
                _log(other.folder, event.answer.log)
        for place, event in new:
            with _taken(place):
                data = _log(other.folder, event.answer.log)
                if data is not None:
                    taken_in.keep_log(self.folder, event.answer.log, data, replace=False)
            self.append(event)
        return len(new)

    def checked(self) -> list[tuple[str, Event]]:
        """Returns the events of a store that others wrote, each with its place; a torn last line is left out.

        Raises:
            StoreError: A line is none that a run writes, or the file is no regular one of a store's size.
        """
        with _said(self.path, "read"):
            text = given.text(self.path, given.STORE, inside=self.folder)
        *whole, torn = text.split("\n")
        found = []
        for number, line in enumerate([*whole, *([torn] if from_line(torn) else [])], start=1):
            place = f"{self.path}:{number}"
            with _taken(place):
                found += [(place, taken_in.event_of(line))] if line else []
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the store for one run, and mends a torn last line.

        Raises:
            StoreBusyError: when another process holds it.
            StoreError: when the folder can't be made, or what is in it can't be read.
        """
        with _said(self.folder, "used as a store"):
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / "lock").open("a+")
        with file as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                holder = lock.read().strip() or "unknown"
                raise StoreBusyError(
                    f"{self.folder}: another run of the matrix (process {holder}) is using this store; "
                    "wait for it, or name another folder with --store"
                ) from None
            with _said(self.folder, "used as a store"):
                lock.truncate(0)
                lock.write(str(os.getpid()))
                lock.flush()
                self._mend()
            yield

    def _mend(self) -> None:
        """Cuts off what follows the last complete line, so that the next event starts a line of its own."""
        if not self.path.exists():
            return
        with self.path.open("r+b") as file:
            data = file.read()
            end = data.rfind(b"\n") + 1
            if end == len(data):
                return
            if from_line(data[end:].decode(errors="replace")) is not None:
                file.write(b"\n")  # only the line's end was lost
            else:
                file.truncate(end)
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def _said(path: Path, done: str) -> Iterator[None]:
    """Says in one line which file an error of the machine is about."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be {done}: {error.strerror or error}") from None


@contextmanager
def _taken(place: str) -> Iterator[None]:
    """Says where in another store something stands that can't be taken in."""
    try:
        yield
    except taken_in.NotTakenError as error:
        raise StoreError(f"{place}: {error}; this store is not taken in") from None


def _log(folder: Path, name: str) -> bytes | None:
    return taken_in.log_of(folder, name) if name else None


def latest(events: list[Event]) -> dict[str, Event]:
    """Returns the newest event of each identity; a finished one is kept before a newer unfinished one.

    The newest by its time, since a merged store holds the events of several machines; of the same second, the last.
    """
    found: dict[str, Event] = {}
    for event in events:
        known = found.get(event.identity)
        if known is None or (event.finished, event.started) >= (known.finished, known.started):
            found[event.identity] = event
    return found


def flaky(events: list[Event]) -> set[str]:
    """Returns the identities whose finished events disagree: same inputs, different outcomes."""
    seen: dict[str, set[tuple[str, tuple[str, ...]]]] = {}
    for event in events:
        if event.finished:
            seen.setdefault(event.identity, set()).add((event.answer.outcome, event.answer.codes))
    return {identity for identity, outcomes in seen.items() if len(outcomes) > 1}
