"""The HTTP client retries safe calls, ends slow ones, and refuses invalid responses and other kinds of server."""

import time
from types import SimpleNamespace

import pytest

from grpo_core.config import RolloutConfig
from grpo_core.rollout import http_client as client
from grpo_core.rollout.engine import EngineError, EngineTimeoutError
from grpo_core.rollout.http_client import PROTOCOL, HttpClient
from grpo_core.rollout.remote_engines import RemoteEngine, engine_for
from grpo_core.rollout.wire import checksum
from tests.case_files import each_case, read_cases
from tests.grpo_core.simulated_server import simulate_server

CASES = read_cases(__file__, "refused_servers.yaml")

INFO = {
    "schema": PROTOCOL,
    "engine": "transformers",
    "policy_version": 3,
    "capabilities": {"seeds": True, "fingerprint": True, "sleep": True, "from_the_future": 1},
}


def http(server, timeout_s: float = 500) -> HttpClient:
    """Return a client of the simulated server."""
    return HttpClient("some", "127.0.0.1", server.port, timeout_s=timeout_s, token="secret")


def test_response_is_returned_and_token_and_checksum_are_sent():
    with simulate_server(lambda call: call.answer({"a": 1})) as server:
        assert http(server).json("POST", "/x", {"b": 2}) == {"a": 1}
    (call,) = server.calls
    assert (call.method, call.path, call.document()) == ("POST", "/x", {"b": 2})
    assert call.headers["authorization"] == "Bearer secret"
    assert call.headers["x-content-crc32"] == checksum(call.body)


def answer_corrupted(call):
    """Answer with a body that does not match its checksum."""
    sent = checksum(b'{"a": 1}')
    head = f"HTTP/1.1 200 OK\r\nX-Content-CRC32: {sent}\r\nContent-Length: 8\r\n\r\n"
    call.sock.sendall(head.encode() + b'{"a": 2}')


@pytest.mark.parametrize(
    "lose", [lambda call: None, lambda call: call.answer({"a": 1}, cut=3), answer_corrupted]
)
@pytest.mark.parametrize("repeat", [True, False])
def test_lost_response_is_retried_once_if_safe(lose, repeat):
    """With `repeat` a call whose response is lost is repeated once; without it the loss is an error."""

    def handle(call):
        if len(server.calls) == 1:
            lose(call)
        else:
            call.answer({"a": 1})

    with simulate_server(handle) as server:
        if repeat:
            assert http(server).json("GET", "/x", repeat=True) == {"a": 1}
        else:
            with pytest.raises(EngineError, match=r"some engine, http://127.0.0.1:\d+/x: .*server up"):
                http(server).json("GET", "/x")
        assert len(server.calls) == 1 + repeat


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 SIMULATED\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 200 "]
)
def test_slow_trickle_response_times_out(head):
    """Single bytes do not prolong the call, neither in the head nor in the body."""

    def handle(call):
        call.sock.sendall(head)
        while not call.over.wait(0.05):
            call.sock.sendall(b" ")

    with simulate_server(handle) as server:
        started = time.monotonic()
        with pytest.raises(EngineTimeoutError, match=r"no answer in 0.5 s \(rollout.timeout_s\)"):
            http(server, timeout_s=0.5).json("GET", "/x", repeat=True)
        assert time.monotonic() - started < 300


