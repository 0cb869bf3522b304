"""Attack grpo_core's rollout server as hostile clients and web pages do, and print the cost of each attack.

Usage: attack_server.py [--python PYTHON] [--tree FOLDER] [--only TEXT] [--options OPTION ...]. `--tree` runs the
server of another checkout, for comparison; `--only` runs only attacks whose name contains TEXT; `--options` are options
of the server, such as `--allow-unauthenticated`. During each attack a thread requests `/health` on new connections; the
longest wait is in the row of the attack. Runs on Linux only, because memory is read from /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

from grpo_core.config import ModelConfig, TaskConfig
from grpo_core.rollout.wire import CHECKSUM, checksum
from grpo_core.tasks.model import make_tiny

ROOT = Path(__file__).resolve().parents[2]
BODY = 16 * 2**20
PARAMS = b'{"params":{"max_tokens":4,"temperature":1.0,"stop_ids":[]},"requests":[{"id":"a","seed":1,"prompt_ids":['


class Server:
    """The attacked server process."""

    def __init__(self, python: str, tree: Path, options: list[str], folder: str) -> None:
        make_tiny(Path(folder), ModelConfig(), TaskConfig().letters, seed=0)
        command = [
            python,
            "-m",
            "grpo_core",
            "serve",
            "--exit-with-stdin",
            f"--model.path={folder}",
            *options,
        ]
        environment = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PATH": os.defpath, "HOME": folder}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, env=environment, cwd=folder, **pipes)
        self.port = json.loads(self.process.stdout.readline())["port"]
        self.peak_mib = 0.0

    def memory_mib(self) -> float:
        """Return the resident memory of the server."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def connect(self, sent: bytes = b"") -> socket.socket:
        """Open a connection and send bytes."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=300)
        connection.sendall(sent)
        return connection

    def call(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """Send a request; return status and body, or 0 and the name of the error."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        with contextlib.closing(connection):
            try:
                connection.request(method, path, body, {"Content-Type": "application/json", **headers})
                response = connection.getresponse()
                return response.status, response.read()
            except OSError as error:
                return 0, type(error).__name__.encode()


