"""The reference server over real HTTP: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import safetensors.torch
from fastapi import HTTPException

from grpo_core import run
from grpo_core.engines import EngineSpec
from grpo_core.engines.base import EngineError, EngineTimeoutError
from grpo_core.engines.frames import start_child
from grpo_core.engines.remote import RemoteEngine
from grpo_core.model import load_model
from grpo_core.serve.app import Owner
from grpo_core.serve.launch import ServerProcess
from grpo_core.types import Request, SamplingParams

TOKEN = "correct horse"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(model_dir):
    """A server that wants a token."""
    os.environ["GRPO_CORE_TOKEN"] = TOKEN
    try:
        process = ServerProcess(EngineSpec("transformers", str(model_dir), max_model_len=256), timeout_s=100)
    finally:
        del os.environ["GRPO_CORE_TOKEN"]
    with closing(process):
        yield process


def call(server, method, path, body=b"", token=TOKEN, **headers):
    """Status and JSON of one call."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def generate_body(**changes) -> bytes:
    """A valid generate call, changed."""
    body = {
        "requests": [{"id": "a", "prompt_ids": [0, 1, 10], "seed": 3}],
        "params": {"max_tokens": 4, "temperature": 1.0, "stop_ids": [11]},
    }
    return json.dumps({**body, **changes}).encode()


def test_it_says_who_it_is(server):
    """Health without the engine, info with it, a description of its own interface."""
    assert call(server, "GET", "/health") == (200, {"status": "ok"})
    status, info = call(server, "GET", "/info")
    assert (status, info["schema"], info["engine"]) == (200, "grpo-doctor.serve.v1", "transformers")
    status, description = call(server, "GET", "/openapi.json")
    assert {"/health", "/info", "/generate", "/weights", "/fingerprint"} <= set(description["paths"])


@pytest.mark.parametrize("token", [None, "wrong", ""])
@pytest.mark.parametrize("path", ["/health", "/generate", "/weights", "/openapi.json"])
def test_without_the_token_nothing_is_answered(server, token, path):
    """Nor is a body read."""
    assert call(server, "POST" if path in ("/generate", "/weights") else "GET", path, token=token)[0] == 401


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        generate_body(requests=[]),
        generate_body(params={"max_tokens": 4, "temperature": 0, "stop_ids": []}),
        generate_body(params={"max_tokens": 4, "temperature": 1.0}),
        generate_body(params={"max_tokens": 400, "temperature": 1.0, "stop_ids": []}),
        generate_body(requests=[{"id": "a", "prompt_ids": [99], "seed": 1}]),
        generate_body(requests=[{"id": "a", "prompt_ids": [-1], "seed": 1}]),
        generate_body(requests=[{"id": "a", "prompt_ids": [1], "seed": 2**63}]),
    ],
)
def test_bad_generate_calls_are_the_clients_fault(server, body):
    """Status 422 with the reason, and the server goes on."""
    status, answer = call(server, "POST", "/generate", body, **JSON)
    assert (status, "detail" in answer) == (422, True)
    assert call(server, "POST", "/generate", generate_body(), **JSON)[0] == 200


@pytest.mark.parametrize("fault", ["checksum", "garbage", "truncated", "version", "no version"])
def test_damaged_weights_are_refused_and_the_old_ones_kept(server, model_dir, fault):
    """A wrong checksum, no safetensors, cut off, a version that is none."""
    before = call(server, "GET", "/fingerprint")
    body = safetensors.torch.save({n: t.detach() for n, t in load_model(model_dir).named_parameters()})
    body = {"garbage": b"garbage", "truncated": body[:-8]}.get(fault, body)
    digest = "0" * 64 if fault == "checksum" else hashlib.sha256(body).hexdigest()
    headers = {"X-Content-SHA256": digest, "X-Policy-Version": "-3" if fault == "version" else "1"}
    if fault == "no version":
        del headers["X-Policy-Version"]
    status, answer = call(server, "POST", "/weights", body, **headers)
    assert (400 <= status < 500, "detail" in answer) == (True, True)
    assert call(server, "GET", "/fingerprint") == before


