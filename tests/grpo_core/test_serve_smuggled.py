"""Calls of which a proxy and the server could see different ones: refused, with all that stands behind them."""

from __future__ import annotations

import re
import socket
from contextlib import suppress

import pytest

from grpo_core.rollout.server.guard import Callers, Guard, Limits
from tests.grpo_core import test_serve_connections as beside

start = beside.start
HOST = b"Host: localhost\r\n"
POST, GET = b"POST /a HTTP/1.1\r\n" + HOST, b"GET /a HTTP/1.1\r\n" + HOST
INNER = b"POST /abort HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
NONE = b"0\r\n\r\n" + INNER
REFUSED = {
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(INNER) + INNER,
    "a length with a sign": POST + b"Content-Length: +2\r\n\r\nab",
    "below none": POST + b"Content-Length: -2\r\n\r\nab",
    "a length of other digits": POST + b"Content-Length: 0x2\r\n\r\nab",
    "a length as Python writes it": POST + b"Content-Length: 1_0\r\n\r\n0123456789",
    "chunks and a length": POST + CHUNKED + b"Content-Length: 4\r\n\r\n" + NONE,
    "chunks behind a tab": POST + b"Transfer-Encoding:\tchunked\r\nContent-Length: 5\r\n\r\n" + NONE,
    "chunks before a blank": POST + b"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\n" + NONE,
    "chunks of another kind": POST + b"Transfer-Encoding: xchunked\r\nContent-Length: 5\r\n\r\n" + NONE,
    "chunks with a word more": POST + CHUNKED + b"\r\n1;a=b\nX\r\na\r\n" + NONE,
    "chunks of what has no body": GET + CHUNKED + b"Content-Length: 0\r\n\r\n" + NONE,
    "chunks to be removed": b"DELETE /a HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n5\r\nhello\r\n" + NONE,
    "chunks in 1.0": b"POST /a HTTP/1.0\r\n" + HOST + CHUNKED + b"Connection: keep-alive\r\n\r\n" + NONE,
    "a call as a body": GET + b"Content-Length: %d\r\n\r\n" % len(INNER) + INNER,
    "a method in small letters": b"post /a HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nab",
    "a tunnel": b"CONNECT evil.example:443 HTTP/1.1\r\n" + HOST + b"\r\n",
    "all of it": b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    "two hosts": GET + b"Host: evil.example\r\n\r\n",
    "a host on two lines": b"GET /a HTTP/1.1\r\nHost: localhost\r\n evil.example\r\n\r\n",
    "a first line that goes on": b"GET /a HTTP/1.1\r\n Host: evil.example\r\nHost: localhost\r\n\r\n",
    "no host": b"GET /a HTTP/1.1\r\n\r\n",
    "an empty one": b"GET /a HTTP/1.1\r\nHost:\r\n\r\n",
    "no host in 1.0": b"GET /a HTTP/1.0\r\n\r\n",
    "an origin behind a line feed": b"GET /a HTTP/1.1\r\nHost: localhost\nOrigin: http://evil.example\r\n\r\n",
    "an origin behind a return": b"GET /a HTTP/1.1\r\nHost: localhost\rOrigin: http://evil.example\r\n\r\n",
    "an origin before a blank": GET + b"Origin : http://evil.example\r\n\r\n",
    "a NUL in a name": GET + b"Ori\0gin: x\r\n\r\n",
    "a NUL in a host": b"GET /a HTTP/1.1\r\nHost: localhost\0evil\r\n\r\n",
    "no version": b"GET /a\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@pytest.fixture
def called(monkeypatch):
    """What came through to the application, which stands behind the guard of the server."""
    found = []

    async def application(scope, _receive, send):
        found.append((scope["method"], scope["path"]))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    guard = Guard(application, callers=Callers(None, "127.0.0.1"), limits=Limits())
    monkeypatch.setattr(beside, "application", guard)
    return found


def answers(server, sent):
    """The statuses of what came back for all that was sent."""
    connection = server.connect(sent)
    with suppress(OSError):  # the server has ended it already
        connection.shutdown(socket.SHUT_WR)
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", beside.ended(connection))]


def test_what_two_could_read_in_two_ways_is_refused_with_all_behind_it(start, called):
    """Of chunks with a length the next call on the connection was carried out: for a proxy it was their body."""
    server = start()
    for name, sent in REFUSED.items():
        found = answers(server, sent)
        assert all(400 <= status < 500 for status in found), name
        assert not called, name


def test_calls_one_behind_the_other_are_each_looked_at(start, called):
    """The second's Host is not the first's."""
    server = start()
    other = b"GET /b HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    assert answers(server, GET + b"\r\n" + other) == [200, 403]
    assert called == [("GET", "/a")]


def test_no_header_changes_what_is_called(start, called):
    """As frameworks of web pages take some for."""
    server = start()
    more = b"X-HTTP-Method-Override: POST\r\nX-Original-URL: /abort\r\nX-Forwarded-Host: evil.example\r\n"
    assert answers(server, GET + more + b"\r\n") == [200]
    assert called == [("GET", "/a")]


def test_another_machine_s_address_makes_no_host_of_ours(start, called):
    """h11 tells the whole of it, httptools its path alone: then the Host counts."""
    server = start()
    own, other = HOST, b"Host: evil.example\r\n"
    assert answers(server, b"GET http://localhost/a HTTP/1.1\r\n" + other + b"\r\n")[0] in (400, 403)
    assert not called
    assert answers(server, b"GET http://evil.example/a HTTP/1.1\r\n" + own + b"\r\n")[0] in (200, 400)
    assert called in ([], [("GET", "/a")])
