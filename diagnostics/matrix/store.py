"""Store the answers of layers in a file of JSON lines that survives a kill at any moment.

A line is written and synced to disk before the run goes on. A line torn by a kill or a full disk is dropped when the
store is opened again. A lock on a second file keeps two runs from writing at once; the kernel releases it with the
process. Events and logs of other stores are untrusted: they are checked before any of them is added.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from diagnostics import UserError, safe_io
from diagnostics.collect.names import is_package_version
from diagnostics.matrix.verdicts import NAME, UNFINISHED, Answer

LARGEST_LINE = 16 * safe_io.MIB
LARGEST_LOG = 256 * safe_io.MIB
_Name = Annotated[str, Meta(pattern=rf"\A{NAME}\Z")]
_Identity = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,128}\Z")]
_Time = Annotated[
    str,
    Meta(pattern=r"\A\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ\Z"),
]


class StoreError(UserError):
    """Raised when a store cannot be read or written; the one-line message says which and why."""


class StoreBusyError(StoreError):
    """Raised when another run of the matrix is using the store."""


class Event(Struct, frozen=True, tag_field="schema", tag="grpo-doctor.event.v1"):
    """The answer of one layer for one cell, and everything it depends on."""

    identity: _Identity
    """Digest of everything the answer depends on; see `identity.py`."""
    cell: _Name
    layer: _Name
    answer: Answer
    inputs: tuple[tuple[str, str], ...]
    """What went into the identity, readable: (name, value)."""
    command: str
    """Runs the layer again."""
    started: _Time
    """UTC, ISO 8601."""
    seconds: float
    run: str
    """The run of the matrix that made it."""

    @property
    def finished(self) -> bool:
        """Whether the answer is final, so that the layer need not run again."""
        return self.answer.outcome not in UNFINISHED

    def to_line(self) -> str:
        """Return the event as one line of JSON, without the line's end."""
        return msgspec.json.encode(self).decode()


def parse_event(line: str | bytes) -> Event:
    """Parse one line of the store to an event.

    Raises:
        ValueError: the line is no event that a run writes; one line that says why.
    """
    try:
        event = msgspec.json.decode(line, type=Event)
    except RecursionError:
        raise ValueError("nested too deep") from None
    for kind, name, version in event.answer.facts:
        if kind == "package" and not is_package_version(name, version):
            raise ValueError(f"facts: {str([kind, name, version])[:60]}: no package and its version")
    return event


@dataclass(frozen=True)
class Store:
    """The folder in which a matrix saves its answers."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file of events."""
        return self.folder / "store.jsonl"

    def read_events(self) -> list[Event]:
        """Return the events, oldest first, without invalid lines (such as a torn last one)."""
        if not self.path.exists():
            return []
        with _explained(self.path, "read"):
            lines = self.path.read_bytes().split(b"\n")
        events = []
        for line in filter(None, lines):
            with suppress(ValueError):
                events.append(parse_event(line))
        return events

    def append(self, event: Event) -> None:
        """Append an event and return when it is on disk.

        Raises:
            StoreError: it could not be written completely; earlier events are safe.
        """
        with _explained(self.path, "written"):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                data = (event.to_line() + "\n").encode()
                while data:
                    data = data[os.write(descriptor, data) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def merge(self, other: Store) -> int:
        """Add the events of another store that are not here yet, and their logs; return how many were new.

        The caller holds this store's lock. Merging twice is merging once.

        Raises:
            StoreError: the other store holds something that no run writes; nothing of it was added.
        """
        with _explained(other.path, "read"):
            *lines, torn = safe_io.read_text(other.path, safe_io.ARTIFACT, inside=other.folder).split("\n")
        events, logs = [], {}
        for number, line in enumerate(lines, start=1):
            place = f"{other.path}:{number}"
            try:
                if len(line) > LARGEST_LINE:
                    raise ValueError("longer than any event is")  # noqa: TRY301 - reported with its line below
                if line:
                    events.append(parse_event(line))
                    logs.update(_read_log(other.folder, events[-1].answer.log))
            except (ValueError, safe_io.UnsafeFileError) as error:
                raise StoreError(f"{place}: {error}; nothing of this store was added") from None
        with suppress(ValueError):
            events.append(parse_event(torn))
        return self.merge_events(events, logs)

    def merge_events(self, events: Iterable[Event], logs: Mapping[str, bytes]) -> int:
        """Add checked events that are not here yet, with their logs by path; return how many were new.

        Raises:
            StoreError: a link in this store leads out of it, or the disk failed.
        """
        known = {event.to_line() for event in self.read_events()}
        new = [event for event in events if event.to_line() not in known]
        for event in new:
            if event.answer.log in logs:
                self._write_log(event.answer.log, logs[event.answer.log])
            self.append(event)
        return len(new)

    def _write_log(self, name: str, data: bytes) -> None:
        """Write a log of another store; one that exists here stays."""
        target = self.folder / name
        if not target.parent.resolve().is_relative_to(self.folder.resolve()):
            raise StoreError(f"{target}: a link leads out of the store")
        with _explained(target, "written"), suppress(FileExistsError):
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                file.write(data)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the store for one run, and repair a torn last line.

        Raises:
            StoreBusyError: another process holds it.
            StoreError: the folder cannot be created, or its content cannot be read.
        """
        with _explained(self.folder, "used as a store"):
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
            with _explained(self.folder, "used as a store"):
                lock.truncate(0)
                lock.write(str(os.getpid()))
                lock.flush()
                self._repair()
            yield

    def _repair(self) -> None:
        """Cut off text after the last complete line, so that the next event starts a new line."""
        if not self.path.exists():
            return
        with self.path.open("r+b") as file:
            data = file.read()
            end = data.rfind(b"\n") + 1
            if end == len(data):
                return
            try:
                parse_event(data[end:])
                file.write(b"\n")  # only the line's end was lost
            except ValueError:
                file.truncate(end)
            file.flush()
            os.fsync(file.fileno())


def _read_log(folder: Path, name: str) -> dict[str, bytes]:
    """Return a log of another store by its path, nothing where it has none; a link out of the store is refused."""
    try:
        return {name: safe_io.read_bytes(folder / name, LARGEST_LOG, inside=folder)} if name else {}
    except FileNotFoundError:
        return {}


@contextmanager
def _explained(path: Path, done: str) -> Iterator[None]:
    """Convert an OSError within the block to a StoreError in one line that names the file."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be {done}: {error.strerror or error}") from None


def latest(events: Iterable[Event]) -> Event | None:
    """Return the newest event of one question; a finished event wins over a newer unfinished one.

    The newest by its time, since a merged store holds the events of several machines; within a second, the last.
    """
    ordered = sorted(events, key=lambda event: (event.finished, event.started))
    return ordered[-1] if ordered else None


def is_flaky(events: Iterable[Event]) -> bool:
    """Return whether the finished events of one question disagree: equal inputs, different outcomes."""
    outcomes = {(event.answer.outcome, event.answer.codes) for event in events if event.finished}
    return len(outcomes) > 1
