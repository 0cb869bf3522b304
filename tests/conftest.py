"""What holds for the whole suite."""

import signal


def pytest_configure():
    """Takes SIGINT back: a shell has what it starts in the background ignore it, and all that this starts too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
