"""Define the snapshot of a job's processes: observed live, parsed from a dump, or loaded from a saved bundle.

A snapshot has processes with threads and stacks, sockets, file locks, and collectives. The field names are the keys of
the bundle `grpo-doctor.hang-snapshot.v1`. `join_snapshots` joins those of several hosts or files. Standard library
only, because this module is sent to other hosts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA = "grpo-doctor.hang-snapshot.v1"
NATIVE = "[native]"
"""Path of a native frame without a file."""
MAX_TEXT = 1000
"""Maximum length of a path, a function or any other text from a dump."""
BUSY_SHARE = 0.3
"""A thread that was runnable for at least this share of the time computes."""
TRANSFER_RATE = 1024
"""Bytes per second; a connection with more than this transfers data, and is no heartbeat."""
LONG_SLEEP_S = 10.0
"""A thread that has slept for longer than this no longer computes, however much it ran before."""
_ENDING_SIGNALS = frozenset({1, 2, 3, 15})  # SIGHUP, SIGINT, SIGQUIT, SIGTERM
_LOCAL_ADDRESS = re.compile(
    r"(localhost|0\.0\.0\.0|::|\[?(::ffff:)?127(\.\d{1,3}){3}\]?|\[?::1\]?|\[::\])(:\d{0,5})?", re.ASCII
)


def is_local(address: str) -> bool:
    """Return whether an address, with or without a port, means the local machine: a different one on each host."""
    return bool(_LOCAL_ADDRESS.fullmatch(address))


@dataclass(frozen=True)
class StackFrame:
    """A stack frame.

    Attributes:
        function: Last part of the name: `get`, not `Queue.get`, because older tools print only the last part.
        calls: The blocking call on the frame's source line, such as "acquire" or "input", because C functions have no
            frame.
    """

    path: str
    function: str
    line: int = 0
    calls: str = ""

    @property
    def location(self) -> str:
        """The frame as "path:function", which patterns match."""
        return f"{self.path}:{self.function}"


@dataclass(frozen=True)
class Thread:
    """A thread, summarised over all samples.

    Attributes:
        frames: Frames of the last sample, innermost first.
        steady: Whether every sample had the same functions on its stack.
        active: Whether the stack tool reported the thread as active; None if unknown.
        gil: Whether the thread has Python's global interpreter lock.
        state: The kernel's state of the thread, as in /proc.
        wchan: The kernel function that the thread sleeps in.
        syscall: Name of the system call that the thread is in.
        waits_fds: Descriptors that the system call waits for.
        futex: Address of the futex that the thread waits for, or "sem:INODE" for a semaphore shared between processes.
        opens: Path that the system call opens.
        signals: Numbers of the signals that a call of sigwait waits for, or that end a call of pause.
        read_size: Bytes that a call of read requests; 0 for other calls.
        endless: Whether a futex call has no timeout; for epoll, also that no signal which the program handles ends it.
        timed: Whether the system call has a time limit.
        relocks: Position of the frame in which the thread took the lock that it waits for, by the source; None if none.
        runnable: Share of the time in which the thread ran or waited for a processor; None if unknown.
        asleep_s: Seconds since the thread last ran; None if unknown.
    """

    tid: int
    name: str = ""
    frames: tuple[StackFrame, ...] = ()
    steady: bool = True
    active: bool | None = None
    gil: bool = False
    state: str = ""
    wchan: str = ""
    syscall: str = ""
    waits_fds: tuple[int, ...] = ()
    futex: str = ""
    opens: str = ""
    signals: tuple[int, ...] = ()
    read_size: int = 0
    endless: bool = False
    timed: bool = False
    relocks: int | None = None
    runnable: float | None = None
    asleep_s: float | None = None

    @property
    def awaits_own_signal(self) -> bool:
        """Whether the thread waits for signals, and for none by which users and supervisors end or reload programs."""
        return bool(self.signals) and _ENDING_SIGNALS.isdisjoint(self.signals)

    @property
    def busy(self) -> bool:
        """Whether the thread computes: by the kernel's counters, else as the stack tool reports."""
        if self.runnable is None:
            return bool(self.active)
        return self.runnable >= BUSY_SHARE and (self.asleep_s or 0.0) <= LONG_SLEEP_S


