"""Start child processes in their own session, wait for them with a time limit, and end their process groups.

`run` waits for a program and returns its output; `start` returns while it runs, and `end_group` ends it. Other
functions handle signals or forward them to a child process, record its process group in a file to kill it after an
interrupt, and read the end of a log.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from diagnostics import safe_io
from diagnostics.memory_limit import without_limit
from diagnostics.output.redact import mask, truncate

GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL for a process group."""
MAX_OUTPUT_BYTES = 32 << 20
FORWARDED = tuple(getattr(signal, f"SIG{name}") for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2"))


@dataclass(frozen=True)
class Completed:
    """Result of a program.

    Attributes:
        code: Exit code; negative for a signal, also that of SIGKILL if even this did not end the program.
        output: Standard output.
        errors: Standard error; empty if it went to a file.
    """

    code: int
    output: str
    errors: str
    seconds: float
    timed_out: bool


def start(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    address_space: int | None = None,
    **streams: Any,
) -> subprocess.Popen[bytes]:
    """Start a program in its own session and return the running process; end it with `end_group`.

    A signal to its process group does not reach this process.

    Args:
        command: Program and arguments; no shell interprets them.
        env: The program's whole environment; None to inherit ours.
        cwd: Working folder.
        address_space: Limit of the program's address space in bytes, set just after its start; None for ours. A lower
            hard limit that it has already stays, unless this process runs as root.
        streams: stdin, stdout, stderr as `subprocess.Popen` takes them; standard input is empty by default.
    """
    streams.setdefault("stdin", subprocess.DEVNULL)
    with without_limit():
        process = subprocess.Popen(list(command), env=env, cwd=cwd, start_new_session=True, **streams)
    if address_space is not None:
        # From here, because `preexec_fn` can deadlock in a process with threads. AttributeError: no Linux.
        with contextlib.suppress(ProcessLookupError, PermissionError, AttributeError):
            resource.prlimit(process.pid, resource.RLIMIT_AS, (address_space, address_space))
    return process


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    log: Path | None = None,
    ledger: Path | None = None,
    max_output: int = MAX_OUTPUT_BYTES,
    address_space: int | None = None,
    running: set[subprocess.Popen[Any]] | None = None,
) -> Completed:
    """Run a program to its end or its time limit, and end what remains of its process group.

    Args:
        command: Program and arguments.
        timeout_s: Seconds after which the program's process group is ended.
        env: The program's whole environment; None to inherit ours.
        cwd: Working folder.
        stdin: Text for the program's standard input; None for an empty one.
        log: File for standard error, replaced; None to return it.
        ledger: File that records the process group while it runs; `end_recorded_group` reads it after an interrupt.
        max_output: Maximum number of bytes to return of each stream; the rest is read and dropped.
        address_space: Limit of the program's address space in bytes; see `start`.
        running: Set that contains the process while it runs, so that another thread can end it.

    Raises:
        OSError: The program cannot be started, or the log cannot be written.
    """
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        if log:
            log.unlink(missing_ok=True)  # a link in a foreign store
        errors = stack.enter_context(log.open("xb")) if log else subprocess.PIPE
        process = start(
            command,
            env=env,
            cwd=cwd,
            address_space=address_space,
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        )
        if running is not None:
            running.add(process)
            stack.callback(running.discard, process)
        stack.callback(end_group, process)
        record_group(ledger, process.pid)
        readers = [_Reader(stream, max_output) for stream in (process.stdout, process.stderr) if stream]
        _write_stdin(process, stdin)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
        timed_out = process.poll() is None
    code = process.returncode
    for reader in readers:
        reader.join(0 if code is None else GRACE_S)
    if ledger is not None:
        ledger.unlink(missing_ok=True)
    texts = [*(reader.text for reader in readers), "", ""]
    return Completed(
        -signal.SIGKILL if code is None else code, texts[0], texts[1], time.monotonic() - began, timed_out
    )


