"""What a connection may hold and for how long: uvicorn with small limits and an application of a few lines."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import ExitStack, suppress

import pytest
import uvicorn
from grpo_core.rollout.serve import connections
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from grpo_core.rollout.server.connections import ConnectionLimits, http_protocol

CALL = b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = 64 * 2**20
PARSERS = ["auto", "h11", "httptools"]


async def application(scope, receive, send):
    """Answers with a byte, or at /1 with more than sockets hold; at /2 what follows has to come at once."""
    if scope["path"] == "/2":
        scope["extensions"][connections.EXTENSION].held.limits = ConnectionLimits(head_s=0.2)
    body = b"a" * (LARGE if scope["path"] == "/1" else 1)
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


class Server:
    """In a thread."""

    def __init__(self, **limits) -> None:
        self.protocol = http_protocol(ConnectionLimits(**limits))
        self.listener = socket.create_server(("127.0.0.1", 0))
        options = {"log_level": "error", "log_config": None, "lifespan": "off", "http": self.protocol}
        self.server = uvicorn.Server(uvicorn.Config(application, timeout_keep_alive=500, **options))
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve(sockets=[self.listener])))
        self.thread.start()

    def connect(self, sent: bytes = b"") -> socket.socket:
        connection = socket.create_connection(self.listener.getsockname(), timeout=500)
        connection.sendall(sent)
        return connection

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(500)
        self.listener.close()


@pytest.fixture(params=PARSERS)
def start(request, monkeypatch):
    """Starts servers with limits, by each HTTP parser that is here."""
    if request.param != "auto":
        pytest.importorskip(request.param)
        module = __import__(f"uvicorn.protocols.http.{request.param}_impl", fromlist=["x"])
        found = next(
            value for name, value in vars(module).items() if name in ("H11Protocol", "HttpToolsProtocol")
        )
        monkeypatch.setattr("uvicorn.protocols.http.auto.AutoHTTPProtocol", found)
    with ExitStack() as stack:

        def started(**limits):
            server = Server(**limits)
            stack.callback(server.close)
            return server

        yield started


def ended(connection: socket.socket) -> bytes:
    """What still came, once the server has ended the connection: there would be no end else."""
    came = b""
    with connection, suppress(ConnectionError):
        while part := connection.recv(2**20):
            came += part
    return came


@pytest.mark.parametrize(
    "sent", [b"", b"G", CALL[:-2] % 0, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Le"]
)
def test_a_head_that_does_not_come_ends_the_connection(start, sent):
    """Nothing, or a part of one."""
    assert ended(start(head_s=0.2).connect(sent)) == b""


@pytest.mark.parametrize("sent", [b"", b"GET /"])
def test_so_does_silence_after_an_answer(start, sent):
    """A byte is not a sign of life."""
    connection = start(head_s=500).connect(CALL % 2)
    assert connection.recv(2**16).startswith(b"HTTP/1.1 200")
    with suppress(ConnectionError):
        connection.sendall(sent)
    ended(connection)


def test_calls_one_after_the_other_go_on(start):
    """Each begins the time anew: three calls in a row on one connection."""
    connection = start(head_s=500).connect()
    with connection:
        for _ in range(3):
            connection.sendall(CALL % 0)
            came = b""
            while not came.endswith(b"\r\n\r\na"):
                came += connection.recv(2**16)


def test_a_new_connection_takes_the_place_of_the_one_that_waits_longest(start):
    """Whoever holds them all open does not keep others out."""
    server = start(most=3, head_s=500)
    idle = [server.connect(b"GET /") for _ in range(3)]
    late = server.connect(CALL % 0)
    assert late.recv(2**16).startswith(b"HTTP/1.1 200")
    assert ended(idle[0]) == b""
    for connection in (*idle[1:], late):
        connection.close()


def test_a_head_without_end_is_not_collected(start):
    """In memory it would grow as fast as it can be sent."""
    connection = start(head_bytes=2**15, head_s=500).connect(b"GET / HTTP/1.1\r\n")
    header = b"X-A: " + b"a" * 2**12 + b"\r\n"
    assert taken(connection, header, 2**13) < 2**13


def taken(connection: socket.socket, part: bytes, times: int) -> int:
    """How often a part was sent before the server ended the connection."""
    with connection:
        for count in range(times):
            try:
                connection.sendall(part)
            except ConnectionError:
                return count
    return times


def test_calls_that_are_sent_ahead_are_not_collected(start, monkeypatch):
    """Past a few: httptools makes a call of each at once, h11 stops reading."""
    stopped = threading.Event()
    for owner, name in ((connections._Limited, "drop"), (FlowControl, "pause_reading")):
        monkeypatch.setattr(owner, name, _telling(getattr(owner, name), stopped))
    with start(head_s=500, pipelined=4).connect(CALL % 1 * 64):
        assert stopped.wait(500)


def test_a_body_that_is_none_is_no_fault_of_ours(start, caplog):
    """The call has begun when uvicorn refuses what follows: it is ended, without a traceback in the log for each."""
    protocol = start().protocol

    async def scenario(rest):
        state = ServerState()
        config = uvicorn.Config(application, log_config=None, lifespan="off", http=protocol)
        connection = protocol(
            config=config, server_state=state, app_state={}, _loop=asyncio.get_running_loop()
        )
        transport = ClosingTransport()
        connection.connection_made(transport)
        connection.data_received(CALL[:-2] % 0 + b"Transfer-Encoding: chunked\r\n\r\n" + rest)
        if not rest:
            transport.closing = True
        await asyncio.gather(*state.tasks)
        return transport.written

    assert asyncio.run(scenario(b"no chunk\r\n")).count(b"HTTP/1.1") == 1
    assert asyncio.run(scenario(b"")) == b""  # the client itself is gone
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


class ClosingTransport(asyncio.Transport):
    """On its way to its end, as one is until the loop comes round again."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closing = b"", False

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.written += data

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Nothing comes."""

    resume_reading = abort = pause_reading


def test_an_answer_that_nobody_reads_is_thrown_away(start, monkeypatch):
    """While some of it is read there is time."""
    dropped = threading.Event()
    monkeypatch.setattr(connections._Limited, "drop", _telling(connections._Limited.drop, dropped))
    server = start(head_s=0.3)
    connection = server.connect(CALL % 1)
    assert dropped.wait(500)
    assert len(ended(connection)) < LARGE


def _telling(method, event):
    def told(self):
        method(self)
        event.set()

    return told
