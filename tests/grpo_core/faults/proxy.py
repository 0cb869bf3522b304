"""Inject faults into HTTP calls with a proxy between a trainer and a real rollout server, for tests only.

It supports the part of HTTP/1.1 that grpo_core's client and server use: one request per connection, and bodies with a
Content-Length. A fault is a function that gets one call as a `Link` and handles it instead of the normal forwarding.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass

from grpo_core.rollout.wire import checksum

PHASES = ("connect", "handshake", "upload", "fingerprint", "probe", "generate", "evaluation")
_PATHS = {"/info": "handshake", "/weights": "upload", "/fingerprint": "fingerprint"}


@dataclass(frozen=True)
class Message:
    """An HTTP request or response: everything up to the blank line, and the body."""

    head: bytes
    body: bytes = b""

    @property
    def data(self) -> bytes:
        """Return head and body."""
        return self.head + self.body

    @property
    def path(self) -> str:
        """Return the path of a request."""
        return self.head.split(b" ", 2)[1].decode()

    def with_body(self, body: bytes) -> Message:
        """Return the message with another body, and the length and checksum that fit it."""
        announced = (b"content-length:", b"x-content-crc32:")
        lines = [line for line in self.head.split(b"\r\n")[:-2] if not line.lower().startswith(announced)]
        lines.append(b"content-length: %d" % len(body))
        if announced[1] in self.head.lower():
            lines.append(announced[1] + b" " + checksum(body).encode())
        return Message(b"\r\n".join(lines) + b"\r\n\r\n", body)


def answer(status: int, body: bytes, kind: str = "application/json") -> Message:
    """Return a response that a fault sends instead of the server's."""
    head = f"HTTP/1.1 {status} Made up\r\ncontent-type: {kind}\r\n\r\n"
    return Message(head.encode()).with_body(body)


def read_message(stream: socket.socket) -> Message | None:
    """Read one message; return None if the connection closed before its end."""
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            data += (part := stream.recv(65536))
            if not part:
                return None
        head, _, body = data.partition(b"\r\n\r\n")
        names = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
        while len(body) < int(names.get(b"content-length", 0)):
            body += (part := stream.recv(1 << 20))
            if not part:
                return None
    except OSError:
        return None
    return Message(head + b"\r\n\r\n", body)


def phase_of(request: Message) -> str:
    """Return the trainer's phase in which it sends this request, or `other` for an unknown path."""
    if request.path in _PATHS:
        return _PATHS[request.path]
    if request.path != "/generate":
        return "other"
    first = json.loads(request.body)["requests"][0]["id"]
    return "probe" if first == "probe" else "evaluation" if first.startswith("eval") else "generate"


