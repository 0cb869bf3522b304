"""Read Python stacks by running py-spy, in limited time and without stopping the process, and explain failures.

`dump_stacks` returns the threads of each process, or a reason. The source lines of innermost frames are read too
(`SourceReader`), because C functions that block have no frame. `merge_samples` joins the samples of a thread.
`unreadable_processes` returns which processes may not be inspected, why, and what permits it.
"""

import os
import re
import shutil
import struct
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from diagnostics import process, safe_io
from diagnostics.collect.blocking_reads import UNANSWERED, call_in_child, read_process_file
from diagnostics.hang.collect import proc
from diagnostics.hang.snapshot import MAX_TEXT, StackFrame, Thread
from diagnostics.output.redact import mask, truncate

TIMEOUT_S = 5.0
MAX_TRIES = 3
MAX_PARALLEL = 8
MAX_SOURCE_FILE, MAX_SOURCE_TOTAL = 4 << 20, 256 << 20
"""Limits of characters of one source file, and of all together."""
MAX_OUTPUT = 64 << 20
# A hostile process can make py-spy take gigabytes; of one that imported torch it takes less than 64 MiB.
ADDRESS_SPACE = 512 << 20
# Device, inode and number of a source line, its call, and the number of characters that were read for it.
_LineRead = tuple[tuple[int, int, int] | None, str | None, int]
MAX_LINE = 1000
# Offsets of a thread's number in the C library's descriptor: glibc on x86-64, glibc on ARM, musl.
_TID_OFFSETS = (0x2D0, 0xD0, 0x30)
# C functions that block. They have no Python frame, so the source line is searched for their names.
_BLOCKING_CALL = re.compile(
    r"(?:\bos\.|\.|\b)(acquire|input|getpass|recv|recv_into|recvfrom|recv_bytes|read|readline|readinto|accept|connect|"
    r"send|sendall|send_bytes|write|flush|join|get|put|wait|result|sleep|flock|lockf|waitpid|poll|select|item|tolist|"
    r"cpu|synchronize|barrier|communicate|open) ?\("
)
_CONTAINER = (
    "in a container, give it that capability: docker run --cap-add SYS_PTRACE; Kubernetes: "
    "securityContext.capabilities.add: [SYS_PTRACE], or kubectl debug --profile=general --target=CONTAINER"
)
_STANDARD_LIBRARY = re.compile(r"/lib(?:64)?/python[\d.]+/(?!site-packages)")
# Frames and lines of a function that are searched for the lock that it took.
_QUALIFIED_NAME = re.compile(r"[\w.<>]*")
_MAX_FRAMES, _MAX_LINES = 100, 2000
_ACQUIRES, _RELEASES = re.compile(r"([\w.]+)\.acquire\("), re.compile(r"([\w.]+)\.release\(")
_WITH = re.compile(r"^(?:async )?with ([\w.]+)")
_WITH_LOCK = re.compile(r"(?:async )?with\b.*(?:lock|mutex|cond|sem)", re.IGNORECASE)


def blocking_call_in(line: str) -> str:
    """Return the call in a source line that may block; empty if there is none.

    >>> blocking_call_in("with self._lock:"), blocking_call_in("x = queue.get(timeout=3)"), blocking_call_in("x = 1")
    ('acquire', 'get', '')
    """
    line = line[:MAX_LINE].strip()
    if _WITH_LOCK.match(line):
        return "acquire"
    calls: list[str] = _BLOCKING_CALL.findall(line)
    return calls[-1] if calls else ""


def locks_held(lines: Sequence[str], number: int) -> set[str]:
    """Return the locks that the function around a source line took before it, and those that the line takes.

    >>> locks_held(["with a.lock:", "    b.acquire()", "    b.release()", "    with c: pass"], 4) == {"a.lock", "c"}
    True
    """
    held, released, depth = set[str](), set[str](), MAX_LINE
    for line in reversed(lines[:number]):
        code = line.lstrip()
        released |= set(_RELEASES.findall(code))
        held |= set(_ACQUIRES.findall(code)) - released
        if code and len(line) - len(code) < depth:  # a statement around the line
            depth = len(line) - len(code)
            held |= set(_WITH.findall(code))
            if code.startswith(("def ", "async def ")):
                break
    return held


def find_py_spy() -> str | None:
    """Return the path of py-spy: next to our interpreter, or on the PATH; None if it is not installed."""
    beside_python = Path(sys.executable).with_name("py-spy")
    return str(beside_python) if beside_python.is_file() else shutil.which("py-spy")