class _Reader(threading.Thread):
    """Read a pipe to its end and store at most `limit` bytes."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        super().__init__(daemon=True)
        self._stream, self._limit, self._data = stream, limit, bytearray()
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._stream:
            while chunk := self._stream.read1(1 << 16):  # type: ignore[attr-defined]  # buffered, as Popen makes them
                self._data += chunk[: max(0, self._limit - len(self._data))]

    @property
    def text(self) -> str:
        """The output read so far, as text."""
        return bytes(self._data).decode("utf-8", "replace")


def _write_stdin(process: subprocess.Popen[bytes], text: str | None) -> None:
    """Write standard input in a thread, because a program may never read it."""
    if text is None or process.stdin is None:
        return
    stream = process.stdin

    def write() -> None:
        with contextlib.suppress(OSError, ValueError), stream:
            stream.write(text.encode())

    threading.Thread(target=write, daemon=True).start()


def end_group(process: subprocess.Popen[Any]) -> None:
    """End the process group of a program started by `start`: SIGTERM, then SIGKILL when it ended or after GRACE_S.

    A program that waits for a dead file system in the kernel may survive: its `returncode` is None GRACE_S later.
    """
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    _signal_group(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def signal_name(code: int) -> str:
    """Return the name of the signal that ended a process, from its negative exit code."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def forward_signals(process: subprocess.Popen[Any]) -> AbstractContextManager[None]:
    """Forward the signals in FORWARDED, which would end this process, to a program in its own session."""
    return handle_signals(FORWARDED, lambda number: _signal_group(process.pid, number))


@contextlib.contextmanager
def handle_signals(numbers: Iterable[int], handler: Callable[[int], object]) -> Iterator[None]:
    """Until the end of the block, call a function with the number of each of these signals that arrives.

    A signal that is ignored, as under nohup, stays ignored.
    """
    handled = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda received, _: handler(received)) for number in handled}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def record_group(ledger: Path | None, pid: int) -> None:
    """Write a running process group and its start time to the ledger, if one is given."""
    if ledger is not None:
        safe_io.write_atomically(ledger, json.dumps({"group": pid, "started": _start_time(pid)}))


def end_recorded_group(ledger: Path) -> int | None:
    """Kill the process group that an interrupted run recorded; return its id, or None if none is killed.

    It is killed only if /proc shows the recorded start time, because the id can belong to a new process, and only if
    its leader is this user's and works in the ledger's folder, because others can have written the ledger.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
        recorded = safe_io.parse_json(safe_io.read_bytes(ledger, safe_io.CONFIG_LIMIT, inside=ledger.parent))
        ledger.unlink()
        group, leader = int(recorded["group"]), Path(f"/proc/{recorded['group']}")
        same = (_start_time(group), leader.stat().st_uid) == (recorded["started"], os.geteuid())
        inside = (leader / "cwd").readlink().is_relative_to(ledger.parent.resolve())
        if same and inside and group > 1 and group != os.getpgrp():
            _signal_group(group, signal.SIGKILL)
            return group
    return None


def _start_time(pid: int) -> str:
    """Return the time at which a process started, in the kernel's unit; empty if it cannot be read."""
    return "".join(safe_io.read_kernel_file(f"/proc/{pid}/stat").rpartition(")")[2].split()[19:20])


def log_tail(path: Path, lines: int = 40, width: int = 400) -> str:
    """Return the last lines of a log, each truncated to `width` characters; empty if it cannot be read."""
    return "\n".join(truncate(line, width) for line in read_end(path, 64 << 10).splitlines()[-lines:])


def read_end(path: Path, size: int) -> str:
    """Return the last bytes of a log with secrets masked, from the beginning of a line; empty if it cannot be read."""
    try:
        data = safe_io.read_tail(path, size)
    except OSError:
        return ""
    return mask((data if len(data) < size else data.partition(b"\n")[2]).decode("utf-8", "replace"))
