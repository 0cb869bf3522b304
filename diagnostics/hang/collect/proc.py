"""Read processes from /proc: state, threads, times, descriptors, system calls, environment and shared memory.

Values that cannot be read are empty or None (numbers of bytes: -1). `clock_offset_ms` moves this thread to another
processor for a moment, to read that processor's clock.
"""

import contextlib
import os
import platform
import re
import shlex
import struct
import threading
import time
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from stat import S_ISFIFO
from typing import Any

from diagnostics.collect.blocking_reads import LIMIT_S, call_in_child, read_process_file, read_process_files
from diagnostics.hang.snapshot import Descriptor, Thread
from diagnostics.output.redact import truncate
from diagnostics.safe_io import list_folder, read_kernel_file

Semaphores = list[tuple[int, int, int]]
"""(start, end, inode) of each mapping with semaphores."""


def _load_syscalls(machine: str) -> dict[int, str]:
    """Load the names of system calls from lines `number:name name name`, for consecutive numbers."""
    file = "syscalls_generic.txt" if machine in {"aarch64", "arm64"} else "syscalls_x86_64.txt"
    names, number = {}, 0
    for word in Path(__file__).with_name(file).read_text(encoding="ascii").split():
        first, colon, name = word.partition(":")
        number = int(first) if colon else number
        names[number] = name if colon else word
        number += 1
    return names


SYSCALLS = _load_syscalls(platform.machine())
UNANSWERED_PATHS: set[int] = set()
"""Processes with a path whose file system did not answer in time; other paths of theirs are not looked up."""
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The environment variables that `environment` returns."""
# Longest value of such a variable, largest number of descriptors of a `poll` that is read, and of a process.
MAX_VALUE = 256
MAX_POLLED = 256
MAX_DESCRIPTORS = 65_536
_WITH_DESCRIPTOR = {
    "read", "write", "pread64", "readv", "writev", "connect", "accept", "accept4", "sendto", "recvfrom", "sendmsg",
    "recvmsg", "flock", "fsync", "fcntl",
}  # fmt: skip
_OPENS = {"open": 0, "openat": 1, "openat2": 1}
"""System calls that open a path, with the position of the path among the arguments."""
_EPOLL = ("epoll_wait", "epoll_pwait")
_TIME_LIMITS = {
    "poll": 2, "ppoll": 2, "epoll_wait": 3, "epoll_pwait": 3, "select": 4, "pselect6": 4, "futex": 3,
}  # fmt: skip
"""Position among the arguments of the time limit: milliseconds for poll and epoll, else the address of a time."""
# Signals that Python, crash reporters and the C library handle, by number.
_USUAL_SIGNALS = (2, 4, 6, 7, 8, 11, 32, 33)
# Commands of fcntl that wait for a lock: F_SETLKW and F_OFD_SETLKW.
_F_SETLKW = (7, 38)
# `_multiprocessing.SemLock`: references, type, semaphore, thread, acquisitions, and maximum.
_SEMLOCK = struct.Struct("QQQQii")
_PRIVATE_MEMORY = re.compile(r"^(\w+)-(\w+) rw-p \S+ \S+ 0\s*$", re.MULTILINE)
MAX_SEARCHED = 256 << 20
"""Bytes of each mapping of memory that are searched for the owner of a lock."""
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - looked for in memory maps
_LINK = re.compile(r"(socket|pipe|anon_inode):\[?([^\]]*)\]?")
_LAST_RAN = re.compile(r"^se\.exec_start\s*:\s*([\d.]+)", re.MULTILINE)


def small_int(text: str) -> int | None:
    """Parse an untrusted number; None unless the text has one to nine digits and nothing else.

    >>> small_int("3"), small_int("-1"), small_int("9" * 5000)
    (3, None, None)
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else None


def stat_fields(pid: int, tid: int = 0) -> list[str]:
    """Return the fields of a process's or thread's `stat` from the third on (state, parent, ...); empty if ended."""
    return read_process_file(pid, f"task/{tid}/stat" if tid else "stat").rpartition(")")[2].split()


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, also if its parent has not read its exit code."""
    return (stat_fields(pid) or "X")[0] in "ZX"


def list_threads(pid: int) -> list[int]:
    """Return the ids of a process's threads; empty if they cannot be read."""
    return sorted(map(int, list_folder(f"/proc/{pid}/task")))


