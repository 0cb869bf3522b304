"""Start processes that end with their parent, receive their messages, and end their descendants.

`start_module` runs a module as a program that gets a plan and sends messages. `run_isolated` runs a function in a
forked process with a time limit, returns its result, and ends the processes that the function started. Descendants are
found in /proc, so on Linux.
"""

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
from collections.abc import Callable, Collection, Iterator, Mapping
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Python's option to import nothing from the working folder.
SAFE_PATH = ["-P"] if sys.version_info >= (3, 11) else []


def signal_at_parent_exit(parent: int, number: signal.Signals) -> None:
    """Make the kernel send this process a signal when its parent ends, even if the parent is killed.

    Outside of Linux this has no effect. If the parent has ended already, this process exits with code 1.
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
    """Make this process the parent of its orphaned descendants, also of those in another process group or session.

    Outside of Linux this has no effect.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants(spared: Collection[int] = ()) -> None:
    """Kill the descendants of this process except those in `spared` and their descendants; wait until they are gone.

    After `adopt_orphans` this includes orphans, because they become children of this process.
    """
    while remaining := descendants(os.getpid(), spared):
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in remaining:
            # The parent of a grandchild waits for it, or we adopt it.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def descendants(ancestor: int, without: Collection[int] = ()) -> list[int]:
    """Return the ids of the descendants of a process, from /proc, except those in `without` and their descendants."""
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


def describe_exit(code: int) -> str:
    """Return an exit code as text, such as "exit code 1" or, for -9, "signal SIGKILL"."""
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


def with_packages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python finds our packages without the working folder."""
    path = [str(Path(__file__).resolve().parents[1]), environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, path))}


@contextlib.contextmanager
def start_module(module: str, plan: Any) -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
    """Start a module whose main function calls `read_plan`; yield its process and the connection for its messages.

    The module runs in a new session, so that Ctrl-C reaches only this process. Its output goes to standard error.

    Args:
        module: Module that `python -m` runs.
        plan: Input of the module, as JSON data.
    """
    reader, writer = Pipe(duplex=False)
    process = subprocess.Popen(
        [sys.executable, *SAFE_PATH, "-m", module, str(writer.fileno()), str(os.getpid()), json.dumps(plan)],
        env=with_packages(os.environ),
        pass_fds=[writer.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
    )
    writer.close()
    with process, reader:
        yield process, reader


def read_plan() -> tuple[Connection, Any]:
    """In a module that `start_module` started, return the connection for messages, and the plan.

    The module's process gets SIGTERM when its parent ends.
    """
    descriptor, parent, plan = sys.argv[1:]
    signal_at_parent_exit(int(parent), signal.SIGTERM)
    os.set_inheritable(int(descriptor), False)  # child processes would keep the pipe open
    return Connection(int(descriptor), readable=False), json.loads(plan)


def run_isolated(work: Callable[[], _Result], limit_s: float | None = None) -> _Result:
    """Run a function in a forked process with its own process group and temporary folder; return its result.

    At the end, the processes that it started are killed, and the folder is removed. SIGTERM has the same effect, and
    then ends this process with exit code 143.

    Args:
        work: Function that returns picklable data, not None.
        limit_s: Seconds after which the process is ended; None for no limit.

    Raises:
        TimeoutError: The function did not return in time.
        ChildProcessError: The process ended before the function returned.
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
        raise ChildProcessError(f"its process ended with {describe_exit(code)}, without an answer")
    return answer


def _run_and_answer(
    work: Callable[[], Any], parent: int, writer: Connection, folder: str, limit_s: float | None
) -> None:
    """In the child of `run_isolated`, set up group, signals and folder, run the function, and send its result."""
    try:
        os.setpgid(0, 0)
        signal_at_parent_exit(parent, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ["TMPDIR"], tempfile.tempdir = folder, None
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if limit_s:
            faulthandler.dump_traceback_later(limit_s * 0.9, exit=False)  # its stack, on standard error
        writer.send(work())
    finally:
        # The child must not run the parent's exit handlers, or flush the parent's buffers.
        os._exit(0)
