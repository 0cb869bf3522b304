"""Start rollout servers in milliseconds, by forking a process that has imported everything."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Template:
    """The process that is forked, which starts when it is first needed."""

    def __init__(self) -> None:
        self._requests, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen | None = None

    def start(self, arguments, threads: int, variables=None) -> Child:
        """Fork a server, as a replacement of `grpo_core.rollout.server.process.start_child`."""
        if self._process is None:
            command = [sys.executable, "-m", "tests.grpo_core.fork_server", str(self._theirs.fileno())]
            variables_of_template = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=variables_of_template, pass_fds=[self._theirs.fileno()]
            )
            self._theirs.close()
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **(variables or {})}
        (child_in, stdin), (stdout, child_out), (status, child_status) = os.pipe(), os.pipe(), os.pipe()
        request = json.dumps({"arguments": list(arguments), "environment": environment}).encode()
        socket.send_fds(self._requests, [request], [child_in, child_out, child_status, 2])
        for descriptor in (child_in, child_out, child_status):
            os.close(descriptor)
        return Child(stdin, stdout, status)

    def close(self) -> None:
        """Stop the template process; servers end with their stdin."""
        self._requests.close()
        self._theirs.close()
        if self._process is not None:
            self._process.wait()


class Child:
    """A forked process with the part of the `subprocess.Popen` interface that its users need."""

    def __init__(self, stdin: int, stdout: int, status: int) -> None:
        self.stdin, self.stdout, self._status = (
            os.fdopen(stdin, "wb"),
            os.fdopen(stdout, "rb"),
            os.fdopen(status),
        )
        self.args, self.returncode, self.pid = ["forked"], None, int(self._status.readline())

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process; return its exit code."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


def run_server(request: dict, stdin: int, stdout: int, stderr: int) -> None:
    """Become the requested program in the forked process."""
    from grpo_core import __main__ as cli

    os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    for descriptor, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(descriptor, target)
    os.closerange(3, 1024)  # a pipe ends only when every copy of its other end is closed
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    code = cli.main(request["arguments"][1:])
    sys.stdout.flush()
    os._exit(code or 0)


def serve_requests(requests: socket.socket) -> None:
    """Fork a monitor for each request; it forks the server, and reports its process id and exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # monitors are not waited for
    while True:
        data, descriptors, *_ = socket.recv_fds(requests, 2**20, 4)
        if not data:
            return
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            stdin, stdout, status, stderr = descriptors
            server = os.fork()
            if not server:
                run_server(json.loads(data), stdin, stdout, stderr)
            for descriptor in (stdin, stdout):
                os.close(descriptor)
            os.write(status, f"{server}\n".encode())
            code = os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
            os.write(status, f"{code}\n".encode())
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def import_everything() -> None:
    """Import everything that a server needs; some libraries import more at their first use."""
    import tempfile
    from concurrent.futures import ThreadPoolExecutor

    from grpo_core.config import ModelConfig, TaskConfig
    from grpo_core.machine.process import make_deterministic
    from grpo_core.rollout.embedded import TransformersEngine
    from grpo_core.rollout.server import process
    from grpo_core.rollout.server.access import Limits
    from grpo_core.rollout.server.app import create_app
    from grpo_core.tasks.model import make_tiny
    from grpo_core.types import Request, SamplingParams

    assert process.serve
    make_deterministic(1)
    with tempfile.TemporaryDirectory() as folder:
        make_tiny(Path(folder), ModelConfig(), TaskConfig().letters, seed=0)
        engine = TransformersEngine(folder, max_model_len=64)
    engine.generate([Request("r", (1, 2), seed=0)], SamplingParams(max_tokens=2))
    create_app(engine, ThreadPoolExecutor(1), token=None, limits=Limits()).openapi()


if __name__ == "__main__":
    import_everything()
    serve_requests(socket.socket(fileno=int(sys.argv[1])))
