"""Start processes, receive their messages, and end their descendants.

`start` forks a process that sends messages and ends with its parent. `run_isolated` runs a function in such a process
with a time limit, returns its result, and ends the processes that the function started. `start_python` runs a program.
Descendants are found in /proc, so on Linux.
"""

import contextlib
import ctypes
import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, TypeVar

from repro import render

_Result = TypeVar("_Result")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def kill_descendants(spared: Collection[int]) -> None:
    """Kill the descendants of this process except those in `spared` and their descendants; wait until they are gone.

    In a process that `start` forked this includes orphans, because they become its children.
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


def start_python(arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a Python program that finds our packages; its input is empty.

    From Python 3.11 on it finds no modules of the working folder.

    Args:
        arguments: Arguments of the interpreter.
        options: Options of `subprocess.Popen`.
    """
    environment = options.pop("env", os.environ)
    path = [str(Path(__file__).resolve().parents[1]), environment.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else []), *arguments],
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        stdin=subprocess.DEVNULL,
        **options,
    )


@contextlib.contextmanager
def start(
    work: Callable[[Connection], object], at_parent_exit: signal.Signals
) -> Iterator[tuple[int, Connection]]:
    """Fork a process, in a new session, that calls a function; yield its id and the connection for its messages.

    The process becomes the parent of its orphaned descendants, also of those in another process group or session.

    Args:
        work: Function whose argument is the connection by which it sends messages.
        at_parent_exit: Signal that the process gets when this one ends, even if this one is killed.
    """
    reader, writer = Pipe(duplex=False)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        # The child must not run the parent's exit handlers, or flush the parent's buffers.
        try:
            os.setsid()  # Ctrl-C reaches only the parent
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            with contextlib.suppress(OSError, AttributeError):  # as outside of Linux
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(at_parent_exit))
                ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
            if os.getppid() != parent:  # the parent ended before the call of prctl
                os._exit(1)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            faulthandler.enable(2)  # prints the Python stack of a crash in native code
            work(writer)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - nothing may leave this block
            render.print_to_stderr(traceback.format_exc())
            os._exit(1)
    writer.close()
    with reader:
        yield child, reader


def end_process(process: int) -> str:
    """Kill a process that `start` forked, and its group; return its exit as text, such as "signal SIGKILL"."""
    for kill in (os.kill, os.killpg):  # it has no group yet if it has just begun
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    names = {item.value: item.name for item in signal.Signals}
    return f"exit code {code}" if code >= 0 else f"signal {names.get(-code, -code)}"


def run_isolated(work: Callable[[], _Result], limit_s: float | None = None) -> _Result:
    """Run a function in a forked process with its own session and temporary folder; return its result.

    At the end, the processes that it started are killed, and the folder is removed. SIGTERM has the same effect, and
    then ends this process with exit code 143.

    Args:
        work: Function that returns picklable data, not None.
        limit_s: Seconds after which the process is ended; None for no limit.

    Raises:
        TimeoutError: The function did not return in time.
        ChildProcessError: The process ended before the function returned.
    """
    folder, earlier = tempfile.mkdtemp(prefix="repro-"), descendants(os.getpid())

    def send_result(writer: Connection) -> None:
        os.environ["TMPDIR"], tempfile.tempdir = folder, None
        if limit_s:
            faulthandler.dump_traceback_later(limit_s * 0.9, exit=False)  # its stack, on standard error
        writer.send(work())

    with start(send_result, signal.SIGKILL) as (process, reader):

        def end_all() -> str:
            ending = end_process(process)
            kill_descendants(earlier)
            shutil.rmtree(folder, ignore_errors=True)
            return ending

        def end_with_parent(*_: object) -> None:
            end_all()
            os._exit(143)

        handler_before = signal.signal(signal.SIGTERM, end_with_parent)
        try:
            answer: _Result | None = receive(reader, limit_s)
        finally:
            ending = end_all()
            signal.signal(signal.SIGTERM, handler_before)
    if answer is None:
        raise ChildProcessError(f"its process ended with {ending}, without an answer")
    return answer