def test_status_503_is_retried_until_the_timeout(monkeypatch):
    """The call is repeated after status 503, unless the pause would exceed the timeout of a simulated clock."""

    def handle(call):
        busy = len(server.calls) <= 2
        call.answer({"detail": "busy"} if busy else {"a": 1}, status=503 if busy else 200)

    with simulate_server(handle) as server:
        assert http(server).json("POST", "/x") == {"a": 1}
        assert len(server.calls) == 3
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    def always(call):
        if len(server.calls) == 4:
            now[0] = 499.5  # a pause behind this answer would be too long
        call.answer({"detail": "busy"}, status=503)

    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with simulate_server(always) as server:
        with pytest.raises(EngineError, match="status 503: busy"):
            http(server).json("POST", "/x")
        assert len(server.calls) == 4


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        (b"<html>", 200, "status 200, and no JSON: b'<html>'"),
        (b"[1]", 200, r"expected a JSON object, got b'\[1\]'"),
        (b"", 200, "and no JSON"),
        (b"[" * 100_000, 200, "and no JSON"),
        (b'{"detail": "no such model"}', 404, "status 404: no such model"),
        (b'{"error": {"message": "too long", "code": 400}}', 400, "status 400: too long"),
        (b'{"error": "EngineDeadError"}', 500, "status 500: EngineDeadError"),
        (b'{"a": "' + b"x" * 2000 + b'"}', 200, "an answer of more than 1000 bytes"),
    ],
)
def test_invalid_responses_name_the_endpoint(monkeypatch, text, status, message):
    """Garbage, refusals and oversized responses are errors."""
    monkeypatch.setattr(client, "_MAX_ANSWER", 1000 if text.startswith(b'{"a"') else 2**30)
    with (
        simulate_server(lambda call: call.answer(text=text, status=status)) as server,
        pytest.raises(EngineError, match=f"some engine, http://127.0.0.1:[0-9]+/x: .*{message}"),
    ):
        http(server).json("GET", "/x")


@pytest.mark.parametrize("host", ["127.0.0.1", "no such host", "x" * 70])
def test_unreachable_server_is_an_engine_error(host):
    with pytest.raises(EngineError, match="is the server up"):
        HttpClient("some", host, 9, timeout_s=500).json("GET", "/x")


def serve_documents(documents):
    """Return a handler that answers each path with its document, and other paths with 404."""

    def handle(call):
        path = call.path.partition("?")[0]
        call.answer(documents.get(path, {"detail": "Not Found"}), status=200 if path in documents else 404)

    return handle


@each_case(CASES["servers"])
def test_other_servers_are_refused(tmp_path, wanted, documents, message):
    """The error says which kind of server was expected, or which call failed."""
    options = RolloutConfig(server=wanted, timeout_s=500)
    with simulate_server(serve_documents(documents)) as server, pytest.raises(EngineError, match=message):
        engine_for(options, "127.0.0.1", server.port, tmp_path)


@pytest.mark.parametrize("wanted", ["grpo-core", "vllm"])
def test_wrong_token_is_reported(tmp_path, wanted):
    """A wrong token is reported as such, not as another kind of server."""
    options = RolloutConfig(server=wanted, timeout_s=500)
    refusal = {"detail": "the token is missing or wrong"}
    with (
        simulate_server(lambda call: call.answer(refusal, status=401)) as server,
        pytest.raises(EngineError, match="status 401: the token is missing or wrong"),
    ):
        engine_for(options, "127.0.0.1", server.port, tmp_path)


def test_connects_to_our_server(tmp_path):
    """Unknown capabilities are ignored; one client can't put the server's engine to sleep."""
    with simulate_server(serve_documents({"/info": INFO})) as server:
        engine = engine_for(RolloutConfig(timeout_s=500), "127.0.0.1", server.port, tmp_path)
    assert isinstance(engine, RemoteEngine)
    assert (engine.name, engine.policy_version) == ("remote transformers", 3)
    assert engine.capabilities.fingerprint
    assert not engine.capabilities.sleep
    assert engine.capabilities.why_not["sleep"] == "other clients use the server"


@pytest.mark.parametrize("lacking", ["update", "seeds"])
def test_server_that_cannot_be_trained_with_is_refused(tmp_path, lacking):
    """The error has the server's own reason."""
    able = {**INFO["capabilities"], lacking: False, "why_not": {lacking: "it was started without"}}
    with (
        simulate_server(serve_documents({"/info": {**INFO, "capabilities": able}})) as server,
        pytest.raises(EngineError, match=rf"it can't be trained with \({lacking}\): it was started without"),
    ):
        engine_for(RolloutConfig(timeout_s=500), "127.0.0.1", server.port, tmp_path)


@each_case(CASES["infos"])
def test_incomplete_info_is_refused(broken, message):
    with (
        simulate_server(serve_documents({"/info": {**INFO, **broken}})) as server,
        pytest.raises(EngineError, match=f"remote.* engine.*{message}"),
    ):
        RemoteEngine("127.0.0.1", server.port, timeout_s=500)
