"""Send malformed requests to a process of grpo_core's rollout server over raw sockets, and print the results.

Usage: fuzz_sockets.py [REQUESTS] [SEED] [PYTHON]. Requests are built from valid and invalid parts, then cut,
    bit-flipped, repeated or followed by others at random; most have no token. The exit code is 1 for a status of 500 or
    above except 503, for a response without the token that reveals more than the health, for a traceback, for a failed
    `/health`, or for a server that ended, whose memory grew, or whose weights changed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grpo_core.config import ModelConfig, TaskConfig
from grpo_core.tasks.model import make_tiny

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "of-the-fuzzed-server-0123456789"
GROWTH_MIB = 64
METHODS = [
    b"GET",
    b"POST",
    b"PUT",
    b"DELETE",
    b"OPTIONS",
    b"CONNECT",
    b"TRACE",
    b"post",
    b"G\x00T",
    b"",
    b"PRI",
]
PATHS = [
    *(
        b"/health",
        b"/info",
        b"/generate",
        b"/weights",
        b"/fingerprint",
        b"/sync/load",
        b"/sync/load",
    ),
    *(
        b"/v1/completions",
        b"/generate/",
        b"/openapi.json",
        b"/docs",
        b"*",
        b"",
        b"http://evil/weights",
        b"//health",
    ),
    *(b"/%2e%2e/info", b"/health/../info", b"/health;/info", b"/health%00", b"/\xff", b"/" + b"a" * 9000),
]
HEADERS = [
    *(
        b"Host: localhost",
        b"Host: evil.example",
        b"Host: 127.0.0.1:1",
        b"Host:",
        b"Host: [::1",
        b"Host: \xff\xfe",
    ),
    *(
        b"Content-Length: 0",
        b"Content-Length: 5",
        b"Content-Length: -1",
        b"Content-Length: 99999999999999999999",
    ),
    *(b"Content-Length: +5", b"Content-Length: \xb2", b"Content-Length: 16777216", b"Content-Length: 5, 5"),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity, chunked", b"Expect: 100-continue"),
    *(b"Connection: close", b"Connection: keep-alive", b"Connection: Upgrade", b"Upgrade: websocket"),
    *(b"Upgrade: h2c", b"HTTP2-Settings: AA", b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="),
    *(
        b"Sec-WebSocket-Version: 13",
        b"Origin: null",
        b"Origin: http://localhost",
        b"Sec-Fetch-Site: cross-site",
    ),
    *(
        b"Authorization: Bearer",
        b"Authorization: Bearer x",
        b"Authorization: Basic !!!",
        b"Authorization: Basic Og==",
    ),
    *(
        b"X-Policy-Version: 1",
        b"X-Policy-Version: \xff",
        b"X-Content-CRC32: " + b"0" * 8,
        b" folded: a",
        b"no colon",
    ),
    *(
        b"Content-Type: application/json",
        b"Content-Type: multipart/form-data; boundary=a",
        b"X: " + b"a" * 20000,
    ),
    *(
        b"X-Forwarded-For: 10.0.0.1",
        b"X-Forwarded-Host: evil",
        b"X-HTTP-Method-Override: POST",
        b"Range: bytes=0-1",
    ),
]
BODIES = [
    *(b"", b"hello", b"{}", b"[" * 5000, b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"\x00" * 100),
    b'{"kind":"shm","name":"../../etc/passwd","size":1}',
    b'{"kind":"files","name":"/etc/passwd","version":1,"size":1}',
    b'{"requests":[{"id":"a","prompt_ids":[0,1,10],"seed":3}],"params":{"max_tokens":4,"temperature":1.0,"stop_ids":[11]}}',
    *(b'{"prompt":[0,1],"max_tokens":3}', b"\x08\x00\x00\x00\x00\x00\x00\x00" + b'{"a":{}}' * 3, b"\xff" * 8),
]
STATUS = re.compile(rb"^HTTP/1\.1 (\d\d\d) ", re.MULTILINE)


class Server:
    """The server process under test."""

    def __init__(self, python: str, folder: str) -> None:
        make_tiny(Path(folder, "model"), ModelConfig(), TaskConfig().letters, seed=0)
        environment = {
            "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": os.defpath, "HOME": folder,
            "GRPO_CORE_TOKEN": TOKEN,
        }  # fmt: skip
        options = [f"--model.path={folder}/model", "--model.max_length=64"]
        self.errors = Path(folder, "errors")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [python, "-m", "grpo_core", "serve", "--exit-with-stdin", *options],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.port = json.loads(self.process.stdout.readline())["port"]

    def memory_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def get_json(self, path: str) -> dict:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
            return json.loads(connection.getresponse().read())


def random_request(draw: random.Random) -> bytes:
    """Return a random request, valid or invalid."""
    body = draw.choice(BODIES)
    lines = [
        b"%s %s %s" % (draw.choice(METHODS[:2]), draw.choice(PATHS[:11]), b"HTTP/1.1"),
        b"Host: localhost",
    ]
    if draw.random() < 0.3:
        version = draw.choice([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9", b""])
        lines[0] = b" ".join([draw.choice(METHODS), draw.choice(PATHS), version])
    if draw.random() < 0.2:
        lines.pop()
    if draw.random() < 0.8:
        lines.append(b"Content-Length: %d" % len(body))
    if draw.random() < 0.3:
        lines.append(b"Authorization: Bearer " + TOKEN.encode())
    if draw.random() < 0.7:
        lines.append(b"Connection: close")
    lines += draw.choices(HEADERS, k=draw.choice([0, 0, 1, 2, 5]))
    head = draw.choice([b"\r\n"] * 9 + [b"\n"]).join(lines)
    return head + b"\r\n\r\n" + body


def random_bytes(draw: random.Random) -> bytes:
    """Return one or more random requests, which may be cut or have changed bytes, or random bytes."""
    kind = draw.random()
    if kind < 0.04:
        return draw.randbytes(draw.randrange(3000))
    data = b"".join(random_request(draw) for _ in range(draw.choice([1] * 8 + [2, 30])))
    if kind < 0.15:
        return data[: draw.randrange(len(data))]
    if kind < 0.35:
        flipped = bytearray(data)
        for _ in range(draw.randrange(1, 6)):
            flipped[draw.randrange(min(len(flipped), 400))] = draw.randrange(256)
        return bytes(flipped)
    return data


def exchange(port: int, data: bytes) -> bytes:
    """Send bytes; return the response until the server closes the connection or is silent for a moment."""
    received = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=300) as connection,
    ):
        connection.sendall(data)
        connection.settimeout(300 if b"Connection: close" in data and data.startswith(b"POST /gen") else 0.05)
        while part := connection.recv(2**16):
            received += part
            connection.settimeout(0.05)
    return received


def faults_in(sent: bytes, received: bytes) -> list[str]:
    """List the faults of a response."""
    statuses = [int(status) for status in STATUS.findall(received)]
    faults = [f"status {status}" for status in statuses if status >= 500 and status != 503]
    # A client without the token may only learn that the server is alive.
    if TOKEN.encode() not in sent:
        for answer in received.split(b"HTTP/1.1 ")[1:]:
            body = answer.partition(b"\r\n\r\n")[2]
            if answer.startswith(b"200") and body not in (b'{"status":"ok"}', b""):
                faults.append(f"without the token: {answer[:200]!r}")
    return faults


def main() -> int:
    requests_wanted, seed = (int(word) for word in (*sys.argv[1:3], *("20000", "0")[len(sys.argv[1:3]) :]))
    python = sys.argv[3] if len(sys.argv) > 3 else sys.executable
    counter, faults, memory, health = Counter(), [], [], []

    def run_case(number: int) -> None:
        data = random_bytes(random.Random(f"{seed}.{number}"))
        received = exchange(server.port, data)
        counter.update(STATUS.findall(received) or [b"none"])
        faults.extend(f"{seed}.{number}: {fault}" for fault in faults_in(data, received))

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(8) as pool:
        server = Server(python, folder)
        before, start = server.get_json("/fingerprint"), time.monotonic()
        for part in range(10):
            list(pool.map(run_case, range(part * requests_wanted // 10, (part + 1) * requests_wanted // 10)))
            memory.append(server.memory_mib())
            began = time.monotonic()
            if server.get_json("/health") != {"status": "ok"}:
                faults.append("health")
            health.append(time.monotonic() - began)
        seconds = time.monotonic() - start
        after, alive = server.get_json("/fingerprint"), server.process.poll() is None
        server.process.stdin.close()
        code, errors = server.process.wait(timeout=300), server.errors.read_text(errors="replace")
    faults += re.findall(r"^(?:Traceback|ERROR).*$", errors, re.MULTILINE)
    counts = {status.decode(): count for status, count in sorted(counter.items())}
    print(f"{requests_wanted} exchanges of seed {seed} in {seconds:.0f} s; answers: {counts}")
    print("memory behind each tenth, MiB: " + ", ".join(f"{value:.0f}" for value in memory))
    print("health then, s: " + ", ".join(f"{value:.3f}" for value in health))
    print(f"alive: {alive}, exit code {code}; weights unchanged: {before == after}; faults: {len(faults)}")
    for fault in faults[:20]:
        print(fault)
    if "Traceback" in errors:
        print(errors[errors.index("Traceback") :][:6000])
    fine = not faults and alive and code == 0 and before == after and memory[-1] - memory[0] < GROWTH_MIB
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
