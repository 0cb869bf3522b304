"""Read descriptions of jobs from the files *.jobs, start a job in its own folder, and end its processes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import pty
import random
import re
import shlex
import signal
import socket
import string
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass
class Job:
    """A job's description.

    Attributes:
        name: Name of the job.
        state: `stuck` or `healthy`.
        fields: Its label and options, as `key: value` lines.
        starts: The commands that start it.
        programs: Text of its programs, by file name.
    """

    name: str
    state: str
    fields: dict[str, str]
    starts: list[str]
    programs: dict[str, str]

    @property
    def roles(self) -> list[str]:
        """Return the roles that report when the job has reached its state."""
        return [role.strip() for role in self.fields["roles"].split(",")]

    @property
    def label(self) -> str:
        """Return the label, which was decided before the first run, as a line of tab-separated values."""
        parts = (self.fields.get(key, "") for key in ("kind", "culprit", "cause", "accept"))
        return "\t".join((self.name, self.state, *parts))


def read_jobs(folder: pathlib.Path = HERE) -> list[Job]:
    """Read all jobs of the files *.jobs, in the order of their names."""
    jobs = []
    for path in sorted(folder.glob("*.jobs")):
        for block in re.split(r"^=== ", path.read_text(), flags=re.MULTILINE)[1:]:
            head, *files = re.split(r"^--- ", block, flags=re.MULTILINE)
            title, *lines = head.strip().splitlines()
            name, state = title.split()
            pairs = [line.split(": ", 1) for line in lines]
            jobs.append(
                Job(
                    name,
                    state,
                    {key: value for key, value in pairs if key != "start"},
                    [value for key, value in pairs if key == "start"],
                    dict(text.split("\n", 1) for text in files),
                )
            )
    return sorted(jobs, key=lambda job: job.name)


def find_free_ports(count: int) -> list[int]:
    """Return TCP ports that are free at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for port in sockets:
            port.bind(("127.0.0.1", random.randint(12000, 30000)))
        return [port.getsockname()[1] for port in sockets]


def find_pids(folder: pathlib.Path) -> list[int]:
    """Return the living processes whose environment names this job's folder."""
    mark = f"JOB_DIR={folder}".encode()
    pids = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (path / "environ").read_bytes().split(b"\0"):
                pids.append(int(path.name))
    return pids


class RunningJob:
    """The started processes of one job."""

    def __init__(self, job: Job, folder: pathlib.Path) -> None:
        self.job, self.folder = job, folder
        (folder / "ready").mkdir(parents=True)
        for name, text in job.programs.items():
            (folder / name).write_text(text)
        port, port2, master = find_free_ports(3)
        self.env = os.environ | {
            "JOB_DIR": str(folder),
            "PORT": str(port),
            "PORT2": str(port2),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(master),
            "PYTHONPATH": str(HERE / "lib"),
            "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "2" if "openmp" in job.name else "1",
            "RAY_DEDUP_LOGS": "0",
        }
        self.log = (folder / "output.log").open("wb")
        self.terminals: list[int] = []
        self.processes = [self.start(command) for command in job.starts]

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Start one command of the job in a session of its own."""
        words = shlex.split(command)
        if words[0] != "bash":
            words = [string.Template(word).safe_substitute(self.env) for word in words]
        stdin: int = subprocess.DEVNULL
        if self.job.fields.get("stdin") == "pipe":
            stdin = subprocess.PIPE
        elif self.job.fields.get("stdin") == "pty":
            controller, stdin = pty.openpty()
            self.terminals += [controller, stdin]
        return subprocess.Popen(
            ["nice", "-n", "19", *words],
            cwd=self.folder,
            env=self.env,
            stdin=stdin,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_until_ready(self, timeout_s: float = 120.0) -> dict[str, int]:
        """Wait until all roles have reported, and return the pid of each.

        Raises:
            TimeoutError: A role has not reported in time.
        """
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            reported = {
                path.name.replace("_", " "): int(path.read_text())
                for path in (self.folder / "ready").glob("[!.]*")
            }
            if set(self.job.roles) <= set(reported):
                return reported
            time.sleep(0.2)
        missing = set(self.job.roles) - set(reported)
        raise TimeoutError(f"{self.job.name}: not ready: {sorted(missing)}")

    def end(self) -> None:
        """Kill every process of the job, also stopped ones, and close its files."""
        for _ in range(3):
            for pid in find_pids(self.folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdin:
                process.stdin.close()
        for descriptor in self.terminals:
            os.close(descriptor)
        self.log.close()
