"""Run `python -m` programs by forking a process that has imported their modules, so that a start costs milliseconds.

`ForkServer` is the client in the tests. The process that forks the programs runs this module as `__main__`, and gets
requests and file descriptors through a socket. In a run of the whole suite, the workers of pytest-xdist and their fork
servers are forked from one process, the worker server: each import of PyTorch and transformers takes 9 s of CPU time.
pytest-xdist starts its workers with the arguments `fork ADDRESS … PROGRAM`, by which this module forks PROGRAM (Python
code) from the worker server.
"""

from __future__ import annotations

import contextlib
import gc
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
# Environment variable with the address of the worker server.
WORKERS = "GRPO_DOCTOR_TEST_WORKERS"


class ForkServer:
    """Client of a process that forks once for each program; the process starts when first needed.

    Args:
        preload: Modules that the process imports: `commands` (diagnostics, repro) or `trainer` (grpo_core, PyTorch).
        requests: Socket of a running process, which has its imports already; None to start one.
    """

    def __init__(self, preload: str, requests: socket.socket | None = None) -> None:
        pair = (requests, None) if requests else socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._preload, (self._requests, self._process_end) = preload, pair
        self._process: subprocess.Popen | Child | None = None

    def start_server(self, arguments, threads: int, variables=None, *, forks: bool = False) -> Child:
        """Fork a rollout server with pipes as stdin and stdout; with `forks` its own servers are forked, too.

        It replaces `grpo_core.rollout.server.process.start_child`.
        """
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **(variables or {})}
        (child_in, stdin), (stdout, child_out) = os.pipe(), os.pipe()
        more = [self._requests.fileno()] * forks
        child = self._fork(arguments, Path.cwd(), environment, (child_in, child_out, 2, *more))
        for descriptor in (child_in, child_out):
            os.close(descriptor)
        child.stdin, child.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        return child

    def run(self, arguments, *, cwd=ROOT, env=None, stdin=b"") -> subprocess.CompletedProcess[bytes]:
        """Run `python -m ARGUMENTS` for at most 500 s; replaces `subprocess.run` with captured output.

        A trainer's rollout servers are forked, too.
        """
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(stdin)
            files[0].seek(0)
            descriptors = [*(file.fileno() for file in files), self._requests.fileno()]
            code = self._fork(arguments, cwd, env or os.environ, descriptors).wait(500)
            for file in files:
                file.seek(0)
            return subprocess.CompletedProcess(arguments, code, files[1].read(), files[2].read())

    @property
    def pid(self) -> int | None:
        """Id of the process, which is started if necessary; None for a client of a forked process."""
        if self._process is None and self._process_end is not None:
            end = self._process_end
            if address := os.environ.get(WORKERS):
                command = ["tests.fork_server", self._preload, "3"]
                self._process = fork_worker(address, command, ROOT, (0, 1, 2, end.fileno()))
            else:
                self._process = start_process(self._preload, end)
            end.close()
        return self._process.pid if self._process else None

    def _fork(self, arguments, cwd, environment, descriptors) -> Child:
        """Fork a process with these file descriptors as 0, 1, 2, and perhaps 3."""
        assert self.pid or self._process_end is None
        return request_program(self._requests, arguments, cwd, environment, descriptors)

    def close(self) -> None:
        """End the process and wait for it; rollout servers end with their stdin."""
        self._requests.close()
        self._process_end.close()
        if self._process is not None:
            self._process.wait()


def start_worker_server(address: str) -> subprocess.Popen:
    """Start the process that pytest-xdist's workers are forked from; it ends with its stdin."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as requests:
        requests.bind(address)
        return start_process("workers", requests, stdin=subprocess.PIPE, start_new_session=True)


def start_process(preload: str, requests: socket.socket, **options) -> subprocess.Popen:
    """Start the process that forks the programs, with its end of the socket."""
    command = [sys.executable, "-m", "tests.fork_server", preload, str(requests.fileno())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[requests.fileno()], **options)


def request_program(requests: socket.socket, arguments, cwd, environment, descriptors) -> Child:
    """Request a program from the process at the other end; return it when it has started."""
    status, child_status = os.pipe()
    request = {"arguments": list(arguments), "cwd": str(cwd), "environment": dict(environment)}
    socket.send_fds(requests, [json.dumps(request).encode()], [child_status, *descriptors])
    os.close(child_status)
    return Child(status)


def fork_worker(address: str, arguments, cwd, descriptors) -> Child:
    """Fork a program from the worker server."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as requests:
        requests.connect(address)
        return request_program(requests, arguments, cwd, os.environ, descriptors)


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


def run_program(request: dict, descriptors: list[int]) -> int:
    """Become the requested program in the forked process; return its exit code."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
    os.closerange(len(descriptors), 1024)  # a pipe ends only when every copy of its other end is closed
    # In a fork of a fork, closing the replaced streams must not close the descriptors.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    module, *sys.argv[1:] = request["arguments"]
    server_process = sys.modules.get("grpo_core.rollout.server.process")
    if "grpo_core" in module and server_process and len(descriptors) > 3:
        server_process.start_child = ForkServer("", socket.socket(fileno=3)).start_server
    code: object = 0
    try:
        if module == "-c":
            exec(sys.argv.pop(), {"__name__": "__main__"})
        else:
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


def serve_requests(requests: socket.socket, *owner: int) -> None:
    """Fork a monitor for each request; it forks the program, and reports its process id and exit status.

    It ends when the other end of the socket, or of the owner's pipe, is closed and its monitors have ended.
    """
    while True:
        data, descriptors = b"", []
        if requests in select.select([requests, *owner], [], [])[0]:
            data, descriptors, *_ = socket.recv_fds(requests, 2**20, 8)
        with contextlib.suppress(ChildProcessError):  # monitors that ended
            while os.waitpid(-1, os.WNOHANG if data else 0)[0]:
                pass
        if not data:
            return
        if not os.fork():
            requests.close()
            status, *streams = descriptors
            program = os.fork()
            if not program:
                os._exit(run_program(json.loads(data), streams))
            for descriptor in streams:
                os.close(descriptor)
            os.write(status, f"{program}\n".encode())
            code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
            with contextlib.suppress(BrokenPipeError):  # the requester was killed
                os.write(status, f"{code}\n".encode())
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    if sys.argv[1] == "fork":
        sys.exit(abs(fork_worker(sys.argv[2], ["-c", sys.argv[-1]], Path.cwd(), (0, 1, 2)).wait()))
    gc.disable()
    importlib.import_module(f"tests.preload_{sys.argv[1]}")
    gc.freeze()  # else a collection in a forked process reads, and thereby copies, the objects of all modules
    gc.enable()
    serve_requests(socket.socket(fileno=int(sys.argv[2])), *[0] * (sys.argv[1] == "workers"))
