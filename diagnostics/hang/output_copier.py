"""Copy standard input to standard output to its end: the program between a command of `hang --watch` and its output.

It is a process of its own, so that the command can write whatever becomes of `hang`, also after `hang` has ended. It
imports nothing of the project. Signals that would end it are ignored. Output that cannot be written, as to a full disk,
a closed pipe or a closed descriptor, is dropped.
"""

import os
import select
import signal


def main() -> None:
    """Copy until all processes that have the other end of the pipe have ended."""
    for number in (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGPIPE,
        signal.SIGXFSZ,
    ):
        signal.signal(number, signal.SIG_IGN)
    while data := os.read(0, 1 << 16):
        while data:
            try:
                data = data[os.write(1, data) :]
            except BlockingIOError:
                select.select((), (1,), ())
            except OSError:
                data = b""


if __name__ == "__main__":
    main()