def owner_uid(pid: int) -> int | None:
    """Return the user id of a process; None if it cannot be read."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def command_line(pid: int) -> str:
    """Return the command line, truncated to 400 characters but not masked, or the name of a process without one.

    Words with blanks are quoted, except a single one, which is a title that the program gave itself.
    """
    text = read_process_file(pid, "cmdline")
    # Masking megabytes of another user's takes seconds. A divided word is dropped.
    end = 4096 if len(text) <= 4096 else max(0, *(text.rfind(separator, 0, 4096) for separator in " \0"))
    words = [" ".join(word.split()) for word in text[:end].split("\0") if word.strip()]
    line = " ".join(words if len(words) == 1 else map(_quote_value, words))
    return truncate(line, 400) or read_process_file(pid, "comm").strip()


def _quote_value(word: str) -> str:
    """Quote a word with blanks as for a shell, in NAME=VALUE the value alone."""
    name, value = re.findall(r"\A((?:[\w.+-]+=)?)(.*)", word)[0]
    return f"{name}{shlex.quote(value)}" if " " in word else word


def environment(pid: int) -> dict[str, str]:
    """Return the variables named in ENVIRONMENT; overlong values are left out."""
    items = (item.partition("=")[::2] for item in read_process_file(pid, "environ").split("\0"))
    return {name: value for name, value in items if name in ENVIRONMENT and len(value) <= MAX_VALUE}


def runnable_ns(pid: int, tid: int) -> int | None:
    """Return the nanoseconds in which a thread ran or waited for a processor; None if unknown."""
    parts = read_process_file(pid, f"task/{tid}/schedstat").split()
    return int(parts[0]) + int(parts[1]) if len(parts) == 3 else None


def asleep_s(pid: int, tid: int) -> float | None:
    """Return seconds since a thread last ran; None if its processor may not be used or nothing is known."""
    fields = stat_fields(pid, tid)
    ran = _last_ran_ms(pid, tid)
    offset = clock_offset_ms(int(fields[36])) if len(fields) > 36 else None
    if ran is None or offset is None:
        return None
    # Some virtual machines report a time before the start of the process.
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    slept_s = max(0.0, (time.monotonic() * 1000 - offset - ran) / 1000)
    return slept_s if slept_s <= age_s + 1 else None


@cache
def clock_offset_ms(processor: int) -> float | None:
    """Return by how much a processor's scheduler clock is behind the monotonic clock, in ms; None if unknown.

    It is unknown if that processor may not be used, or if the kernel reports no scheduler times.
    These clocks differ by seconds or hours and drift, because each omits the time that its processor spent on
    interrupts. So the clock is read by running on that processor for a moment, and again for each snapshot.
    """
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {processor})
        ran = _last_ran_ms(os.getpid(), threading.get_native_id())
        return None if ran is None else time.monotonic() * 1000 - ran
    except OSError:
        return None
    finally:
        os.sched_setaffinity(0, allowed)


def _last_ran_ms(pid: int, tid: int) -> float | None:
    match = _LAST_RAN.search(read_process_file(pid, f"task/{tid}/sched"))
    return float(match[1]) if match else None


def bytes_moved(pid: int) -> tuple[int, int]:
    """Return the numbers of bytes that a process has read and written; (-1, -1) without permission."""
    counts = dict(line.split(": ") for line in read_process_file(pid, "io").splitlines() if ": " in line)
    return int(counts.get("rchar", -1)), int(counts.get("wchar", -1))


def descriptors(pid: int) -> tuple[Descriptor, ...]:
    """Return MAX_DESCRIPTORS open files of a process; none without permission, or if the process has ended."""
    links: dict[int, str] = {}
    for name in list_folder(f"/proc/{pid}/fd")[:MAX_DESCRIPTORS]:
        with contextlib.suppress(OSError):
            links[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115 - as fast as it gets
    # Not of an epoll, whose lock a process may hold.
    files = [fd for fd, link in links.items() if not link.startswith(("socket", "anon_inode"))]
    texts = dict(zip(files, read_process_files(pid, [f"fdinfo/{fd}" for fd in files]), strict=False))
    items = [_descriptor(fd, link, texts.get(fd, "")) for fd, link in links.items()]
    if unknown := [item.fd for item in items if item.kind == "file" and not item.inode]:
        # Before Linux 5.14; a file system that is dead leaves them unknown.
        found = call_in_child(lambda: {fd: os.stat(f"/proc/{pid}/fd/{fd}").st_ino for fd in unknown}, {0: 0})  # noqa: PTH116
        items = [replace(item, inode=found.get(item.fd, item.inode)) for item in items]
    return tuple(sorted(items, key=lambda item: item.fd))


def _descriptor(fd: int, link: str, text: str) -> Descriptor:
    """Return a descriptor by its link in /proc/PID/fd, with the mode and inode in its fdinfo."""
    match = _LINK.match(link)
    if match and match[1] == "socket":
        return Descriptor(fd, "socket", int(match[2]))
    if match and match[1] == "anon_inode":
        return Descriptor(fd, "epoll" if "eventpoll" in link else "other", path=match[2])
    information = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    mode = ("r", "w", "rw", "rw")[int(information.get("flags", "2"), 8) & 3]
    if match:
        return Descriptor(fd, "pipe", int(match[2]), mode)
    if link.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return Descriptor(fd, "tty", mode=mode, path=link)
    # From Linux 5.14 on, and without a call of a file system that may be dead.
    return Descriptor(fd, "file", int(information.get("ino", 0)), mode, link)


def observe_thread(pid: int, thread: Thread, *, memory: bool = True) -> Thread:
    """Return a thread with its state, wait channel (kernel function) and system call; unreadable values stay empty.

    Without `memory`, the system call and its arguments are not read.
    """
    state = "".join(stat_fields(pid, thread.tid)[:1])
    wchan = read_process_file(pid, f"task/{thread.tid}/wchan").strip("0")
    return replace(thread, state=state, wchan=wchan, **(system_call(pid, thread.tid) if memory else {}))


def system_call(pid: int, tid: int) -> dict[str, Any]:
    """Return the system call of a thread with its descriptors, futex or path, as fields of `Thread`."""
    parts = read_process_file(pid, f"task/{tid}/syscall").split()
    if not parts or not parts[0].lstrip("-").isdigit():
        return {"syscall": "running" if parts[:1] == ["running"] else ""}
    name = SYSCALLS.get(int(parts[0]), f"number {parts[0]}")
    values = [int(part, 16) for part in parts[1:7]]
    if len(values) < 6:
        return {"syscall": name}
    none = 0xFFFFFFFF if name in ("poll", *_EPOLL) else 0
    timed = name in _TIME_LIMITS and values[_TIME_LIMITS[name]] & 0xFFFFFFFF != none
    if name == "futex":
        return {"syscall": name, "futex": f"{values[0]:#x}", "endless": not timed, "timed": timed}
    if name in _WITH_DESCRIPTOR:
        locks = name == "fcntl" and values[1] in _F_SETLKW
        size = {"read_size": values[2]} if name == "read" else {}
        return {"syscall": "fcntl lock" if locks else name, "waits_fds": (values[0] & 0xFFFFFFFF,)} | size
    if name in _OPENS:
        return {"syscall": name, "opens": _opened_path(pid, values[_OPENS[name]])}
    endless = name in _EPOLL and not timed and not _handled_signals(pid)
    fields = {"waits_fds": _waited_fds(pid, name, values), "signals": _awaited_signals(pid, name, values)}
    return {"syscall": name, "endless": endless, "timed": timed} | fields


def _handled_signals(pid: int) -> int:
    """Return the mask of handled signals without those that Python and crash reporters handle by default."""
    _, _, rest = read_process_file(pid, "status").partition("\nSigCgt:")
    handled = int(rest.split()[0], 16) if rest else 0
    return handled & ~sum(1 << (number - 1) for number in _USUAL_SIGNALS)


def _awaited_signals(pid: int, name: str, values: list[int]) -> tuple[int, ...]:
    """Return the signals that sigwait waits for, or that the program handles in pause; empty for other calls."""
    if name not in {"pause", "rt_sigtimedwait"}:
        return ()
    data = read_memory(pid, values[0], 8) if name != "pause" else b""
    mask = int.from_bytes(data, "little") or _handled_signals(pid)
    return tuple(number for number in range(1, 65) if mask >> (number - 1) & 1)


def _waited_fds(pid: int, name: str, values: list[int]) -> tuple[int, ...]:
    """Return the descriptors that a call of poll or epoll waits for."""
    if name.startswith("epoll"):
        path = f"/proc/{pid}/fdinfo/{values[0]}"
        lines = call_in_child(lambda: read_kernel_file(path), "", pid).splitlines()
        return tuple(int(line.split()[1]) for line in lines if line.startswith("tfd:"))
    if name in {"poll", "ppoll"} and 0 < values[1] <= MAX_POLLED:
        data = read_memory(pid, values[0], 8 * values[1])
        return tuple(fd for fd, _, _ in struct.iter_unpack("ihh", data[: len(data) // 8 * 8]) if fd >= 0)
    return ()


def read_memory(pid: int, address: int, size: int) -> bytes:
    """Read `size` bytes of a process's memory; empty without permission or without an answer in time."""
    return call_in_child(lambda: os.pread(os.open(f"/proc/{pid}/mem", os.O_RDONLY), size, address), b"", pid)


