"""The rollout server refuses callers, hosts, headers and bodies that its access rules forbid.

It closes idle and slow connections, serves one call per connection, and keeps validation errors short.
"""

import asyncio
import json
import re
import select
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grpo_core.rollout.server.access import UVICORN_OPTIONS, AccessControl, HttpConnection, Limits
from grpo_core.rollout.server.app import GenerateBody, create_app
from grpo_core.rollout.server.process import end_child
from tests.case_files import read_cases
from tests.grpo_core.conftest import own_server
from tests.grpo_core.test_serve import JSON, call

TOKEN = "of the test"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def server(forked_servers, model_dir):
    """Yield a server without a token, which is protected only by its rules against web pages."""
    with own_server(forked_servers, model_dir, "--exit-with-stdin") as (process, address):
        yield address
        end_child(process, grace_s=500)


def status(server, method, path, **headers):
    """Return the status of one call without a token; the Host header is the server's own by default."""
    return call(server, method, path, token=None, **headers)[0]


@pytest.mark.parametrize("path", ["/weights", "/generate", "/sync/load"])
@pytest.mark.parametrize(
    "header",
    [
        ("Host", "evil.example:8000"),  # DNS rebinding: to the browser, the page's own server
        ("Origin", "http://evil.example"),
        ("Origin", "http://localhost:3000"),  # another server of this machine
        ("Origin", "null"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ],
)
def test_browser_requests_are_refused(server, path, header):
    """A request with a header of another web page gets status 403; the same request without it does not."""
    assert status(server, "POST", path, **dict([header])) == 403
    assert status(server, "POST", path) != 403


def test_local_host_names_are_accepted(server):
    """Addresses and names work with or without a port, also when typed into a browser."""
    for host in (f"127.0.0.1:{server.port}", "localhost", f"LOCALHOST:{server.port}", "[::1]:80"):
        assert status(server, "GET", "/info", Host=host) == 200, host
    own_headers = {"Host": "localhost", "Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    assert status(server, "GET", "/info", **own_headers) == 200
    assert status(server, "GET", "/info", **{"Sec-Fetch-Site": "none"}) == 200


def test_idle_connections_leave_room_for_requests(server):
    """Of 180 connections without a request most are closed, and requests are answered, also on one that is left."""
    address, idle = (server.host, server.port), []
    with ExitStack() as stack:
        for _ in range(3):  # more at once than the server's backlog would be accepted only seconds later
            idle += [stack.enter_context(socket.create_connection(address, timeout=500)) for _ in range(60)]
            while len(idle) > HttpConnection.max_idle:
                closed = select.select(idle, [], [], 500)[0]
                assert all(connection.recv(1) == b"" for connection in closed)
                idle = [connection for connection in idle if connection not in closed]
        assert status(server, "GET", "/health") == 200
        idle[0].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle[0].recv(2**16).split()[1] == b"200"


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect"])
def test_no_page_with_third_party_scripts(server, path):
    """Interactive documentation is off; the OpenAPI description exists."""
    assert status(server, "GET", path) == 404
    assert status(server, "GET", "/openapi.json") == 200


def test_forwarding_headers_do_not_make_a_local_caller_remote(server):
    """The server decides by the connection whether a caller is local, not by X-Forwarded-For."""
    body = json.dumps({"name": "/proc/1/fd/9", "version": 9}).encode()
    code, answer = call(server, "POST", "/sync/load", body, None, **JSON, **{"X-Forwarded-For": "10.9.9.9"})
    assert code == 422
    # And not: a client on this machine, not at 10.9.9.9.
    assert "weight sync by shared memory" in answer["detail"]


def test_websocket_is_refused(server):
    """A WebSocket would bypass the token check."""
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    headers["Sec-WebSocket-Key"] = "AAAAAAAAAAAAAAAAAAAAAA=="
    assert status(server, "GET", "/weights", **headers) == 405


def access_control(token=TOKEN, host="127.0.0.1", app=None):
    """Return the middleware of a server that listens on a host."""
    return AccessControl(app, token=token, host=host, limits=Limits())


def refusal_status(control, path="/info", **headers):
    """Return the status of a refusal, 0 if the call is accepted."""
    pairs = [
        (name.replace("_", "-").encode(), value.encode("latin-1"))
        for name, value in {"host": "localhost", **headers}.items()
    ]
    refusal = control.refusal({"type": "http", "method": "GET", "path": path, "headers": pairs})
    return refusal[0] if refusal else 0


@pytest.mark.parametrize("path", ["/health", "/info"])
def test_web_pages_are_refused_on_loopback(path):
    """A loopback server refuses /health and /info to web pages, with and without the token."""
    for headers in ({}, BEARER):
        assert refusal_status(access_control(), path, **{**headers, "host": "evil.example"}) == 403
        assert refusal_status(access_control(), path, **{**headers, "origin": "http://evil"}) == 403


def test_token_decides_beyond_loopback():
    """Beyond loopback, unknown host names are accepted with the token; without it only /health is answered."""
    service = access_control(host="0.0.0.0")
    assert refusal_status(service, host="rollouts.cluster:8000", **BEARER) == 0
    assert refusal_status(service, host="rollouts.cluster:8000") == 401
    assert refusal_status(service, "/health", host="rollouts.cluster:8000") == 0
    assert refusal_status(service, "/health", host="rollouts.cluster", origin="http://evil.example") == 403


@given(st.text(st.characters(max_codepoint=255), max_size=40))
def test_random_host_names_are_refused(text):
    """Only the local names are accepted, in any case, with or without a port."""
    names = {"localhost", "127.0.0.1", "[::1]"}
    if refusal_status(access_control(None), host=text) == 0:
        name = text.lower()
        assert name in names or name.rpartition(":")[0] in names


HOST = b"Host: localhost\r\n"
POST, GET = b"POST /a HTTP/1.1\r\n" + HOST, b"GET /a HTTP/1.1\r\n" + HOST
INNER = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
NONE = b"0\r\n\r\n" + INNER
REQUESTS = read_cases(__file__, "refused_requests.yaml")["requests"]
REFUSED = {name: text.encode().replace(b"{inner}", INNER) for name, text in REQUESTS.items()}


@contextmanager
def serve_app(app):
    """Serve the application in a thread; yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, **UVICORN_OPTIONS))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        server.should_exit = True
        thread.join(500)
        listener.close()


@pytest.fixture
def guarded():
    """Serve an application behind the access rules; yield the address, and the calls that reached the application."""
    calls = []

    async def application(scope, _receive, send):
        calls.append((scope["method"], scope["path"]))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    with serve_app(access_control(None, app=application)) as address:
        yield SimpleNamespace(address=address, called=calls)


def send_raw(guarded, sent):
    """Send raw bytes; return the statuses of all responses."""
    came = b""
    with socket.create_connection(guarded.address, timeout=500) as connection, suppress(OSError):
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(2**16):
            came += part
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", came)]


def test_request_smuggling_is_refused(guarded):
    """Malformed or ambiguous requests are refused, and none of their bytes are read as a second call."""
    for name, sent in REFUSED.items():
        statuses = send_raw(guarded, sent)
        assert all(400 <= code < 500 for code in statuses), name
        assert not guarded.called, name


def test_chunked_body_is_refused(guarded):
    """The size of a chunked body is known only after reading it."""
    assert send_raw(guarded, POST + CHUNKED + b"\r\n2\r\nab\r\n" + NONE) == [411]


@pytest.mark.parametrize("between", [b"", b"Content-Length: 40\r\n"])
def test_connection_serves_one_call(guarded, between):
    """Bytes after a call are never read as another call."""
    assert send_raw(guarded, GET + between + b"\r\n" + GET + b"\r\n") == [200]
    assert guarded.called == [("GET", "/a")]


def test_absolute_uri_does_not_replace_the_host_header(guarded):
    """The Host header decides also for calls in the form that proxies get."""
    evil = b"GET http://localhost/a HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    assert send_raw(guarded, evil)[0] in (400, 403)
    assert not guarded.called


def test_override_headers_are_ignored(guarded):
    """Some web frameworks let a header override method or path."""
    more = b"X-HTTP-Method-Override: POST\r\nX-Original-URL: /weights\r\nX-Forwarded-Host: evil.example\r\n"
    assert send_raw(guarded, GET + more + b"\r\n") == [200]
    assert guarded.called == [("GET", "/a")]


@pytest.mark.parametrize("sent", [b"", b"GET /a HTTP/1.1\r\nHost: loc", GET + b"\r\nGET /a HTTP/1.1\r\n"])
def test_slow_request_head_times_out(guarded, monkeypatch, sent):
    """A connection with no head or half of one is closed; a complete call before it is answered."""
    monkeypatch.setattr(HttpConnection, "head_s", 0.2)
    with socket.create_connection(guarded.address, timeout=500) as connection:
        connection.sendall(sent)
        received = connection.makefile("rb").read()
    assert received.count(b"HTTP/1.1 200") == sent.count(b"\r\n\r\n")


def test_malformed_call_is_answered_once():
    """The application's late response is dropped, and nothing is raised."""
    ended = threading.Event()

    async def application(_scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        ended.set()

    with serve_app(application) as address, socket.create_connection(address, timeout=500) as connection:
        connection.sendall(b"POST /a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"no length of a chunk\r\n")
        assert re.findall(rb"HTTP/1\.1 (\d+)", connection.makefile("rb").read()) == [b"400"]
        assert ended.wait(500)


def test_slow_request_body_times_out():
    """The real application refuses a body whose rest does not arrive."""
    with ThreadPoolExecutor(1) as thread:
        engine = SimpleNamespace(name="none", policy_version=0)
        app = create_app(engine, thread, token=None, limits=Limits(call_s=0.3))
        with serve_app(app) as address, socket.create_connection(address, timeout=500) as connection:
            connection.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\na")
            answer = connection.recv(2**16)
    assert answer.split()[1] == b"408"


PARAMS = {"max_tokens": 4, "temperature": 1.0, "stop_ids": []}
WRONG = ["x"] * 5000


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (GenerateBody, {"params": PARAMS, "requests": [{"id": "a", "seed": 1, "prompt_ids": WRONG}]}),
        (GenerateBody, {"params": {**PARAMS, "stop_ids": WRONG}, "requests": []}),
        (GenerateBody, {"params": PARAMS, "requests": [{"prompt_ids": WRONG}] * 100}),
    ],
)  # fmt: skip
def test_validation_error_stays_short(model, body):
    """The error does not list each wrong id: a megabyte of ids would give a gigabyte of errors."""
    with pytest.raises(ValidationError) as error:
        model.model_validate(body)
    assert error.value.error_count() <= 8


@given(st.text(st.characters(max_codepoint=255), max_size=60))
def test_random_authorization_headers_are_refused(text):
    """A header text other than the token gives a refusal, not an exception."""
    expected = 0 if text.partition(" ")[2] == TOKEN and text.lower().startswith("bearer ") else 401
    assert refusal_status(access_control(), authorization=text) == expected