@dataclass(frozen=True)
class Descriptor:
    """An open file: `kind` is tcp, unix, socket (of another kind), pipe, file, tty, epoll or other."""

    fd: int
    kind: str
    inode: int = 0
    mode: str = "rw"
    path: str = ""


@dataclass(frozen=True)
class Process:
    """A process.

    Attributes:
        role: Role in the job, such as "trainer" or "engine core".
        world: Number of ranks in the job, as WORLD_SIZE or a dump has it; None if unknown.
        job: Address of the rendezvous store of the process's group of ranks, or a name of the group in a dump.
        python: Whether the process runs Python.
        state: The kernel's state R, S, D, T, t or Z; X if the process ended; empty if unknown.
        shared: Names of shared memory, each with its inode.
        io_moved: Whether the process read or wrote anything while observed; None if unknown.
        wrote: Whether the process wrote anything while observed.
        io_bytes: Bytes read and written while observed; 0 if unknown.
        forked: Whether the process is a fork of its parent, and has started no other program since.
        unseen: Texts about data that could not be read, with the reason.
        numbered: Whether a parser made up the pid, because the dump does not have one of its own.
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
    threads: tuple[Thread, ...] = ()
    fds: tuple[Descriptor, ...] = ()
    shared: tuple[str, ...] = ()
    io_moved: bool | None = None
    wrote: bool = False
    io_bytes: int = 0
    forked: bool = False
    unseen: tuple[str, ...] = ()
    numbered: bool = False

    @property
    def key(self) -> str:
        """Identifier among the processes of all hosts: "HOST/PID"."""
        return f"{self.host}/{self.pid}"

    @property
    def label(self) -> str:
        """The name of the process in sentences: "rank 2 (trainer, pid 812)"."""
        where = f" on {self.host}" if self.host else ""
        if self.rank is not None:
            return f"rank {self.rank} ({self.role}{'' if self.numbered else f', pid {self.pid}'}{where})"
        return self.pid_text if self.numbered else f"{self.role} (pid {self.pid}{where})"

    @property
    def pid_text(self) -> str:
        """The pid as text, "pid 812"; without one the rank, or the number of the process in the dump."""
        if not self.numbered:
            return f"pid {self.pid}"
        return f"rank {self.rank}" if self.rank is not None else f"{self.role} {self.pid} of the dump"

    @property
    def ray_method(self) -> str:
        """The method in the title of a Ray actor, as "Scorer.score"."""
        return self.title.partition("::")[2]

    @property
    def main(self) -> Thread | None:
        """The main thread, by its id or name; else the only thread, or None."""
        for thread in self.threads:
            if thread.tid == self.pid or thread.name == "MainThread":
                return thread
        return self.threads[0] if len(self.threads) == 1 else None


@dataclass(frozen=True)
class Socket:
    """A socket of a process of the job.

    Attributes:
        kind: tcp or unix.
        state: ESTABLISHED, LISTEN, CLOSE_WAIT, ...
        unread: Bytes that the owner has not read; for a listening socket, connections that are not accepted.
        unsent: Bytes that the peer has not acknowledged.
        peer: Inode of the other end, or of the listener that has not accepted a unix socket; 0 if not on this host.
        sent_s: Seconds since anything was sent; None if unknown.
        received_s: Seconds since anything was received; None if unknown.
        bytes_sent: Bytes sent since the connection began; None if unknown.
        bytes_received: Bytes received since the connection began; None if unknown.
        moved: Bytes sent and received during the observation.
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
    bytes_sent: int | None = None
    bytes_received: int | None = None
    moved: int = 0
    host: str = ""

    @property
    def total_bytes(self) -> int:
        """Bytes sent and received since the connection began, as far as known."""
        return (self.bytes_sent or 0) + (self.bytes_received or 0)

    @property
    def quiet_s(self) -> float | None:
        """Seconds since the last traffic; None if unknown."""
        if self.sent_s is None or self.received_s is None:
            return None
        return min(self.sent_s, self.received_s)

    @property
    def request_unanswered(self) -> bool:
        """Whether something was sent on this end, and nothing was received since."""
        return _is_unanswered(self.sent_s, self.bytes_sent, self.received_s, self.bytes_received)

    @property
    def simultaneous(self) -> bool:
        """Whether the last data in both directions came so close that its order is unknown."""
        ordered = self.request_unanswered or self.owes_response
        return self.quiet_s is not None and bool(self.bytes_sent and self.bytes_received) and not ordered

    @property
    def owes_response(self) -> bool:
        """Whether something was received on this end, and nothing was sent since."""
        return _is_unanswered(self.received_s, self.bytes_received, self.sent_s, self.bytes_sent)