class HealthProbe:
    """Request /health continuously in a thread; record the longest wait, failures and the peak memory."""

    def __init__(self, server: Server) -> None:
        self.server, self.worst, self.count, self.failed = server, 0.0, 0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def _poll(self) -> None:
        while not self._over.wait(0.02):
            began = time.perf_counter()
            status, _ = self.server.call("GET", "/health")
            self.worst, self.count = max(self.worst, time.perf_counter() - began), self.count + 1
            self.failed += status != 200
            self.server.peak_mib = max(self.server.peak_mib, self.server.memory_mib())

    def __enter__(self) -> Self:
        self.server.peak_mib = self.before = self.server.memory_mib()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def request_head(size: int, path: str = "/generate") -> bytes:
    """Return the head of a POST request with a Content-Length."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"X-Policy-Version: 1\r\nContent-Length: {size}\r\n\r\n"
    ).encode()


def wait_idle(_: Server) -> str:
    """Do nothing for 5 s, as the baseline."""
    time.sleep(5)
    return ""


def open_half_requests(server: Server) -> str:
    """Open 200 connections with half a request head."""
    connections = [server.connect(b"POST /weights HTTP/1.1\r\nHost: lo") for _ in range(200)]
    time.sleep(13)
    ended = select.select(connections, [], [], 0)[0]
    for connection in connections:
        connection.close()
    return f"{len(connections) - len(ended)} of 200 alive after 13 s"


def flood_connections(server: Server) -> str:
    """Open 3,000 connections with half a request, 400 at a time."""
    connections: list[socket.socket] = []
    for _ in range(3000):
        connections.append(server.connect(b"GET / HT"))
        if len(connections) > 400:
            connections.pop(0).close()
    for connection in connections:
        connection.close()
    return "3000 half calls, 400 at a time"


def hold_bodies(server: Server) -> str:
    """Send 30 bodies of 16 MiB without their last byte."""
    accepted, refused = [], 0
    for _ in range(30):
        connection = server.connect(request_head(BODY))
        connection.settimeout(20)
        with contextlib.suppress(OSError):
            connection.sendall(b" " * (BODY - 1))
        accepted.append(connection)
    for connection in accepted:
        refused += bool(select.select([connection], [], [], 0.05)[0])
        connection.close()
    return f"{30 - refused} of 30 of 16 MiB held"


def post_wrong_ids(server: Server) -> str:
    """Post a request with 350,000 token ids that are strings."""
    body = PARAMS + b",".join([b'""'] * (2**20 // 3)) + b"]}]}"
    began = time.perf_counter()
    status, answer = server.call("POST", "/generate", body)
    return f"{status} in {time.perf_counter() - began:.1f} s, {len(answer)} bytes of answer"


def post_many_fields(server: Server) -> str:
    """Post a JSON object with over a million unknown fields."""
    body = b"{" + b",".join(b'"%x":{}' % place for place in range(BODY // 12)) + b"}"
    began = time.perf_counter()
    status, _ = server.call("POST", "/generate", body)
    return f"{status} in {time.perf_counter() - began:.1f} s"


def post_largest_body(server: Server) -> str:
    """Post a request with up to two million token ids, cut at the maximum body size."""
    body = PARAMS + b",".join([b"1234567"] * (2**21 - 10)) + b"]}]}"
    began = time.perf_counter()
    status, _ = server.call("POST", "/generate", body[:BODY])
    return f"{status} in {time.perf_counter() - began:.1f} s"


def upload_many_dimensions(server: Server) -> str:
    """Upload a weight header with 40,000 dimensions of size 2^62."""
    head = json.dumps({"a": {"dtype": "F32", "shape": [2**62] * 40000, "data_offsets": [0, 0]}}).encode()
    return upload(server, head)


def upload_many_tensors(server: Server) -> str:
    """Upload a weight header with 15,000 tensors and no data."""
    entry = '"%s%d":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    head = "{" + ",".join(entry % ("layer" * 4, place) for place in range(15000)) + "}"
    return upload(server, head.encode())


def upload(server: Server, head: bytes) -> str:
    """Upload a weight header without data; return the status and the time."""
    body = len(head).to_bytes(8, "little") + head
    began = time.perf_counter()
    headers = {"X-Policy-Version": "1", CHECKSUM: checksum(body)}
    status, _ = server.call("POST", "/weights", body, **headers)
    return f"{status} in {time.perf_counter() - began:.1f} s"


def request_from_page(server: Server) -> str:
    """Send requests as a malicious web page could, and return their statuses."""
    statuses = {
        "rebinding": server.call("POST", "/generate", Host="evil.example")[0],
        "Origin": server.call("POST", "/generate", Origin="http://evil.example")[0],
        "Sec-Fetch-Site": server.call("POST", "/generate", **{"Sec-Fetch-Site": "cross-site"})[0],
        "/docs": server.call("GET", "/docs")[0],
        "/generate without a token": server.call("POST", "/generate")[0],
    }
    return ", ".join(f"{what}: {status}" for what, status in statuses.items())


ATTACKS = (
    wait_idle,
    request_from_page,
    open_half_requests,
    flood_connections,
    hold_bodies,
    post_wrong_ids,
    post_many_fields,
    post_largest_body,
    upload_many_dimensions,
    upload_many_tensors,
)


def main() -> int:
    """Run the attacks and print a row for each; return the exit code of the server."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--only", default="")
    parser.add_argument("--options", nargs="*", default=[])
    options = parser.parse_args()
    server_arguments = [f"--{option.lstrip('-')}" for option in options.options]
    print(f"{'attack':22} {'slowest /health':>16} {'probes':>6} {'failed':>6} {'memory, MiB':>14}  result")
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options.python, options.tree, server_arguments, folder)
        server.call("POST", "/generate", PARAMS + b"1]}]}")
        for attack in ATTACKS:
            if options.only in attack.__name__:
                with HealthProbe(server) as probe:
                    answer = attack(server)
                memory = f"{probe.before:.0f} -> {server.peak_mib:.0f}"
                row = f"{attack.__name__:22} {probe.worst:14.3f} s {probe.count:6} {probe.failed:6} {memory:>14}"
                print(f"{row}  {answer}", flush=True)
        server.process.stdin.close()
        return server.process.wait(timeout=300)


if __name__ == "__main__":
    sys.exit(main())