def test_oversized_bodies_are_refused_by_their_header(server):
    """Before a byte of them is read."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    with closing(connection):
        connection.putrequest("POST", "/weights")
        connection.putheader("Authorization", f"Bearer {TOKEN}")
        connection.putheader("Content-Length", str(10**12))
        connection.endheaders()
        assert connection.getresponse().status == 413


def test_clients_at_once_do_not_disturb_each_other(server):
    """Eight calls in flight: each gets the completions it gets alone."""
    engine = RemoteEngine(server.host, server.port, timeout_s=60, token=TOKEN)
    params = SamplingParams(max_tokens=6, stop_ids=(11,))
    batches = [[Request(f"{i}.{j}", (i, j, 10), seed=i * 10 + j) for j in range(3)] for i in range(8)]
    alone = [engine.generate(batch, params) for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda batch: engine.generate(batch, params), batches))
    assert together == alone


def test_a_server_that_is_not_there_is_named():
    """With address and path."""
    with pytest.raises(
        EngineError, match=r"http://127.0.0.1:9/info: ConnectionRefusedError.*is the server up"
    ):
        RemoteEngine("127.0.0.1", 9, timeout_s=5)


def test_a_refusal_reaches_the_client_with_its_reason(server):
    """Here, of the token."""
    with pytest.raises(EngineError, match="status 401: the token is missing or wrong"):
        RemoteEngine(server.host, server.port, timeout_s=5, token="wrong")


def test_a_server_that_does_not_answer_in_time_is_a_timeout(server):
    """A stopped process keeps its port open: only the clock can tell."""
    engine = RemoteEngine(server.host, server.port, timeout_s=0.5, token=TOKEN)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(EngineTimeoutError, match=r"no answer in 0.5 s \(rollout.timeout_s\)"):
            engine.fingerprint()
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert call(server, "GET", "/health")[0] == 200


def test_an_address_others_can_reach_needs_a_token(model_dir):
    """Refused before anything starts, with the remedy."""
    command = ["-m", "grpo_core", "serve", "--model.path", str(model_dir), "--rollout.host", "0.0.0.0"]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "set GRPO_CORE_TOKEN in the environment" in done.stderr


def test_a_run_can_use_a_server_that_runs_already(server, model_dir, short_run, monkeypatch):
    """By host, port and token; the server outlives the run and holds its last published version."""
    monkeypatch.setenv("GRPO_CORE_TOKEN", TOKEN)
    settings = {"rollout.port": server.port, "model.path": model_dir, "train.steps": 2}
    document = run.train(short_run("server", **settings), lambda entry: None)
    assert (document["outcome"], document["syncs_proven"]) == ("ok", 2), document["error"]
    assert call(server, "GET", "/info")[1]["policy_version"] == 1


def test_a_full_queue_is_told_to_come_back():
    """Status 503 for the call too many; when one ends, there is room again."""
    calls = {}

    async def all_at_once():
        with ThreadPoolExecutor(1) as thread:
            owner = Owner(None, thread, waiting=1)
            gate = threading.Event()
            first = asyncio.create_task(owner.call(lambda engine: gate.wait(30)))
            await asyncio.sleep(0)
            with pytest.raises(HTTPException) as caught:
                await owner.call(lambda engine: None)
            calls["status"] = caught.value.status_code
            gate.set()
            calls["first"] = await first
            calls["next"] = await owner.call(lambda engine: "served")

    asyncio.run(all_at_once())
    assert calls == {"status": 503, "first": True, "next": "served"}


@pytest.mark.slow
def test_sigterm_ends_it_in_order(model_dir):
    """After one line of JSON that says where it listens."""
    process = start_child(["grpo_core", "serve", "--model.path", str(model_dir)], threads=1)
    where = json.loads(process.stdout.readline())
    assert where["pid"] == process.pid
    assert where["port"] > 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    process.stdin.close()
    process.stdout.close()
