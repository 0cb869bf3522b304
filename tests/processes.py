"""Run programs and HTTP servers, wait for a condition, find out whether a process runs, and choose a free port."""

import contextlib
import http.server
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any


def run_text(
    command: Iterable[object], *, check: bool = False, timeout: float = 500, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command, for 500 s at most by default, with its output captured as text."""
    words = list(map(str, command))
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=check, **options)


def run_python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this Python with its output captured as text."""
    return run_text([sys.executable, *arguments], **options)


@contextlib.contextmanager
def run_server(
    handler: Callable[..., http.server.BaseHTTPRequestHandler],
    kind: type[http.server.ThreadingHTTPServer] = http.server.ThreadingHTTPServer,
) -> Iterator[str]:
    """Run an HTTP server in a thread until the block ends; yield its address."""
    server = kind(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def is_running(pid: int) -> bool:
    """Return whether a process runs and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], object], timeout_s: float = 500) -> None:
    """Poll until the condition holds; fail after the time limit."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
