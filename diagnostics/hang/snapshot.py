"""What was seen of a job's processes, as data: taken here, read from a dump, or kept in a bundle."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diagnostics.hang import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = "grpo-doctor.hang-snapshot.v1"
# The path of a frame of native code that names no file.
NATIVE = "[native]"
# The path of a frame of a rank whose number is not said.
UNNAMED = "PyTorch's check"
# Roles of what a text says to have died or failed, and of which nothing was seen.
DIED, FAILED, OWES = "dead process", "failed device", "serving engine"
# Who noticed that something stands, and says no more: a guess is what it says of others.
NOTICED, SAID = "words of who noticed", "what somebody says of it"
# At the end of a source: a dump that a server took of itself, since its step stood.
WATCHED = "under a watchdog's words"
# A thread that could run for more than this share of the time it was watched is busy.
BUSY = 0.3


class SnapshotError(ValueError):
    """Raised when a document is no snapshot; the message is one line for the user."""


@dataclass(frozen=True)
class StackFrame:
    """A frame of a Python stack.

    Attributes:
        function: Its last name: `get`, not `Queue.get`, since older tools know no more.
        calls: The call on its line that may wait, as "acquire" or "input", where the source could be read: what is
            written in C has no frame of its own.
    """

    path: str
    function: str
    line: int = 0
    calls: str = ""

    def __str__(self) -> str:
        place = f"{short(self.path)}:{self.line}" if self.line else short(self.path)
        return f"{self.function} ({place})" if self.path else self.function


@dataclass(frozen=True)
class Thread:
    """A thread, over all samples that were taken of it.

    Attributes:
        frames: Of the last sample, innermost first.
        steady: Whether every sample had the same functions on its stack.
        stem: How many of the outermost frames were the same in every sample.
        samples: How many samples have a stack; 0 if it was never seen.
        active: What the reader of stacks took it for; None if it did not say.
        runnable: The share of the time in which it ran or wanted to; None if unknown.
        asleep_s: Seconds since it last ran; None if unknown.
        waits_fds: The descriptors that its system call waits for.
        futex: What its system call waits at: an address, or "sem:INODE" for a semaphore that processes share.
        limited: Whether its system call ends by itself after some time; None if unknown.
    """

    tid: int
    name: str = ""
    frames: tuple[StackFrame, ...] = ()
    steady: bool = True
    stem: int = 0
    samples: int = 0
    active: bool | None = None
    gil: bool = False
    state: str = ""
    wchan: str = ""
    syscall: str = ""
    waits_fds: tuple[int, ...] = ()
    futex: str = ""
    limited: bool | None = None
    runnable: float | None = None
    asleep_s: float | None = None

    @property
    def busy(self) -> bool:
        """Whether it computes: by the kernel's count where that is known, else by what the reader took it for."""
        if self.runnable is not None:
            return self.runnable >= BUSY
        return bool(self.active)


@dataclass(frozen=True)
class Descriptor:
    """An open file of a process: `kind` is tcp, unix, pipe, file, tty, null, epoll or other."""

    fd: int
    kind: str
    inode: int = 0
    mode: str = "rw"
    path: str = ""


