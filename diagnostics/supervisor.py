"""Run the command line in a child process, so that Ctrl-C ends it whatever it does.

A long call of C does not end on Ctrl-C, and a process that waits for a dead file system may not even end on SIGKILL.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable

_GRACE_S = 9.0
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1


def run_supervised(work: Callable[[], int]) -> int:
    """Fork, run `work` in the child, which then exits, and return its exit code in the parent.

    The parent passes signals on; the terminal sends its own to both. 9 s after the first one, the parent kills the
    child and returns 128 and the signal's number. If a signal ends the child, it ends the parent, too. If the parent
    is killed, the kernel kills the child. Linux only.
    """
    parent, (reader, writer) = os.getpid(), os.pipe()
    # A signal that is ignored, as under nohup, stays ignored.
    passed_on = {number for number in _PASSED_ON if signal.getsignal(number) != signal.SIG_IGN}
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {*passed_on, signal.SIGCHLD})
    if child := os.fork():
        os.close(writer)
        return _wait(child, reader, passed_on)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
    os.close(reader)
    code = work()
    with contextlib.suppress(OSError, ValueError):
        print(end="", flush=True)
    # The parent waits for this, because a thread in the kernel may keep the process from ending; nor may it keep the
    # output open.
    os.write(writer, bytes([code]))
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    sys.exit(code)


def _wait(child: int, reader: int, passed_on: set[signal.Signals]) -> int:
    """Pass on signals until the child has sent its exit code or ended; return the exit code.

    A child that sent it and does not end within 9 s, counted from the first signal if there was one, is left behind.
    """
    end, first = float("inf"), None
    while not select.select([reader], [], [], 0)[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            return 128 + int(first or 0)
        received = signal.sigtimedwait({*passed_on, signal.SIGCHLD}, 0.5)
        if received and received.si_signo in passed_on:
            if received.si_code <= 0:  # of a process; the terminal has sent it to the child, too
                os.kill(child, received.si_signo)
            if first is None:
                first, end = received.si_signo, time.monotonic() + _GRACE_S
    sent, end = os.read(reader, 1), min(end, time.monotonic() + _GRACE_S)
    while (status := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        signal.sigtimedwait({signal.SIGCHLD}, 0.1)
    if sent:
        return sent[0]
    if os.WIFSIGNALED(status[1]):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
        os.kill(os.getpid(), os.WTERMSIG(status[1]))
    return os.waitstatus_to_exitcode(status[1])
