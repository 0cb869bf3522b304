"""What /proc says of a process: state, threads, descriptors, system calls, shared memory. Reads, and nothing else."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from diagnostics.hang.plain import whole_words
from diagnostics.hang.snapshot import Descriptor

# Names of the variables that are read of a process's environment; no other is looked at.
ENVIRONMENT = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES",
    "NCCL_RAS_ADDR",
)  # fmt: skip
_X86 = {
    0: "read", 1: "write", 7: "poll", 17: "pread64", 19: "readv", 20: "writev", 23: "select", 34: "pause",
    35: "nanosleep",
    42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4", 72: "fcntl",
    73: "flock", 74: "fsync", 128: "rt_sigtimedwait", 202: "futex", 230: "clock_nanosleep", 232: "epoll_wait",
    247: "waitid", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4", 441: "epoll_pwait2",
}  # fmt: skip
_ARM = {
    63: "read", 64: "write", 65: "readv", 66: "writev", 72: "pselect6", 73: "ppoll", 101: "nanosleep",
    115: "clock_nanosleep",
    203: "connect", 202: "accept", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 260: "wait4",
    25: "fcntl", 32: "flock", 82: "fsync", 98: "futex", 22: "epoll_pwait", 95: "waitid", 242: "accept4",
}  # fmt: skip
CALLS = _ARM if platform.machine() in {"aarch64", "arm64"} else _X86
_ONE_FD = {"read", "write", "pread64", "readv", "writev", "connect", "accept", "accept4", "sendto", "recvfrom",
           "sendmsg", "recvmsg", "flock", "fsync", "fcntl"}  # fmt: skip
_MOST_POLLED = 256
_SHARED = "/dev/shm/"  # noqa: S108 - looked for in maps of memory
_F_SETLKW = (7, 38)
_LINK = re.compile(r"(socket|pipe|anon_inode):\[?([^\]]*)\]?")
_LAST_RAN = re.compile(r"^se\.exec_start\s*:\s*([\d.]+)", re.MULTILINE)


def file(path: str) -> str:
    """A file; empty where it can't be read."""
    try:
        with open(path, "rb", buffering=0) as opened:  # noqa: PTH123 - of thousands, a `Path` took half the time
            return opened.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def read(pid: int, name: str) -> str:
    """A file of a process; empty where it can't be read."""
    return file(f"/proc/{pid}/{name}")


def stat(pid: int) -> list[str]:
    """The fields of `stat` from the third on: state, parent, …; empty if it is gone."""
    return read(pid, "stat").rpartition(")")[2].split()


def pids() -> list[int]:
    """All processes."""
    return sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def threads(pid: int) -> list[int]:
    """The threads of a process."""
    try:
        return sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def uid(pid: int) -> int | None:
    """Who it belongs to."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def title(pid: int) -> str:
    """Its command line, or its name where it has none."""
    line = " ".join(read(pid, "cmdline").replace("\0", " ").split())
    return whole_words(line, 400) or read(pid, "comm").strip()


def environment(pid: int) -> dict[str, str]:
    """The named variables, and no other."""
    found = {}
    for item in read(pid, "environ").split("\0"):
        name, _, value = item.partition("=")
        if name in ENVIRONMENT:
            found[name] = value
    return found


def age_s(pid: int) -> float | None:
    """Seconds since it was started."""
    fields = stat(pid)
    with contextlib.suppress(OSError, ValueError, IndexError):
        up = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        return max(0.0, up - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    return None


def runnable_ns(pid: int, tid: int) -> int | None:
    """Nanoseconds in which a thread ran or waited for a processor: a busy machine does not hide that it wants one."""
    parts = read(pid, f"task/{tid}/schedstat").split()
    return int(parts[0]) + int(parts[1]) if len(parts) == 3 else None


class Clocks:
    """The scheduler's clocks: one a processor, seconds or hours apart.

    Each leaves out what its processor spent on interrupts or was not given. So a thread that last ran on one is held
    against that one's, which is read by running there for a moment.
    """

    def __init__(self) -> None:
        self._behind_ms: dict[int, float | None] = {}

    def asleep_s(self, pid: int, tid: int) -> float | None:
        """Seconds since a thread last ran; None where its processor may not be run on, or nothing is told."""
        fields = read(pid, f"task/{tid}/stat").rpartition(")")[2].split()
        ran = _last_ran_ms(pid, tid)
        behind = self._behind(int(fields[36])) if len(fields) > 36 else None
        if ran is None or behind is None:
            return None
        return max(0.0, (time.monotonic() * 1000 - behind - ran) / 1000)

    def _behind(self, processor: int) -> float | None:
        if processor not in self._behind_ms:
            self._behind_ms[processor] = None
            allowed = os.sched_getaffinity(0)
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, {processor})
                try:
                    ran = _last_ran_ms(os.getpid(), threading.get_native_id())
                    self._behind_ms[processor] = time.monotonic() * 1000 - ran if ran is not None else None
                finally:
                    os.sched_setaffinity(0, allowed)
        return self._behind_ms[processor]


def _last_ran_ms(pid: int, tid: int) -> float | None:
    """When a thread last ran, in milliseconds of its processor's clock."""
    match = _LAST_RAN.search(read(pid, f"task/{tid}/sched"))
    return float(match[1]) if match else None


