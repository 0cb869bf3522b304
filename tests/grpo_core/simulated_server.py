"""Run SIMULATED HTTP servers: real sockets on loopback, with responses that a test writes."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.grpo_core.faults.proxy import read_message


@dataclass
class Call:
    """One HTTP request and its connection; `over` is set when the server's block ends."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    sock: socket.socket
    over: threading.Event = field(default_factory=threading.Event)

    def document(self):
        """Return the request's JSON body."""
        return json.loads(self.body)

    def answer(self, document=None, *, status: int = 200, text: bytes | None = None, cut: int = 0) -> None:
        """Send a response; with `cut`, that many announced bytes of its body are never sent."""
        body = json.dumps(document).encode() if text is None else text
        head = f"HTTP/1.1 {status} SIMULATED\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        self.sock.sendall(head + body[: len(body) - cut])


@dataclass
class Server:
    """A simulated server's port, the requests that it received, and an event that is set when its block ends."""

    port: int
    calls: list[Call]
    over: threading.Event


@contextlib.contextmanager
def simulate_server(handle: Callable[[Call], None]) -> Iterator[Server]:
    """Serve each call by `handle` in a separate thread, then close the connection."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    server = Server(listener.getsockname()[1], [], threading.Event())
    threads: list[threading.Thread] = []

    def serve(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            call = _read_call(sock, server.over)
            if call is not None:
                server.calls.append(call)
                handle(call)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                thread = threading.Thread(target=serve, args=(sock,))
                thread.start()
                threads.append(thread)

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield server
    finally:
        server.over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(timeout=500)
        for thread in threads:
            thread.join(timeout=500)


def _read_call(sock: socket.socket, over: threading.Event) -> Call | None:
    """Read one request; None if the connection closes before its end."""
    message = read_message(sock)
    if message is None:
        return None
    first, *lines = message.head.decode().strip().split("\r\n")
    headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines}
    method, path, _ = first.split()
    return Call(method, path, headers, message.body, sock, over)