@dataclass(frozen=True)
class Process:
    """A process.

    Attributes:
        role: What it is in the job, as "trainer" or "engine core".
        job: Names the group of ranks it belongs to: the store's address.
        state: Of the kernel: R S D T t Z; X for one that is gone; empty if unknown.
        unseen: What could not be seen of it, and why.
        shared: Memory that processes share, as names of /dev/shm.
        io_moved: Whether it read or wrote anything while it was watched; None if unknown.
    """

    pid: int
    ppid: int = 0
    host: str = ""
    title: str = ""
    role: str = "process"
    rank: int | None = None
    world: int | None = None
    job: str = ""
    python: bool = True
    state: str = ""
    age_s: float | None = None
    threads: tuple[Thread, ...] = ()
    fds: tuple[Descriptor, ...] = ()
    shared: tuple[str, ...] = ()
    io_moved: bool | None = None
    unseen: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Tells it from all others of the job, on all hosts."""
        return f"{self.host}/{self.pid}"

    @property
    def label(self) -> str:
        """As sentences call it: "rank 2 (trainer, pid 812)"."""
        where = f" on {self.host}" if self.host else ""
        if self.pid < 0:  # its number is not known
            return f"rank {self.rank}" if self.rank is not None else f"a {self.role}"
        if self.rank is not None:
            return f"rank {self.rank} ({self.role}, pid {self.pid}{where})"
        return f"{self.role} (pid {self.pid}{where})"

    @property
    def main(self) -> Thread | None:
        """The main thread: that of its own number, or the one that is called so."""
        for thread in self.threads:
            if thread.tid == self.pid or thread.name == "MainThread":
                return thread
        return self.threads[0] if len(self.threads) == 1 else None


@dataclass(frozen=True)
class Socket:
    """A socket of a process of the job.

    Attributes:
        kind: tcp or unix.
        state: ESTABLISHED, LISTEN, CLOSE_WAIT, …
        unread: Bytes that its owner has not read.
        unsent: Bytes that its peer has not taken.
        peer: The inode at the other end, 0 if that is not on this host.
        sent_s: Seconds since anything was sent; None if unknown.
        received_s: Seconds since anything was received.
        host: Where it is; inodes are numbers of a host.
    """

    inode: int
    kind: str
    local: str = ""
    remote: str = ""
    state: str = ""
    unread: int = 0
    unsent: int = 0
    peer: int = 0
    sent_s: float | None = None
    received_s: float | None = None
    host: str = ""


@dataclass(frozen=True)
class Lock:
    """A lock of a file, held or waited for by a process; `pid` 0 where its holder is in another namespace."""

    inode: int
    pid: int
    kind: str
    waiting: bool = False
    path: str = ""
    host: str = ""


@dataclass(frozen=True)
class Collective:
    """What a recorder of collectives says of one rank in one group.

    Attributes:
        enqueued: Number of the last collective that this rank began.
        completed: Number of the last one that it ended.
        operation: Name of the last one it began, with its place in the code.
    """

    rank: int
    group: str
    enqueued: int
    completed: int
    operation: str = ""
    sizes: str = ""


@dataclass(frozen=True)
class Said:
    """Of which class of cause a text's words are, where its form tells nothing; and the lines that say so."""

    cause: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """All that was seen.

    Attributes:
        source: "live", or what kind of dump it was read from.
        seconds: How long it was watched.
        blind: What could not be looked at, each with what would let it be seen.
        missing: Hosts that gave no answer.
        notes: What else is worth saying.
        said: What the words of a dump are of; None where no class leads, and of what was seen live.
    """

    processes: tuple[Process, ...] = ()
    sockets: tuple[Socket, ...] = ()
    locks: tuple[Lock, ...] = ()
    collectives: tuple[Collective, ...] = ()
    source: str = "live"
    seconds: float = 0.0
    blind: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    said: Said | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in a bundle."""
        found: dict[str, Any] = plain.slim(dataclasses.asdict(self))
        return {"schema": SCHEMA} | found

    def on(self, host: str) -> Snapshot:
        """The same as of a host of that name, whatever it called itself."""
        return dataclasses.replace(
            self,
            processes=tuple(dataclasses.replace(p, host=host) for p in self.processes),
            sockets=tuple(dataclasses.replace(s, host=host) for s in self.sockets),
            locks=tuple(dataclasses.replace(one, host=host) for one in self.locks),
            blind=tuple(f"{host}: {text}" for text in self.blind),
        )

    @staticmethod
    def from_json(document: Any) -> Snapshot:
        """Reads what `to_json` gave.

        Raises:
            SnapshotError: It is something else.
        """
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise SnapshotError(f"no snapshot: expected a document with schema {SCHEMA}")
        try:
            built: Snapshot = plain.build(Snapshot, {k: v for k, v in document.items() if k != "schema"})
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise SnapshotError(f"a broken snapshot: {error}") from None
        return built


def joined(parts: Sequence[Snapshot]) -> Snapshot:
    """Several snapshots, of several hosts or of several files, as one."""
    return Snapshot(
        processes=tuple(item for part in parts for item in part.processes),
        sockets=tuple(item for part in parts for item in part.sockets),
        locks=tuple(item for part in parts for item in part.locks),
        collectives=tuple(item for part in parts for item in part.collectives),
        source=" and ".join(dict.fromkeys(part.source for part in parts)),
        seconds=max((part.seconds for part in parts), default=0.0),
        blind=tuple(item for part in parts for item in part.blind),
        missing=tuple(item for part in parts for item in part.missing),
        notes=tuple(dict.fromkeys(item for part in parts for item in part.notes)),
    )


def short(path: str) -> str:
    """A path from the last folder of packages on, or its last three parts.

    >>> short("/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py")
    'torch/distributed/distributed_c10d.py'
    """
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in path:
            return path.rpartition(mark)[2]
    from diagnostics.output.personal import (
        folders,  # late: a snapshot is taken where nothing but this room is
    )

    parts = folders(path).split("/")  # before what tells a user's name is cut off
    if len(parts) > 2 and parts[-2].startswith("python3."):
        return parts[-1]
    if len(parts) > 3 and parts[-3].startswith("python3."):
        return "/".join(parts[-2:])
    return "/".join(parts[-3:]).lstrip("/")
