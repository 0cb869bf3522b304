"""Limit the processor time of work on untrusted input, so that a file does not keep a command busy for minutes.

Patterns and parsers should need time linear in their input. This limit is for inputs that nobody thought of: the work
ends with a `CpuLimitError`, which is reported as "not checked" (exit code 3), and the remaining inputs are checked.
`cpu_limit` limits the body of a `with` statement. `ends_in_time` first tries C code, which cannot be interrupted, in a
forked process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

MB = 1_000_000
"""Bytes, for limits that grow with the size of the input."""
# At this interval after the limit the error is raised again, so that work that goes on after it ends soon, too.
_REPEAT_S = 0.2


class CpuLimitError(BaseException):
    """Raised by work that needed more processor time than its limit; the message names the work and the limit.

    It is no Exception, so that a handler in the middle of the work does not catch it.
    """


@contextlib.contextmanager
def cpu_limit(work: str, seconds: float) -> Iterator[None]:
    """Limit the processor time of the body of a `with` statement, in the main thread.

    Python code and regular expressions are interrupted; a call of other C code is interrupted when it returns. An
    enclosing limit that ends earlier stays in force. In other threads there is no limit. After Ctrl-C the body ends
    with its KeyboardInterrupt, also if the limit is exceeded at the same time.

    Args:
        work: The work as the subject of a sentence, such as "reading run.sh".
        seconds: The limit.

    Raises:
        CpuLimitError: The body exceeded the limit.
    """
    outer_s, _ = signal.getitimer(signal.ITIMER_PROF)
    if threading.current_thread() is not threading.main_thread() or 0 < outer_s <= seconds:
        yield
        return

    is_working = True

    def stop(*_: object) -> None:
        error = sys.exc_info()[1]
        while error and not isinstance(error, KeyboardInterrupt):
            error = error.__context__
        if is_working and not error:
            raise CpuLimitError(f"{work} needed more than {seconds:.0f} s of processor time")

    report_unraisable = sys.unraisablehook

    def unraisable(error: sys.UnraisableHookArgs) -> None:
        # Python drops errors of callbacks, such as those of the garbage collector; the next signal raises it again.
        if not isinstance(error.exc_value, CpuLimitError):
            report_unraisable(error)

    sys.unraisablehook = unraisable
    previous, began = signal.signal(signal.SIGPROF, stop), time.process_time()
    signal.setitimer(signal.ITIMER_PROF, seconds, _REPEAT_S)
    try:
        yield
    finally:
        is_working = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
        sys.unraisablehook = report_unraisable
        if outer_s:
            left = max(outer_s - (time.process_time() - began), 0.01)
            signal.setitimer(signal.ITIMER_PROF, left, _REPEAT_S)


def ends_in_time(work: Callable[[], object], seconds: float) -> bool:
    """Run C code in a forked process, and return whether it ends within this processor time.

    The caller then runs it again for its result. Ctrl-C and errors in this process end the forked one at once. It also
    ends after 20 * `seconds` + 60 s of real time, as if it had reached the limit.
    """
    earlier, child = signal.pthread_sigmask(signal.SIG_BLOCK, ()), 0
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if not (child := os.fork()):
            try:
                signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, also during a call of C
                signal.setitimer(signal.ITIMER_PROF, seconds)
                # A lock that another thread held during the fork is never released: end here, too.
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(60 + int(20 * seconds))
                work()
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT).si_code == os.CLD_EXITED  # type: ignore[union-attr]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