def _is_unanswered(
    request_s: float | None, request_bytes: int | None, response_s: float | None, response_bytes: int | None
) -> bool:
    """Return whether the last request is later than the last response, or there is a request and no response.

    The kernel counts both ages from the creation of the connection, in steps of up to 10 ms. Equal ages mean that
    nothing was sent yet, or that the only request was sent at once: only the numbers of bytes tell these apart.
    """
    if request_bytes is not None and response_bytes is not None and not (request_bytes and response_bytes):
        return request_bytes > 0
    return request_s is not None and response_s is not None and request_s + 0.002 < response_s


@dataclass(frozen=True)
class Lock:
    """A file lock that a process holds or waits for, or a semaphore that a process holds.

    The kind is that of /proc/locks, or "semaphore" for a lock of multiprocessing. `pid` is 0 if the holder of a file
    lock is unknown, or if the process that held a semaphore has ended. With `taken` the process took the file lock
    during the observation.
    """

    inode: int
    pid: int
    kind: str
    waiting: bool = False
    taken: bool = False
    path: str = ""
    host: str = ""


@dataclass(frozen=True)
class Collective:
    """A rank's state in one process group, from a flight recorder, NCCL's watchdog or NCCL's RAS.

    Attributes:
        enqueued: Number of the last collective that the rank started.
        completed: Number of the last collective that the rank finished; -1 if none or unknown.
        operation: Name of the last collective that the rank started.
        sizes: Sizes of this collective's input, and output if reported, as text.
    """

    rank: int
    group: str
    enqueued: int
    completed: int
    operation: str = ""
    sizes: str = ""


@dataclass(frozen=True)
class Snapshot:
    """The observed processes of a job, with their sockets, file locks and collectives.

    Attributes:
        source: "live", or the kind of dump.
        seconds: Duration of the observation.
        blind: Texts about data that could not be read, with the change that would make it readable.
        missing: Hosts, files, sockets, processes or threads that were not read, so that the job is incomplete.
        notes: Remarks for the user.
    """

    processes: tuple[Process, ...] = ()
    sockets: tuple[Socket, ...] = ()
    locks: tuple[Lock, ...] = ()
    collectives: tuple[Collective, ...] = ()
    source: str = "live"
    seconds: float = 0.0
    blind: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def live(self) -> bool:
        """Whether times, sockets and counters were observed, not only stacks."""
        return self.source == "live"

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as JSON data of a bundle, not redacted and without empty values."""
        document: dict[str, Any] = _without_empty(dataclasses.asdict(self))
        return {"schema": SCHEMA} | document

    def on_host(self, host: str) -> Snapshot:
        """Return a copy with the name of a host in each process, socket and lock, and before each text of `blind`."""
        placed: dict[str, Any] = {
            name: tuple(dataclasses.replace(item, host=host) for item in getattr(self, name))
            for name in ("processes", "sockets", "locks")
        }
        return dataclasses.replace(self, **placed, blind=tuple(f"{host}: {text}" for text in self.blind))


def join_snapshots(parts: Sequence[Snapshot]) -> Snapshot:
    """Join snapshots of several hosts or files into one; the duration is the longest."""
    fields = ("processes", "sockets", "locks", "collectives", "blind", "missing")
    return Snapshot(
        **{name: tuple(item for part in parts for item in getattr(part, name)) for name in fields},
        source=" and ".join(dict.fromkeys(part.source for part in parts)) or "live",
        seconds=max((part.seconds for part in parts), default=0.0),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _without_empty(value: Any) -> Any:
    """Return nested JSON data without empty values, and with floats rounded to three digits."""
    if isinstance(value, dict):
        items = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in items.items() if item not in (None, "", [], {})}
    if isinstance(value, list | tuple):
        return [_without_empty(item) for item in value]
    return round(value, 3) if isinstance(value, float) else value