def holds_semaphore(pid: int, inode: int) -> bool | None:
    """Return whether a process holds the lock of `multiprocessing` in a semaphore; None if that is unknown.

    The C library stores no owner, but Python counts in each `SemLock` object how often its process acquired it. The
    object is found in memory by its pointer to the semaphore.
    """
    addresses = maps_semaphore(pid, inode)
    return call_in_child(lambda: _find_acquired(pid, addresses), None, pid) if addresses else None


def maps_semaphore(pid: int, inode: int) -> list[int]:
    """Return the addresses at which a process maps a semaphore."""
    return [start for start, _, mapped in shared_memory(pid)[1] if mapped == inode]


def _find_acquired(pid: int, addresses: list[int]) -> bool | None:
    """Search a process's memory for the `SemLock` objects of locks at these addresses; None if there are none.

    Python allocates small objects in anonymous mappings. The search ends at a lock that the process acquired.
    """
    # Without the zeros of the addresses, which memory is full of.
    patterns = [re.compile(re.escape(struct.pack("Q", address)[1:6]), re.DOTALL) for address in addresses]
    end, acquired = time.monotonic() + LIMIT_S / 2, None
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for span in _PRIVATE_MEMORY.findall(read_kernel_file(f"/proc/{pid}/maps")):
            start, stop = (int(address, 16) for address in span)
            if time.monotonic() > end:
                return None
            data = os.pread(memory.fileno(), min(stop - start, MAX_SEARCHED), start)
            last = len(data) - _SEMLOCK.size
            for match in chain.from_iterable(pattern.finditer(data, 17, last) for pattern in patterns):
                uses, _, handle, _, count, maximum = _SEMLOCK.unpack_from(data, match.start() - 17)
                if handle in addresses and 0 < uses < 1 << 32 and maximum == 1:
                    if count > 0:
                        return True
                    acquired = False
    return acquired


