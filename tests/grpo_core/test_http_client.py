"""Calls to a server end in an answer or in a named error, within their time; and who answers is found out."""

from __future__ import annotations

import hashlib
import time
from types import SimpleNamespace

import pytest
import torch

from grpo_core.config import RolloutConfig
from grpo_core.rollout import http_client as client
from grpo_core.rollout.engine import EngineError, EngineTimeoutError, EngineUnreachableError
from grpo_core.rollout.http_client import PROTOCOL, HttpClient, identify
from grpo_core.rollout.remote import RemoteEngine, engine_for
from grpo_core.types import Request, SamplingParams
from tests.grpo_core.scripted import simulated

INFO = {
    "schema": PROTOCOL,
    "engine": "transformers",
    "policy_version": 3,
    "capabilities": {"seeds": True, "fingerprint": True, "sleep": True, "from_the_future": 1},
}


def http(server, timeout_s: float = 500) -> HttpClient:
    return HttpClient("some", "127.0.0.1", server.port, timeout_s=timeout_s, token="secret")


def test_an_answer_is_returned_and_the_token_is_sent():
    """The object itself; the token goes with every call."""
    with simulated(lambda call: call.answer({"a": 1})) as server:
        assert http(server).json("POST", "/x", {"b": 2}) == {"a": 1}
    (call,) = server.calls
    assert (call.method, call.path, call.document()) == ("POST", "/x", {"b": 2})
    assert call.headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize("lost", ["nothing", "half"])
@pytest.mark.parametrize("repeat", [True, False])
def test_a_lost_connection_is_tried_again_only_where_that_is_safe(lost, repeat):
    """Once, and only a call that changes nothing; otherwise the loss has its name."""

    def handle(call):
        if len(server.calls) == 1:
            if lost == "half":
                call.answer({"a": 1}, cut=3)
            return
        call.answer({"a": 1})

    with simulated(handle) as server:
        if repeat:
            assert http(server).json("GET", "/x", repeat=True) == {"a": 1}
        else:
            with pytest.raises(
                EngineUnreachableError, match=r"some engine, http://127.0.0.1:\d+/x: .*server up"
            ):
                http(server).json("GET", "/x")
        assert len(server.calls) == 1 + repeat


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 SIMULATED\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 200 "]
)
def test_an_answer_in_drops_is_over_at_the_time_limit(head):
    """A byte now and then does not prolong the call, neither in the head nor in the body."""

    def handle(call):
        call.sock.sendall(head)
        while not call.over.wait(0.05):
            call.sock.sendall(b" ")

    with simulated(handle) as server:
        started = time.monotonic()
        with pytest.raises(EngineTimeoutError, match=r"no answer in 0.5 s \(rollout.timeout_s\)"):
            http(server, timeout_s=0.5).json("GET", "/x", repeat=True)
        assert time.monotonic() - started < 300


def test_a_busy_server_is_asked_again_until_time_is_up(monkeypatch):
    """Status 503 means that nothing was done. The clock is the test's."""

    def handle(call):
        busy = len(server.calls) <= 2
        call.answer({"detail": "busy"} if busy else {"a": 1}, status=503 if busy else 200)

    with simulated(handle) as server:
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
    with simulated(always) as server:
        with pytest.raises(EngineError, match="status 503: busy"):
            http(server).json("POST", "/x")
        assert len(server.calls) == 4