class Link:
    """One call of the client, with the actions that a fault can take."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self.proxy, self.client = proxy, client
        self.request: Message | None = None
        self.phase = "connect"

    def forward(self, request: Message | None = None) -> Message | None:
        """Send a request (default: the call's own) to the server; return its response, or None if it closed."""
        try:
            with socket.create_connection(self.proxy.upstream, timeout=500) as server:
                server.sendall((request or self.request).data)
                return read_message(server)
        except OSError:
            return None

    def send_partial(self, data: bytes) -> None:
        """Send the server these bytes, a part of a message, and close the connection."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(self.proxy.upstream, timeout=500) as server,
        ):
            server.sendall(data)

    def reply(self, message: Message | bytes | None) -> None:
        """Send the client its response, or cut the connection if there is none."""
        if message is None:
            self.reset()
            return
        data = message if isinstance(message, bytes) else message.data
        with contextlib.suppress(OSError):  # the client may have given up
            self.client.sendall(data)

    def reset(self) -> None:
        """Close with a reset, as the kernel does for a process that was killed."""
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.close()

    def stall(self, drips: bytes = b"", every_s: float = 0.1) -> None:
        """Wait until the client gives up, for up to 60 s, or send it `drips` byte by byte; record the duration."""
        started = time.monotonic()
        # The whole request is read first, because unread bytes would turn a later close into a reset.
        if self.request is None:
            self.request = read_message(self.client)
        self.client.settimeout(every_s if drips else 60)
        rest = iter(drips)
        with contextlib.suppress(OSError):
            while True:
                try:
                    if not self.client.recv(1):
                        break
                except TimeoutError:
                    if not drips:
                        break
                    self.client.sendall(bytes([next(rest, 32)]))
        self.proxy.held_s.append(time.monotonic() - started)


class Proxy:
    """A proxy that forwards calls, except those with an armed fault.

    Attributes:
        upstream: The server's address.
        port: The proxy's port.
        seen: Number of calls by phase since the last `arm` or `disarm`.
        injected: Number of faults injected since then.
        held_s: Seconds until the client gave up, for calls without a response.
        passed: Phase, request and response of calls without a fault.
        problems: Errors of the proxy itself.
    """

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.passed: list[tuple[str, Message, Message]] = []
        self._calls: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._listener = self._listen(0)
        self.port = self._listener.getsockname()[1]
        self.disarm()
        self._accept()

    def arm(self, fault, phase: str, number: int, *, lasting: bool = False) -> None:
        """Inject `fault` into the next run's `number`-th call of `phase`; with `lasting`, into all from then on."""
        self.disarm()
        self._fault, self._phase, self._number, self._lasting = fault, phase, number, lasting

    def disarm(self) -> None:
        """Forward all calls, and reset the counts."""
        self.seen: Counter[str] = Counter()
        self.injected = 0
        self.held_s: list[float] = []
        self.problems: list[str] = []
        self._fault, self._phase, self._number, self._lasting = None, "", 0, False

    def settle(self) -> None:
        """Wait until no call is in progress, and the proxy listens again after `refuse`."""
        while self._calls:
            self._calls.pop().join(timeout=500)

    def refuse(self, seconds: float) -> None:
        """Stop listening for a while, so that the kernel refuses connections."""
        # A thread in accept() keeps a closed socket alive, so it is woken first.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        later = threading.Timer(seconds, self._listen_again)
        later.start()
        self._calls.append(later)

    def _listen_again(self) -> None:
        self._listener = self._listen(self.port)
        self._accept()

    @staticmethod
    def _listen(port: int) -> socket.socket:
        return socket.create_server(("127.0.0.1", port), reuse_port=False)

    def _accept(self) -> None:
        self._thread = threading.Thread(target=self._run, args=(self._listener,), daemon=True)
        self._thread.start()

    def _run(self, listener: socket.socket) -> None:
        """Accept connections until the listener is closed; handle each in a thread."""
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            call = threading.Thread(target=self._handle_connection, args=(client,), daemon=True)
            call.start()
            self._calls.append(call)

    def _handle_connection(self, client: socket.socket) -> None:
        """Serve one connection, and store an error of the proxy in `problems`."""
        with client:
            try:
                self._serve(Link(self, client))
            except Exception as error:  # noqa: BLE001 - a bug of the proxy must be reported, not hang the client
                self.problems.append(f"{type(error).__name__}: {error}")

    def _serve(self, link: Link) -> None:
        """Inject the armed fault into a call, or forward it."""
        fault = self._fault_for("connect")
        if fault is None:
            link.request = read_message(link.client)
            if link.request is None:
                return
            link.phase = phase_of(link.request)
            fault = self._fault_for(link.phase)
        if fault is not None:
            fault(link)
            return
        response = link.forward()
        if response is not None:
            self.passed.append((link.phase, link.request, response))
        link.reply(response)

    def _fault_for(self, phase: str):
        """Count a call of a phase; return the fault if it is due in this call."""
        with self._lock:
            self.seen[phase] += 1
            position = self.seen[phase] - self._number
            due = position == 0 or (position > 0 and self._lasting)
            if self._fault is None or phase != self._phase or not due:
                return None
            self.injected += 1
            return self._fault