def _opened_path(pid: int, address: int) -> str:
    """Return the path at an address in a process's memory; a named pipe is marked as one.

    Half a name is not masked, so a path without its end, which is longer than the system allows, stays unknown.
    """
    name = read_memory(pid, address, 4096) or read_memory(pid, address, 4096 - address % 4096)
    path = (name.partition(b"\0")[0] if b"\0" in name else b"").decode("utf-8", errors="replace")
    real = f"/proc/{pid}/root{path}" if path.startswith("/") else f"/proc/{pid}/cwd/{path}"
    fifo = call_in_child(lambda: S_ISFIFO(os.stat(real).st_mode), False, pid, UNANSWERED_PATHS)  # noqa: PTH116
    return f"{path} (a named pipe)" if fifo else path


def shared_memory(pid: int) -> tuple[tuple[str, ...], Semaphores]:
    """Return shared memory as "PATH#INODE" (at most 64), and (start, end, inode) of each mapping with semaphores."""
    names, semaphores = set(), []
    for line in read_process_file(pid, "maps").splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) < 6 or (_SHARED_MEMORY not in line and "/dev/zero" not in line):
            continue
        path = parts[5].removesuffix(" (deleted)")
        start, _, end = parts[0].partition("-")
        names.add(f"{path}#{parts[4]}")
        if "/sem." in path:
            semaphores.append((int(start, 16), int(end, 16), int(parts[4])))
    return tuple(sorted(names))[:64], semaphores