def dump_stacks(program: str, pids: Sequence[int]) -> dict[int, tuple[Thread, ...] | str]:
    """Return the threads of each process with their stacks, or the reason why there are none."""
    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        return dict(zip(pids, pool.map(lambda pid: _dump(program, pid), pids), strict=True))


def _dump(program: str, pid: int) -> tuple[Thread, ...] | str:
    """Run py-spy on a process, three times at most; return its threads, or the reason of the last failure."""
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    env = {name: value for name, value in os.environ.items() if name != "RUST_BACKTRACE"}
    problem = ""
    # The stack of a running process may be inconsistent: then py-spy fails, and is run again.
    for _ in range(MAX_TRIES):
        try:
            done = process.run(
                command, timeout_s=TIMEOUT_S, env=env, max_output=MAX_OUTPUT, address_space=ADDRESS_SPACE
            )
        except OSError as error:
            return f"py-spy cannot be started: {error.strerror or error}"
        if done.timed_out:
            if done.seconds > TIMEOUT_S + process.GRACE_S:  # SIGTERM did not end it: it waits in the kernel
                UNANSWERED.add(pid)
            return f"py-spy did not answer within {TIMEOUT_S:g} s"
        if done.code == 0:
            try:
                return _with_kernel_tids(pid, parse_pyspy_json(safe_io.parse_json(done.output))[pid])
            except (ValueError, KeyError, TypeError):
                problem = "py-spy's output could not be parsed"
                continue
        line = next(filter(None, done.errors.split("\n")), "no message")
        problem = f"py-spy: {truncate(line.removeprefix('Error: '), 160)}"
    return problem


def parse_pyspy_json(document: Any) -> dict[int, tuple[Thread, ...]]:
    """Return the threads in the output of `py-spy dump --json`, by process.

    Raises:
        KeyError, TypeError, ValueError: The document has another structure.
    """
    threads: dict[int, list[Thread]] = {}
    for item in document:
        tid = int(item.get("os_thread_id") or item.get("thread_id") or 0)
        name = truncate(str(item.get("thread_name") or ""), 80)
        frames = tuple(map(parse_frame, item["frames"]))
        active, gil = bool(item.get("active")), bool(item.get("owns_gil"))
        threads.setdefault(int(item["pid"]), []).append(Thread(tid, name, frames, active=active, gil=gil))
    return {pid: tuple(items) for pid, items in threads.items()}


def parse_frame(item: Any) -> StackFrame:
    """Convert a frame of py-spy, or of a flight recorder, to a StackFrame."""
    path = truncate(str(item.get("filename") or item.get("module") or ""), MAX_TEXT)
    return StackFrame(path, last_part(truncate(str(item["name"]), MAX_TEXT)), int(item.get("line") or 0))


def last_part(name: str) -> str:
    """Return the last part of a qualified name; of any other text, without its secrets.

    >>> last_part("Queue.get"), last_part("run.<locals>.<lambda>"), last_part("api_keys.openai: hunterfourz")
    ('get', '<lambda>', 'openai: <secret>')
    """
    name = name if _QUALIFIED_NAME.fullmatch(name) else mask(name)
    return name.rpartition(".")[2] or name


def _with_kernel_tids(pid: int, threads: tuple[Thread, ...]) -> tuple[Thread, ...]:
    """Return the threads with the ids that they have in /proc.

    In another pid namespace a process numbers its threads differently. Before Python 3.11 the interpreter stores no
    number: py-spy then prints the address of the C library's descriptor, which contains it.
    """
    tasks = {}
    for tid in proc.list_threads(pid):
        _, _, rest = read_process_file(pid, f"task/{tid}/status").partition("\nNSpid:")
        inner = rest.partition("\n")[0].split()
        tasks[int(inner[-1]) if inner else tid] = tid
    if all(thread.tid in tasks and thread.tid in tasks.values() for thread in threads):
        return threads
    return tuple(replace(thread, tid=_kernel_tid(pid, thread, tasks)) for thread in threads)


def _kernel_tid(pid: int, thread: Thread, tasks: dict[int, int]) -> int:
    """Return a thread's id in /proc; the printed one if it cannot be found."""
    if thread.name == "MainThread":
        return pid
    if thread.tid in tasks:
        return tasks[thread.tid]
    data = proc.read_memory(pid, thread.tid, max(_TID_OFFSETS) + 4)
    if len(data) < max(_TID_OFFSETS) + 4:
        return thread.tid
    numbers = {struct.unpack_from("I", data, offset)[0] for offset in _TID_OFFSETS}
    matches = {tasks[number] for number in numbers if number in tasks}
    return matches.pop() if len(matches) == 1 else thread.tid


