"""Run `python -m` programs by forking a process that has imported their modules, so that a start costs milliseconds.

`ForkServer` is the client in the tests. The process that is forked runs this module as `__main__`, and gets requests
and file descriptors through a socket.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class ForkServer:
    """A process that is forked for each program; it starts when first needed.

    Args:
        preload: Modules that the process imports: `commands` (diagnostics, repro) or `trainer` (grpo_core, PyTorch).
    """

    def __init__(self, preload: str) -> None:
        self._preload = preload
        self._requests, self._process_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen | None = None

    def start_server(self, arguments, threads: int, variables=None) -> Child:
        """Fork a rollout server with pipes as stdin and stdout.

        It replaces `grpo_core.rollout.server.process.start_child`.
        """
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **(variables or {})}
        (child_in, stdin), (stdout, child_out) = os.pipe(), os.pipe()
        child = self._fork(arguments, ROOT, environment, (child_in, child_out, 2))
        for descriptor in (child_in, child_out):
            os.close(descriptor)
        child.stdin, child.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        return child

    def run(self, arguments, *, cwd=ROOT, env=None, stdin=b"") -> subprocess.CompletedProcess[bytes]:
        """Run `python -m ARGUMENTS` for at most 500 s; replaces `subprocess.run` with captured output."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(stdin)
            files[0].seek(0)
            code = self._fork(arguments, cwd, env or os.environ, [file.fileno() for file in files]).wait(500)
            for file in files:
                file.seek(0)
            return subprocess.CompletedProcess(arguments, code, files[1].read(), files[2].read())

    def _fork(self, arguments, cwd, environment, descriptors) -> Child:
        """Fork a process with this stdin, stdout and stderr."""
        if self._process is None:
            descriptor, environ = self._process_end.fileno(), {**os.environ, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "tests.fork_server", self._preload, str(descriptor)]
            self._process = subprocess.Popen(command, cwd=ROOT, env=environ, pass_fds=[descriptor])
            self._process_end.close()
        status, child_status = os.pipe()
        request = {"arguments": list(arguments), "cwd": str(cwd), "environment": dict(environment)}
        socket.send_fds(self._requests, [json.dumps(request).encode()], [*descriptors, child_status])
        os.close(child_status)
        return Child(status)

    def close(self) -> None:
        """End the process and wait for it; rollout servers end with their stdin."""
        self._requests.close()
        self._process_end.close()
        if self._process is not None:
            self._process.wait()


class Child:
    """A forked process with the part of the `subprocess.Popen` interface that its users need."""

    def __init__(self, status: int) -> None:
        self._status = os.fdopen(status)
        self.args, self.returncode, self.pid = ["forked"], None, int(self._status.readline())

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_program(request: dict, stdin: int, stdout: int, stderr: int) -> int:
    """Become the requested program in the forked process; return its exit code."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for descriptor, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(descriptor, target)
    os.closerange(3, 1024)  # a pipe ends only when every copy of its other end is closed
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    module, *sys.argv[1:] = request["arguments"]
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code or 0


def serve_requests(requests: socket.socket) -> None:
    """Fork a monitor for each request; it forks the program, and reports its process id and exit status."""
    while True:
        data, descriptors, *_ = socket.recv_fds(requests, 2**20, 4)
        with contextlib.suppress(ChildProcessError):  # monitors that ended
            while os.waitpid(-1, os.WNOHANG if data else 0)[0]:
                pass
        if not data:
            return
        if not os.fork():
            requests.close()
            *streams, status = descriptors
            program = os.fork()
            if not program:
                os._exit(run_program(json.loads(data), *streams))
            for descriptor in streams:
                os.close(descriptor)
            os.write(status, f"{program}\n".encode())
            code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
            os.write(status, f"{code}\n".encode())
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    # The name is not written out, or select_tests would count its imports as those of all tests.
    importlib.import_module(f"tests.preload_{sys.argv[1]}")
    serve_requests(socket.socket(fileno=int(sys.argv[2])))
