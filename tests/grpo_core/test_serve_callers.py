"""Who may call a server: the rules alone, and what a page in a browser gets of a real one that asks for no token."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.rollout.pipes import end_child, start_child
from grpo_core.rollout.server.guard import Callers

TOKEN = "of the test"
BEARER = {"authorization": [f"Bearer {TOKEN}"]}


@pytest.fixture(scope="module")
def server(model_dir):
    """What stands between it and other pages is the guard alone."""
    flags = ["--exit-with-stdin", "--allow-unauthenticated", f"--model.path={model_dir}"]
    process = start_child(["grpo_core", "serve", *flags], threads=1)
    where = json.loads(process.stdout.readline())
    yield SimpleNamespace(**where)
    end_child(process, grace_s=500)
    process.stdout.close()


def status(server, method, path, headers=(), body=b""):
    """Of one call; the Host is the server's own where it is not given."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=500)
    with closing(connection):
        connection.putrequest(method, path, skip_host=any(name.lower() == "host" for name, _ in headers))
        for name, value in [*headers, ("Content-Length", str(len(body)))]:
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        response.read()
        return response.status


@pytest.mark.parametrize("path", ["/abort", "/weights", "/generate", "/reset_prefix_cache", "/sync/open"])
@pytest.mark.parametrize(
    "headers",
    [
        [("Host", "evil.example:8000")],  # DNS rebinding: to the browser, the page's own server
        [("Origin", "http://evil.example")],
        [("Origin", "http://localhost:3000")],  # another server of this machine
        [("Origin", "null")],
        [("Sec-Fetch-Site", "cross-site")],
        [("Sec-Fetch-Site", "same-site")],
    ],
)
def test_a_web_page_may_call_nothing(server, path, headers):
    """However it gets here, and whatever it calls; the same call without these headers is taken."""
    assert status(server, "POST", path, headers) == 403
    assert status(server, "POST", path) != 403


def test_people_and_programs_may_call_by_any_name_of_this_machine(server):
    """By address or name, with or without a port; a person who types the address into a browser, too."""
    for host in (f"127.0.0.1:{server.port}", "localhost", f"LOCALHOST:{server.port}", "[::1]:80"):
        assert status(server, "GET", "/info", [("Host", host)]) == 200, host
    own = [("Host", "localhost"), ("Origin", "http://localhost"), ("Sec-Fetch-Site", "same-origin")]
    assert status(server, "GET", "/info", own) == 200
    assert status(server, "GET", "/info", [("Sec-Fetch-Site", "none")]) == 200


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect"])
def test_there_is_no_page_with_scripts_of_others(server, path):
    """The description for programs is there."""
    assert status(server, "GET", path) == 404
    assert status(server, "GET", "/openapi.json") == 200


def test_who_calls_is_who_is_connected(server):
    """Not who a header says: a server could be made to connect to anybody, or to open somebody's shared memory."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=500)
    body = json.dumps({"kind": "gloo", "host": "10.9.9.9", "port": 9}).encode()
    with closing(connection):
        headers = {"Content-Type": "application/json", "X-Forwarded-For": "10.9.9.9"}
        connection.request("POST", "/sync/open", body, headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
    assert (response.status, "client's own address 127.0.0.1, not at 10.9.9.9" in answer["detail"]) == (
        422,
        True,
    )


def test_a_websocket_is_not_spoken(server):
    """It would pass where calls are asked for a token."""
    headers = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")]
    assert (
        status(server, "GET", "/weights", [*headers, ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")])
        == 405
    )


def refused(callers, path="/info", local="127.0.0.1", **headers):
    """The status of a refusal, 0 where there is none."""
    found = callers.refused(path, {"host": ["localhost"], **headers}, local)
    return found[0] if found else 0


def test_without_the_token_there_is_nothing_but_liveness():
    """A wrong one counts as none, and one that is said twice."""
    callers = Callers(TOKEN, "127.0.0.1")
    assert refused(callers) == 401
    assert refused(callers, authorization=["Bearer wrong"]) == 401
    assert refused(callers, "/health") == refused(callers, "/health/") == 0
    assert refused(callers, **BEARER) == 0
    assert refused(callers, authorization=["Bearer wrong", *BEARER["authorization"]]) == 400


@pytest.mark.parametrize("path", ["/health", "/info"])
def test_liveness_is_not_for_web_pages_either(path):
    """With the token or without, at a server of this machine."""
    for headers in ({}, BEARER):
        assert refused(Callers(TOKEN, "127.0.0.1"), path, **{**headers, "host": ["evil.example"]}) == 403
        assert refused(Callers(TOKEN, "127.0.0.1"), path, **{**headers, "origin": ["http://evil"]}) == 403


def test_a_service_is_called_by_names_that_it_does_not_know():
    """Beyond loopback: by who has the token; by others at its address, and only to see whether it lives."""
    callers = Callers(TOKEN, "0.0.0.0")
    assert refused(callers, local="10.0.0.5", host=["rollouts.cluster:8000"], **BEARER) == 0
    assert refused(callers, "/health", "10.0.0.5", host=["rollouts.cluster:8000"]) == 403
    assert refused(callers, "/health", "10.0.0.5", host=["10.0.0.5:8000"]) == 0
    assert refused(callers, "/health", "::ffff:10.0.0.5", host=["10.0.0.5:8000"]) == 0
    assert refused(callers, "/health", "10.0.0.5", host=["10.0.0.6:8000"]) == 403


@given(st.text(st.characters(max_codepoint=255), max_size=40))
def test_no_text_is_taken_for_a_name_of_ours(text):
    """But one of the few that are, in small letters and before a port."""
    callers = Callers(None, "127.0.0.1")
    names = {"localhost", "127.0.0.1", "::1", "[::1]"}
    if refused(callers, host=[text]) == 0:
        name = text.lower()
        assert name in names or name.rpartition(":")[0] in names


@given(st.text(st.characters(max_codepoint=255), max_size=60))
def test_no_text_is_taken_for_the_token(text):
    """Whatever stands in the header, it is an answer and not an error."""
    wanted = 0 if text.partition(" ")[2] == TOKEN and text.lower().startswith("bearer ") else 401
    assert refused(Callers(TOKEN, "127.0.0.1"), authorization=[text]) == wanted


@pytest.mark.parametrize("name", ["x-policy-version", "x-content-sha256"])
def test_what_weights_are_is_said_once(name):
    """Of two versions, or two checksums, one was taken."""
    assert refused(Callers(TOKEN, "127.0.0.1"), "/weights", **BEARER, **{name: ["1", "2"]}) == 400
