"""Store the answers of layers in a file of JSON lines that survives a kill at any moment.

`Store.append` returns when its line is on disk. A line torn by a kill or a full disk is dropped when the store is
locked again. `Store.locked` refuses a folder of another user, and locks a second file, so that no two runs write at
once; `append` and `merge` take no lock. The kernel releases the lock when the process ends. Events of another store are
untrusted, so `merge` checks them before it adds one. It does not copy their logs. `latest` returns the event that
counts, and `is_flaky` whether the final ones disagree.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from diagnostics import UserError, safe_io
from diagnostics.collect.metadata_validation import is_package_version
from diagnostics.matrix.verdicts import NAME, OPEN_OUTCOMES, Answer
from diagnostics.output.redact import truncate

# The store of `report`, `publish` and `--merge` can be from somebody else; a link in it could lead to any file.
_NO_LINK = os.O_NOFOLLOW | os.O_NONBLOCK
_Name = Annotated[str, Meta(pattern=rf"\A{NAME}\Z")]
_Identity = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,128}\Z")]
_Time = Annotated[
    str,
    Meta(pattern=r"\A\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ\Z"),
]


class StoreError(UserError):
    """Raised when a store cannot be read or written; the message names the path and the reason in one line."""


class StoreBusyError(StoreError):
    """Raised when another run of the matrix is using the store."""


class Event(Struct, frozen=True, tag_field="schema", tag="grpo-doctor.event.v1"):
    """The answer of a layer for a cell, and what the answer depends on."""

    identity: _Identity
    """Digest of everything that the answer depends on; see `identity.py`."""
    cell: _Name
    layer: _Name
    answer: Answer
    inputs: tuple[tuple[str, str], ...]
    """The data in the identity, readable: (name, value)."""
    command: str
    """Command that runs the layer again."""
    started: _Time
    """Time of the start: UTC, ISO 8601."""
    seconds: float
    run: str
    """Name of the run of the matrix in which the layer ran."""

    @property
    def is_final(self) -> bool:
        """Whether the answer is final, so that the layer need not run again."""
        return self.answer.outcome not in OPEN_OUTCOMES

    def to_line(self) -> str:
        """Return the event as one line of JSON, without the line's end."""
        return msgspec.json.encode(self).decode()


def parse_event(line: str | bytes) -> Event:
    """Parse a line of the store to an event.

    Raises:
        ValueError: The line is no event that a run writes; the message says why in one line.
    """
    try:
        event = msgspec.json.decode(line, type=Event)
    except RecursionError:
        raise ValueError("nested too deep") from None
    for kind, name, version in event.answer.facts:
        if kind == "package" and not is_package_version(name, version):
            raise ValueError(f"facts: {truncate(str([kind, name, version]), 60)}: no package and its version")
    return event


@dataclass(frozen=True)
class Store:
    """The folder in which the matrix saves answers."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file of events."""
        return self.folder / "store.jsonl"

    def read_events(self) -> list[Event]:
        """Return the events in the order of the file, without invalid lines (such as a torn last one).

        A store without a file has none.

        Raises:
            StoreError: The file cannot be read.
        """
        with _reported_as_store_error(self.path, "read"):
            try:
                lines = safe_io.read_bytes(self.path, safe_io.ARTIFACT_LIMIT, inside=self.folder).split(b"\n")
            except FileNotFoundError:
                return []
        events = []
        for line in filter(None, lines):
            with suppress(ValueError):
                events.append(parse_event(line))
        return events

    def append(self, event: Event) -> None:
        """Append an event and return when it is on disk.

        Raises:
            StoreError: The event could not be written completely; earlier events are safe.
        """
        flags = os.O_APPEND | os.O_CREAT
        with _reported_as_store_error(self.path, "written"), _open_no_link(self.path, flags) as file:
            file.write(event.to_line() + "\n")
            file.flush()
            os.fsync(file.fileno())

    def merge(self, other: Store) -> int:
        """Add the missing events of another store; return how many were new.

        The caller holds this store's lock. The other store's torn last line is skipped. Merging a store a second time
        adds nothing.

        Raises:
            StoreError: The other store cannot be read or has a line that no run writes, and nothing was added; or this
                store cannot be written.
        """
        with _reported_as_store_error(other.path, "read"):
            text = safe_io.read_text(other.path, safe_io.ARTIFACT_LIMIT, inside=other.folder)
        *lines, _torn = text.split("\n")
        events = []
        for number, line in enumerate(lines, start=1):
            try:
                if line:
                    events.append(parse_event(line))
            except ValueError as error:
                raise StoreError(f"{other.path}:{number}: {error}; nothing of this store was added") from None
        known = {event.to_line() for event in self.read_events()}
        new = [event for event in events if event.to_line() not in known]
        for event in new:
            self.append(event)
        return len(new)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the store for one run, and repair a torn last line.

        Raises:
            StoreBusyError: Another process holds the lock.
            StoreError: The folder belongs to another user or cannot be created, or its file cannot be repaired.
        """
        with _reported_as_store_error(self.folder, "used as a store"):
            self.folder.mkdir(parents=True, exist_ok=True)
            owners = {self.folder.stat().st_uid, self.folder.lstat().st_uid}  # of a link, too
            if others := owners - {0, os.geteuid()}:
                raise PermissionError(
                    0, f"it belongs to user {others.pop()}, and a run executes its environments"
                )
            file = _open_no_link(self.folder / "lock", os.O_APPEND | os.O_CREAT)
        with file as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                holder = lock.read(20).strip() or "unknown"
                raise StoreBusyError(
                    f"{self.folder}: another run of the matrix (process {holder}) is using this store; "
                    "wait for it, or name another folder with --store"
                ) from None
            with _reported_as_store_error(self.folder, "used as a store"):
                lock.truncate(0)
                lock.write(str(os.getpid()))
                lock.flush()
                self._repair()
            yield

    def _repair(self) -> None:
        """Cut off a torn last line, so that the next event starts a new line."""
        if self.path.exists():
            with _open_no_link(self.path, 0) as file:
                start = max(0, file.seek(0, os.SEEK_END) - safe_io.DOCUMENT_LIMIT)
                end = os.pread(file.fileno(), safe_io.DOCUMENT_LIMIT, start).rfind(b"\n") + 1
                if start and not end:
                    raise safe_io.UnsafeFileError("its last line is longer than 64 MiB")
                file.truncate(start + end)


def _open_no_link(path: Path, flags: int) -> TextIOWrapper:
    """Open a file for reading and writing; a link, a pipe and a file with a second name are refused."""
    file = os.fdopen(os.open(path, os.O_RDWR | _NO_LINK | flags, 0o644), "r+b")
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        raise safe_io.UnsafeFileError(
            "it is a hard link: another name of a file that may be in use elsewhere"
        )
    return TextIOWrapper(file, "utf-8", errors="replace")


@contextmanager
def _reported_as_store_error(path: Path, done: str) -> Iterator[None]:
    """Convert an OSError within the block to a StoreError; `done` completes the message "PATH: cannot be …"."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be {done}: {error.strerror or error}") from None


def latest(events: Iterable[Event]) -> Event | None:
    """Return the newest final event of one cell and layer; the newest event if none is final; else None.

    Events are compared by time, because a merged store has events of several machines; at equal times, the last counts.
    """
    ordered = sorted(events, key=lambda event: (event.is_final, event.started))
    return ordered[-1] if ordered else None


def is_flaky(events: Iterable[Event]) -> bool:
    """Return whether the final events of one cell and layer have different outcomes or codes."""
    return len({(event.answer.outcome, event.answer.codes) for event in events if event.is_final}) > 1