def moved(pid: int) -> int | None:
    """Bytes that it read and wrote so far; None without the right to see."""
    counts = dict(line.split(": ") for line in read(pid, "io").splitlines() if ": " in line)
    return int(counts["rchar"]) + int(counts["wchar"]) if "rchar" in counts else None


def descriptors(pid: int) -> tuple[Descriptor, ...] | None:
    """Its open files; None without the right to see them."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - as fast as it gets, as above
    except OSError:
        return None
    found = []
    for name in names:
        with contextlib.suppress(OSError):
            found.append(_descriptor(pid, int(name), os.readlink(f"/proc/{pid}/fd/{name}")))  # noqa: PTH115
    return tuple(sorted(found, key=lambda item: item.fd))


def _descriptor(pid: int, fd: int, link: str) -> Descriptor:
    match = _LINK.match(link)
    if match and match[1] == "socket":
        return Descriptor(fd, "socket", int(match[2]))
    if match and match[1] == "anon_inode":
        return Descriptor(fd, "epoll" if "eventpoll" in link else "other", path=match[2])
    if match:
        return Descriptor(fd, "pipe", int(match[2]), _mode(pid, fd))
    if link.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return Descriptor(fd, "tty", mode=_mode(pid, fd), path=link)
    if link == "/dev/null":
        return Descriptor(fd, "null")
    try:
        inode = os.stat(f"/proc/{pid}/fd/{fd}").st_ino  # noqa: PTH116
    except OSError:
        inode = 0
    return Descriptor(fd, "file", inode, _mode(pid, fd), link)


def _mode(pid: int, fd: int) -> str:
    for line in read(pid, f"fdinfo/{fd}").splitlines():
        if line.startswith("flags:"):
            return ("r", "w", "rw", "rw")[int(line.split()[1], 8) & 3]
    return "rw"


def watched(pid: int, epoll: int) -> tuple[int, ...]:
    """The descriptors that an epoll descriptor watches."""
    lines = read(pid, f"fdinfo/{epoll}").splitlines()
    return tuple(int(line.split()[1]) for line in lines if line.startswith("tfd:"))


@dataclass(frozen=True)
class SystemCall:
    """What a thread is in.

    Attributes:
        fds: Descriptors that it waits for.
        futex: The address that it waits at.
        limited: Whether it ends by itself; None if unknown.
    """

    name: str = ""
    fds: tuple[int, ...] = ()
    futex: str = ""
    limited: bool | None = None


def system_call(pid: int, tid: int) -> SystemCall:
    """The system call of a thread; without a name where it may not be seen."""
    parts = read(pid, f"task/{tid}/syscall").split()
    if not parts or not parts[0].lstrip("-").isdigit():
        return SystemCall("running" if parts[:1] == ["running"] else "")
    name = CALLS.get(int(parts[0]), f"call {parts[0]}")
    given = [int(part, 16) for part in parts[1:7]]
    if name == "futex":
        return SystemCall(name, (), f"{given[0]:#x}", given[3] != 0)
    if name in _ONE_FD:
        locks = name == "fcntl" and given[1] in _F_SETLKW
        return SystemCall("fcntl lock" if locks else name, (given[0] & 0xFFFFFFFF,))
    if name.startswith("epoll"):
        return SystemCall(name, watched(pid, given[0]))
    return _many(pid, name, given)


def _many(pid: int, name: str, given: list[int]) -> SystemCall:
    """A call that waits for one of many descriptors: which ones stands in the process's memory."""
    if name == "ppoll":
        return SystemCall(name, _polled(pid, given[0], given[1]), limited=given[2] != 0)
    if name == "poll":
        # Its time limit is an int of 32 bits; -1 is none.
        return SystemCall(name, _polled(pid, given[0], given[1]), limited=not given[2] & 0x80000000)
    if name in {"select", "pselect6"}:
        return SystemCall(name, _selected(pid, given[0], given[1:3]), limited=given[4] != 0)
    return SystemCall(name)


def _memory(pid: int, address: int, size: int) -> bytes:
    try:
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as file:
            file.seek(address)
            return file.read(size)
    except (OSError, ValueError, OverflowError):
        return b""


def _polled(pid: int, address: int, count: int) -> tuple[int, ...]:
    if not 0 < count <= _MOST_POLLED:
        return ()
    data = _memory(pid, address, 8 * count)
    return tuple(fd for fd, _, _ in struct.iter_unpack("ihh", data[: len(data) // 8 * 8]) if fd >= 0)


def _selected(pid: int, count: int, sets: list[int]) -> tuple[int, ...]:
    found: set[int] = set()
    for address in sets:
        data = _memory(pid, address, (min(count, 1024) + 7) // 8) if address else b""
        found |= {8 * place + bit for place, byte in enumerate(data) for bit in range(8) if byte >> bit & 1}
    return tuple(sorted(fd for fd in found if fd < count))


def shared(pid: int) -> tuple[tuple[str, ...], list[tuple[int, int, int]]]:
    """Names of memory it shares with others, and (start, end, inode) of the semaphores among it."""
    names, semaphores = set(), []
    for line in read(pid, "maps").splitlines():
        if _SHARED not in line and "/dev/zero" not in line:
            continue
        parts = line.split(maxsplit=5)
        path = parts[5].removesuffix(" (deleted)")
        start, _, end = parts[0].partition("-")
        names.add(f"{path}#{parts[4]}")
        if "/sem." in path:
            semaphores.append((int(start, 16), int(end, 16), int(parts[4])))
    return tuple(sorted(names))[:64], semaphores