@pytest.mark.parametrize(
    ("text", "status", "says"),
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
def test_other_answers_are_errors_that_name_the_place(monkeypatch, text, status, says):
    """Garbage, refusals and floods."""
    monkeypatch.setattr(client, "_MAX_ANSWER", 1000 if text.startswith(b'{"a"') else 2**30)
    with (
        simulated(lambda call: call.answer(text=text, status=status)) as server,
        pytest.raises(EngineError, match=f"some engine, http://127.0.0.1:[0-9]+/x: .*{says}"),
    ):
        http(server).json("GET", "/x")


@pytest.mark.parametrize("host", ["127.0.0.1", "no such host", "x" * 70])
def test_nobody_there_is_an_engine_error(host):
    """Whatever the address looks like."""
    with pytest.raises(EngineUnreachableError, match="is the server up"):
        HttpClient("some", host, 9, timeout_s=500).json("GET", "/x")


def serving(documents):
    """A handler that answers each path with its document, and others with 404."""

    def handle(call):
        path = call.path.partition("?")[0]
        call.answer(documents.get(path, {"detail": "Not Found"}), status=200 if path in documents else 404)

    return handle


@pytest.mark.parametrize(
    ("documents", "found"),
    [
        ({"/info": INFO}, "grpo-core"),
        ({"/openapi.json": {"paths": {"/v1/completions": {}, "/version": {}}}}, "vllm"),
        ({"/openapi.json": {"paths": {"/generate/": {}, "/health/": {}}}}, "trl"),
    ],
)
def test_who_answers_is_found_out(documents, found):
    """The server's own description decides which client is used."""
    with simulated(serving(documents)) as server:
        assert identify(http(server)) == found


@pytest.mark.parametrize(
    "documents",
    [
        {},
        {"/info": {"schema": "other"}},
        {"/info": [], "/openapi.json": []},
        {"/openapi.json": {"paths": {"/": {}}}},
    ],
)
def test_a_server_of_another_kind_is_refused_with_what_was_expected(documents):
    """All three are named."""
    with (
        simulated(serving(documents)) as server,
        pytest.raises(
            EngineError, match=r"no rollout server answers there.*grpo_core serve.*vllm serve.*trl vllm"
        ),
    ):
        identify(http(server))


def test_a_wrong_token_is_told_as_such():
    """Not as a server of another kind."""
    refusal = {"detail": "the token is missing or wrong"}
    with (
        simulated(lambda call: call.answer(refusal, status=401)) as server,
        pytest.raises(EngineError, match="/info: status 401: the token is missing or wrong"),
    ):
        identify(http(server))


@pytest.mark.parametrize(
    ("wanted", "documents", "says"),
    [
        ("vllm", {"/info": INFO}, "rollout.server = 'vllm' is `vllm serve`, but `python -m grpo_core serve`"),
        ("trl", {"/info": INFO}, "set rollout.server = 'grpo-core' or 'auto'"),
        ("grpo-core", {"/openapi.json": {"paths": {"/v1/completions": {}}}}, "`vllm serve` answers"),
        (
            "vllm",
            {"/openapi.json": {"paths": {"/generate/": {}}}},
            "`trl vllm-serve` of TRL 0.16 to 1.10 answers",
        ),
    ],
)
def test_another_server_than_was_named_is_refused(tmp_path, wanted, documents, says):
    """With what was expected, what answers, and what to set."""
    options = RolloutConfig(server=wanted, timeout_s=500)
    with simulated(serving(documents)) as server, pytest.raises(EngineError, match=says):
        engine_for(options, "127.0.0.1", server.port, tmp_path)


@pytest.mark.parametrize("wanted", ["auto", "grpo-core"])
def test_our_own_server_is_connected_to(tmp_path, wanted):
    """Capabilities that this version doesn't know are passed over; a server's engine never sleeps for one client."""
    options = RolloutConfig(server=wanted, timeout_s=500)
    with simulated(serving({"/info": INFO})) as server:
        engine = engine_for(options, "127.0.0.1", server.port, tmp_path)
    assert isinstance(engine, RemoteEngine)
    assert (engine.name, engine.policy_version) == ("remote transformers", 3)
    assert engine.capabilities.fingerprint
    assert not engine.capabilities.sleep
    assert engine.capabilities.why_not["sleep"] == "other clients use the server"


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"capabilities": 3}, "no capabilities that can be used"),
        ({"policy_version": "x"}, "no policy_version that can be used"),
        ({"policy_version": True}, "no policy_version that can be used"),
        ({"capabilities": {"seeds": True}}, "its capabilities can't be read"),
        ({"engine": None}, "no engine that can be used"),
    ],
)
def test_a_server_that_says_half_is_refused(broken, says):
    """An incomplete answer is an engine error."""
    with (
        simulated(serving({"/info": {**INFO, **broken}})) as server,
        pytest.raises(EngineError, match=f"remote.* engine.*{says}"),
    ):
        RemoteEngine("127.0.0.1", server.port, timeout_s=500)