def merge_samples(samples: Sequence[Thread]) -> Thread:
    """Return the last sample of a thread, `steady` if all samples had the same functions, `active` if most were active.

    Line numbers are not compared: they change in a loop that only waits again.
    """
    stacks = {tuple((frame.path, frame.function) for frame in sample.frames) for sample in samples}
    active = sum(bool(sample.active) for sample in samples) * 2 > len(samples)
    return replace(samples[-1], steady=len(stacks) == 1, active=active)


class SourceReader:
    """Reads the source lines of frames: regular files up to a size limit, no file system that blocks.

    It stores the call of each line by device, inode and number, because a file may have many paths. It stops after
    MAX_SOURCE_TOTAL characters, and after a file that blocks.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[int, int, int], str | None] = {}
        self._unread = MAX_SOURCE_TOTAL

    def with_call(self, pid: int, frames: Sequence[StackFrame]) -> tuple[StackFrame, ...]:
        """Return the frames with the blocking call of the innermost one; the source line itself is not stored."""
        if not frames or not frames[0].path.startswith("/") or not frames[0].line:
            return tuple(frames)
        # Through the process's own root, because it may be in another mount namespace.
        for path in (f"/proc/{pid}/root{frames[0].path}", frames[0].path):
            if self._unread > 0:
                blocked: _LineRead = None, None, self._unread
                key, call, size = call_in_child(partial(self._call_at, path, frames[0].line), blocked)
                self._unread -= size
                if key:
                    self._calls[key] = call
                if call is not None:
                    return (replace(frames[0], calls=call), *frames[1:])
        return tuple(frames)

    def relocks(self, pid: int, frames: Sequence[StackFrame]) -> int | None:
        """Return the position of the frame in which a thread took the lock that it waits for, by the source."""
        inner = frames[0] if frames else StackFrame("", "")
        if not inner.path.startswith("/") or _STANDARD_LIBRARY.search(inner.path):
            return None

        def read() -> list[int]:
            lines = safe_io.read_text(Path(f"/proc/{pid}/root{inner.path}"), MAX_SOURCE_FILE).split("\n")
            taken = locks_held([lines[inner.line - 1]], 1)
            places = [(f.line - (not n), n) for n, f in enumerate(frames) if f.path == inner.path]
            near = ((lines[max(0, line - _MAX_LINES) : line], n) for line, n in places[:_MAX_FRAMES])
            return [number for part, number in near if taken & locks_held(part, len(part))]

        return next(iter(call_in_child(read, list[int]())), None)

    def _call_at(self, path: str, number: int) -> _LineRead:
        """Read a line's call that may block: "" if it has none, None if there is no such line to read."""
        try:
            status = Path(path).stat()
            key = (status.st_dev, status.st_ino, number)
            if key in self._calls:
                return key, self._calls[key], 0
            text = safe_io.read_text(Path(path), MAX_SOURCE_FILE)
            lines = text.split("\n")
            return key, blocking_call_in(lines[number - 1]) if number <= len(lines) else None, len(text)
        except (OSError, ValueError):
            return None, None, 0


# Permissions.


def unreadable_processes(pids: Iterable[int]) -> dict[int, str]:
    """Return the processes whose memory may not be read, each with the reason and the way to permit it."""
    return {pid: reason for pid in pids if (reason := _refusal_reason(pid))}


def _refusal_reason(pid: int) -> str:
    """Return why a process's memory may not be read; empty if it may, or if the process has ended."""
    # Opening this file needs the same permission as py-spy, and does not stop the process.
    opened = call_in_child(lambda: os.open(f"/proc/{pid}/mem", os.O_RDONLY), -1, pid)
    if pid in UNANSWERED:
        return "it did not answer in time"
    return _explain_refusal(pid) if opened < 0 and not proc.has_ended(pid) else ""


def _explain_refusal(pid: int) -> str:
    """Return the reason of a refused access (owner, ptrace_scope or capability), and how to permit it."""
    owner = proc.owner_uid(pid)
    if owner != os.geteuid() and os.geteuid() != 0:
        return f"it belongs to uid {owner}; run hang as that user (sudo -u '#{owner}' ...) or as root"
    scope = safe_io.read_kernel_file("/proc/sys/kernel/yama/ptrace_scope").strip()
    if scope == "3" or (scope not in {"", "0"} and os.geteuid() != 0):
        # `--watch` is no way around: py-spy is not the parent of the command.
        change = "reboot with" if scope == "3" else "run hang as root, or: sudo sysctl"
        return f"kernel.yama.ptrace_scope is {scope}: {change} kernel.yama.ptrace_scope=0"
    return f"this process lacks CAP_SYS_PTRACE over it; {_CONTAINER}"
