"""Start processes that end with their parent, read their reports, and end all their descendants."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with(parent: int, number: signal.Signals) -> None:
    """Make the kernel signal this process when its parent ends, even if the parent is killed.

    Only Linux offers this; elsewhere nothing happens. If the parent has ended already, this process ends.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:  # the parent ended before the call of prctl
        os._exit(1)


def kill_group(leader: int) -> None:
    """Kill the remaining processes of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of all orphaned descendants, also of those in another group or session.

    Only Linux offers this; elsewhere nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants(spared: Collection[int] = ()) -> None:
    """Kill all descendants of this process except those in `spared` and their children; wait until they are gone.

    After `adopt_orphans` no descendant can escape, because an orphaned descendant becomes a child of this process.
    """
    while remaining := descendants(os.getpid(), spared):
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in remaining:
            with contextlib.suppress(ChildProcessError):  # a grandchild: it becomes our child, or has another parent
                os.waitpid(pid, 0)


def descendants(ancestor: int, without: Collection[int] = ()) -> list[int]:
    """Return the ids of all descendants of a process, from /proc, except those in `without` and their descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The program's name is in brackets and may contain brackets; state and parent follow the name.
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            pid = int(stat.parent.name)
            if pid not in without:
                children.setdefault(parent, []).append(pid)
    result = list(children.get(ancestor, []))
    for pid in result:  # the list grows during the loop
        result += children.get(pid, [])
    return result


def how_it_ended(code: int) -> str:
    """Return an exit code as text; a negative code names a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def receive(reader: Connection, limit_s: float | None = None) -> Any:
    """Return the next message; None if the sender ended without one.

    Raises:
        TimeoutError: There was no message in time.
    """
    if not reader.poll(limit_s):
        raise TimeoutError(f"no answer within {limit_s:g} s")
    with contextlib.suppress(OSError, EOFError):
        return reader.recv()
    return None


@contextlib.contextmanager
def program(module: str, plan: Any) -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
    """Start a module of ours that calls `read_plan`; yield its process and the connection of its messages.

    It runs in a new session, so that Ctrl-C reaches only this process; its output goes to standard error.

    Args:
        module: Module that `python -m` runs.
        plan: Input of the module, as JSON data.
    """
    reader, writer = Pipe(duplex=False)
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(writer.fileno()), str(os.getpid()), json.dumps(plan)],
        pass_fds=[writer.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
    )
    writer.close()
    with process, reader:
        yield process, reader


def read_plan() -> tuple[Connection, Any]:
    """Return the connection for messages and the plan, in a module that `program` started and that ends with it."""
    descriptor, parent, plan = sys.argv[1:]
    die_with(int(parent), signal.SIGTERM)
    os.set_inheritable(int(descriptor), False)  # child processes would keep the pipe open
    return Connection(int(descriptor), readable=False), json.loads(plan)


def isolated(work: Callable[[], _Result], limit_s: float | None = None) -> _Result:
    """Run a function in a separate process, process group and temporary folder, and clean up all three.

    Args:
        work: Function that returns data other than None that can be pickled.
        limit_s: Seconds after which the process is ended; None for no limit.

    Raises:
        TimeoutError: There was no answer in time.
        ChildProcessError: The process ended without an answer.
    """
    reader, writer = Pipe(duplex=False)
    parent, folder, others = os.getpid(), tempfile.mkdtemp(prefix="repro-"), descendants(os.getpid())
    child = os.fork()
    if child == 0:
        _run_and_answer(work, parent, writer, folder, limit_s)
    writer.close()
    with contextlib.suppress(OSError):
        os.setpgid(child, child)  # parent and child both set the group, whichever is first

    def end_child() -> int:
        kill_group(child)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        kill_descendants(others)
        shutil.rmtree(folder, ignore_errors=True)
        return code

    def end_with_parent(*_: object) -> None:
        end_child()
        os._exit(143)

    handler_before = signal.signal(signal.SIGTERM, end_with_parent)
    try:
        answer: _Result | None = receive(reader, limit_s)
    finally:
        code = end_child()
        signal.signal(signal.SIGTERM, handler_before)
        reader.close()
    if answer is None:
        raise ChildProcessError(f"its process ended with {how_it_ended(code)}, without an answer")
    return answer


def _run_and_answer(
    work: Callable[[], Any], parent: int, writer: Connection, folder: str, limit_s: float | None
) -> None:
    try:
        os.setpgid(0, 0)
        die_with(parent, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ["TMPDIR"], tempfile.tempdir = folder, None
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if limit_s:
            faulthandler.dump_traceback_later(limit_s * 0.9, exit=False)  # where it hangs, on standard error
        writer.send(work())
    finally:
        # The child must not run the parent's exit handlers, or flush the parent's buffers.
        os._exit(0)