def test_an_answer_changed_on_its_way_is_a_lost_one():
    """If the announced checksum does not match, the request is repeated once."""

    def handle(call):
        body, sent = b'{"a": 1}', b'{"a": 2}' if len(server.calls) == 1 else b'{"a": 1}'
        digest = hashlib.sha256(body).hexdigest()
        call.sock.sendall(
            f"HTTP/1.1 200 OK\r\nX-Content-SHA256: {digest}\r\nContent-Length: 8\r\n\r\n".encode() + sent
        )

    with simulated(handle) as server:
        assert http(server).json("GET", "/x", repeat=True) == {"a": 1}
        assert len(server.calls) == 2


class SimulatedOwn:
    """SIMULATED: our own server, as far as one client of it goes."""

    def __init__(self, *, stamps: bool) -> None:
        self.stamp, self.stamps, self.version = "", stamps, 3

    def __call__(self, call) -> None:
        if call.path == "/info":
            call.answer(INFO)
            return
        if call.path == "/weights":
            self.stamp, self.version = f"stamp {self.version}", int(call.headers["x-policy-version"])
        answer = {"policy_version": self.version, "fingerprint": "f"} | (
            {"weights": self.stamp} if self.stamps else {}
        )
        if call.path == "/generate":
            answer["completions"] = [
                {
                    "request_id": entry["id"],
                    "ids": [1],
                    "logprobs": [-1.0],
                    "versions": [self.version],
                    "finish_reason": "length",
                }
                for entry in call.document()["requests"]
            ]
            assert hashlib.sha256(call.body).hexdigest() == call.headers["x-content-sha256"]
        call.answer(answer)


@pytest.mark.parametrize("stamps", [True, False])
def test_weights_of_another_version_are_noticed_and_of_another_client_where_the_server_stamps_them(stamps):
    """For a server without stamps only the version is compared."""
    batch, params = [Request("r", (1,), 0)], SamplingParams(max_tokens=1)
    simulation = SimulatedOwn(stamps=stamps)
    with simulated(simulation) as server:
        engine = RemoteEngine("127.0.0.1", server.port, timeout_s=500)
        engine.update_weights([("a", torch.ones(1))], 4)
        assert engine.generate(batch, params)[0].versions == (4,)
        assert engine.fingerprint() == "f"
        simulation.stamp = "somebody's"
        if stamps:
            for call in (engine.fingerprint, lambda: engine.generate(batch, params)):
                with pytest.raises(EngineUnreachableError, match="the server lost the weights it was sent"):
                    call()
        engine.update_weights([("a", torch.ones(1))], 5)
        simulation.version = 6
        with pytest.raises(EngineUnreachableError, match="the server lost the weights it was sent"):
            engine.generate(batch, params)
        engine.close()
        with pytest.raises(EngineError, match="generate: the engine is closed"):
            engine.generate(batch, params)


def test_a_server_of_an_older_trl_is_refused(tmp_path):
    """It takes weights by NCCL alone: the run ends at its start, with what to use instead."""
    description = {"paths": {"/generate/": {}, "/health/": {}}}
    with (
        simulated(lambda call: call.answer(description)) as server,
        pytest.raises(
            EngineError, match=r"takes weights by NCCL alone, so it can't be trained with; use TRL 1\.11"
        ),
    ):
        engine_for(RolloutConfig(server="trl", timeout_s=500), "127.0.0.1", server.port, tmp_path)
