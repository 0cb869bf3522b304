"""The rollout server is tested over real HTTP: its endpoints, uploads of weights, the calls it refuses, and its end.

Its client detects another client's weights and a stopped server; a run can use an external server.
"""

import http.client
import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from unittest import mock

import pytest
import safetensors.torch
import torch

from grpo_core.config import ModelConfig, TaskConfig
from grpo_core.rollout.engine import EngineError, EngineTimeoutError
from grpo_core.rollout.remote_engines import RemoteEngine
from grpo_core.rollout.server.process import ServerProcess
from grpo_core.rollout.wire import CHECKSUM, checksum
from grpo_core.tasks.model import load_model, make_tiny
from grpo_core.types import Request, SamplingParams
from tests.grpo_core.conftest import engine_config, own_server, run_training

TOKEN = "correct horse"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(model_dir):
    """Yield a server that requires a token."""
    with mock.patch("secrets.token_urlsafe", return_value=TOKEN):
        process = ServerProcess(engine_config(max_length=256), model_dir)
    with closing(process):
        yield process


def call(server, method, path, body=b"", token=TOKEN, **headers):
    """Make one call; return its status and JSON."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=500)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def generate_body(**changes) -> bytes:
    """Return the body of a valid generate call with these changes."""
    body = {
        "requests": [{"id": "a", "prompt_ids": [0, 1, 10], "seed": 3}],
        "params": {"max_tokens": 4, "temperature": 1.0, "stop_ids": [11]},
    }
    return json.dumps({**body, **changes}).encode()


def test_info_identifies_the_server(server):
    """/health answers, /info names protocol and engine, and /openapi.json describes the endpoints."""
    assert call(server, "GET", "/health") == (200, {"status": "ok"})
    status, info = call(server, "GET", "/info")
    assert (status, info["schema"], info["engine"]) == (200, "grpo-doctor.serve.v1", "transformers")
    status, description = call(server, "GET", "/openapi.json")
    ours = {"/health", "/info", "/generate", "/sync/load", "/weights", "/fingerprint"}
    assert ours <= set(description["paths"])


def test_info_lists_capabilities_and_limits(server):
    """All capabilities are listed, and the false ones have reasons."""
    info = call(server, "GET", "/info")[1]
    can = dict(info["capabilities"])
    assert {"seeds", "fingerprint", "sleep", "update", "truncation"} == set(can) - {"why_not"}
    assert set(can["why_not"]) >= {name for name, able in can.items() if able is False}
    assert (info["calls"], info["limits"]["call_s"]) == (0, 500.0)


@pytest.mark.parametrize("token", [None, "wrong", ""])
@pytest.mark.parametrize("path", ["/info", "/generate", "/weights", "/openapi.json", "/no/such"])
def test_only_health_needs_no_token(server, token, path):
    """/health needs no token; other calls without the right one get status 401."""
    assert call(server, "GET", "/health", token=token) == (200, {"status": "ok"})
    assert call(server, "POST" if path in ("/generate", "/weights") else "GET", path, token=token)[0] == 401


@pytest.mark.parametrize(
    "body",
    [
        b"", b"not json", b"[]", generate_body(requests=[]),
        generate_body(params={"max_tokens": 4, "temperature": 0, "stop_ids": []}),
        generate_body(params={"max_tokens": 4, "temperature": 1.0}),
        generate_body(params={"max_tokens": 400, "temperature": 1.0, "stop_ids": []}),
        generate_body(params={"max_tokens": 4, "temperature": 1.0, "stop_ids": [2**64]}),
        generate_body(requests=[{"id": "a", "prompt_ids": [99], "seed": 1}]),
        generate_body(requests=[{"id": "a", "prompt_ids": [-1], "seed": 1}]),
        generate_body(requests=[{"id": "a", "prompt_ids": [1], "seed": 2**63}]),
        generate_body(requests=[{"id": "a", "prompt_ids": ["1"], "seed": 1}]),
        generate_body(requests=[{"id": "a", "prompt_ids": [1], "seed": 1}] * 2),
        generate_body(requests=[{"id": "\ud800", "prompt_ids": [1], "seed": 1}]),
        generate_body(params={"max_tokens": 4, "temperature": float("nan"), "stop_ids": []}),
        generate_body(params={"max_tokens": 4, "temperature": 1.0, "stop_ids": [], "x": "\ud800"})[:-1],
    ],
)  # fmt: skip
def test_invalid_generate_calls_get_status_422(server, body):
    """An invalid call gets the reason, and the server continues."""
    status, answer = call(server, "POST", "/generate", body, **JSON)
    assert (status, isinstance(answer["detail"], str)) == (422, True)
    assert call(server, "POST", "/generate", generate_body(), **JSON)[0] == 200


def weights_upload(model_dir, version=0):
    """Return body and headers of a valid upload."""
    body = safetensors.torch.save({n: t.detach() for n, t in load_model(model_dir).named_parameters()})
    return body, {CHECKSUM: checksum(body), "X-Policy-Version": str(version)}


def stored_weights(server):
    """Return the server's fingerprint and version of its weights."""
    digest = call(server, "GET", "/fingerprint")[1]["fingerprint"]
    return digest, call(server, "GET", "/info")[1]["policy_version"]


@pytest.mark.parametrize(
    "fault",
    [
        "checksum", "no checksum", "garbage", "empty", "truncated", "other model", "unknown type",
        "65-bit dimension", "stride overflow", "version", "no version",
    ],
)  # fmt: skip
def test_invalid_uploads_keep_the_old_weights(server, model_dir, fault):
    """Each invalid upload is refused, for example one without a checksum, and the weights stay as they were."""
    before = stored_weights(server)
    body, headers = weights_upload(model_dir)
    bodies = {"garbage": b"garbage", "empty": b"", "truncated": body[:-8]}
    header = b'{"a":{"dtype":"F6_E2M3","shape":[8],"data_offsets":[0,6]}}'
    bodies["unknown type"] = len(header).to_bytes(8, "little") + header + bytes(6)
    for name, shape in (("65-bit dimension", [2**64 - 1, 0]), ("stride overflow", [0, *[2**62] * 3])):
        header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
        bodies[name] = len(header).to_bytes(8, "little") + header
    bodies["other model"] = safetensors.torch.save({"lm_head.weight": torch.zeros(2, 2)})
    body = bodies.get(fault, body)
    headers[CHECKSUM] = "0" * 8 if fault == "checksum" else checksum(body)
    headers["X-Policy-Version"] = "-3" if fault == "version" else "1"
    if fault.startswith("no "):
        del headers["X-Policy-Version" if fault == "no version" else CHECKSUM]
    status, answer = call(server, "POST", "/weights", body, **headers)
    assert (status in (400, 422), isinstance(answer["detail"], str)) == (True, True), answer
    assert stored_weights(server) == before


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"name": "/etc/passwd"}, "version: Field required"),
        ({"name": "/etc/passwd", "version": -1}, "greater than or equal to 0"),
        ({"name": "/etc/passwd", "version": 1}, "nothing that a sender makes"),
        ({"name": "/proc/self/fd/0", "version": 1}, "nothing that a sender makes"),
        ({"name": "/proc/1/fd/99999", "version": 1}, "weight sync by shared memory"),
    ],
)
def test_foreign_shared_memory_is_refused(server, body, message):
    """A path that no sender made, or a call without a valid version, is refused with its reason; the weights stay."""
    before = stored_weights(server)
    status, answer = call(server, "POST", "/sync/load", json.dumps(body).encode(), **JSON)
    assert (status, message in answer["detail"]) == (422, True), answer
    assert stored_weights(server) == before


def test_oversized_bodies_are_refused_by_their_header(server):
    """A body over the limit is refused without being read."""
    assert call(server, "POST", "/weights", **{"Content-Length": str(10**12)})[0] == 413


def begin_upload(server, model_dir):
    """Send half of an upload; return the connection and the other half."""
    body, headers = weights_upload(model_dir, version=8)
    connection = http.client.HTTPConnection(server.host, server.port, timeout=500)
    headers |= {"Authorization": f"Bearer {TOKEN}", "Content-Length": str(len(body))}
    connection.request("POST", "/weights", body[: len(body) // 2], headers)
    return connection, body[len(body) // 2 :]


def upload_until_accepted(server, model_dir, version):
    """Upload until the status isn't 503, because another upload may not have ended; return status and version."""
    body, headers = weights_upload(model_dir, version)
    answers = (call(server, "POST", "/weights", body, **headers) for _ in range(2000))
    status, answer = next(answer for answer in answers if answer[0] != 503)
    return status, answer.get("policy_version")


def test_second_concurrent_upload_gets_status_503(server, model_dir):
    """The second of two uploads is refused, the first is accepted, and completions are sampled meanwhile."""
    upload_until_accepted(server, model_dir, 7)
    connection, rest = begin_upload(server, model_dir)
    with closing(connection):
        body, headers = weights_upload(model_dir)
        # The first is only known to be at the server's once another is refused.
        assert any(call(server, "POST", "/weights", body, **headers)[0] == 503 for _ in range(2000))
        assert call(server, "POST", "/generate", generate_body(), **JSON)[0] == 200
        connection.send(rest)
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())["policy_version"]) == (200, 8)


def test_aborted_upload_changes_nothing(server, model_dir):
    """The weights stay as they were, and the next upload works, also if a client repeats it."""
    before = stored_weights(server)
    for _ in range(3):
        begin_upload(server, model_dir)[0].close()
    assert stored_weights(server) == before
    assert [upload_until_accepted(server, model_dir, 9) for _ in range(2)] == [(200, 9)] * 2


def test_concurrent_clients_get_their_own_completions(server):
    """Eight calls in flight return the same completions as alone."""
    engine = RemoteEngine(server.host, server.port, timeout_s=500, token=TOKEN)
    params = SamplingParams(max_tokens=6, stop_ids=(11,))
    batches = [[Request(f"{i}.{j}", (i, j, 10), seed=i * 10 + j) for j in range(3)] for i in range(8)]
    alone = [engine.generate(batch, params) for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda batch: engine.generate(batch, params), batches))
    assert together == alone


def test_weights_of_another_client_are_detected(server, model_dir):
    """Another client's upload is noticed under the same version and another; so are completions of another version."""
    engine, other = (RemoteEngine(server.host, server.port, timeout_s=500, token=TOKEN) for _ in range(2))
    tensors, batch = dict(load_model(model_dir).named_parameters()), [Request("r", (1,), seed=0)]
    params, lost = SamplingParams(max_tokens=1), "the server lost the weights it was sent"
    for version in (10, 11):
        engine.update_weights(tensors.items(), 10)
        assert engine.generate(batch, params)[0].versions == (10,)
        assert engine.fingerprint()
        other.update_weights(tensors.items(), version)
        for call_engine in (engine.fingerprint, lambda: engine.generate(batch, params)):
            with pytest.raises(EngineError, match=lost):
                call_engine()
    engine.update_weights(tensors.items(), 10)
    engine.policy_version = 9
    with pytest.raises(EngineError, match=lost):
        engine.generate(batch, params)


def test_stopped_server_is_a_timeout(server):
    """A stopped process keeps its port open: only a timeout detects it."""
    engine = RemoteEngine(server.host, server.port, timeout_s=500, token=TOKEN)
    engine._http.timeout_s = 0.5
    os.kill(server.pid, signal.SIGSTOP)
    while ") T " not in Path(f"/proc/{server.pid}/stat").read_text():  # a stop takes its time
        threading.Event().wait(0.01)
    try:
        with pytest.raises(EngineTimeoutError, match=r"no answer in 0.5 s \(rollout.timeout_s\)"):
            engine.fingerprint()
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert call(server, "GET", "/health")[0] == 200


def test_run_uses_an_external_server(server, model_dir, short_run, monkeypatch):
    """A run uses host, port and token; the server outlives it and keeps the last published version."""
    monkeypatch.setenv("GRPO_CORE_TOKEN", TOKEN)
    settings = {"rollout.port": server.port, "model.path": model_dir, "train.steps": 2}
    document, _ = run_training(short_run("server", **settings))
    assert document["syncs_proven"] == 2
    assert document["engine"] == "remote transformers"
    assert call(server, "GET", "/info")[1]["policy_version"] == 1


def accepts(server) -> bool:
    """Return whether the server accepts connections."""
    with suppress(OSError), socket.create_connection((server.host, server.port), timeout=500):
        return True
    return False


def test_second_ctrl_c_ends_a_call_without_a_traceback(forked_servers, model_dir, capfd):
    """The client of a half-sent call gets status 503, and the server ends without a traceback."""
    capfd.readouterr()
    with own_server(forked_servers, model_dir) as (process, server):
        assert server.pid == process.pid
        with socket.create_connection((server.host, server.port), timeout=500) as connection:
            connection.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\na")
            assert call(server, "GET", "/health", token=None)[0] == 200  # the server has read the line above
            process.send_signal(signal.SIGINT)
            while accepts(server):
                pass
            process.send_signal(signal.SIGINT)
            assert connection.makefile("rb").readline().split()[1] == b"503"
        assert process.wait(timeout=500) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_sigterm_ends_a_running_call(forked_servers, tmp_path, capfd):
    """After SIGTERM a running call gets status 503, the server ends, and stderr is empty."""
    make_tiny(tmp_path, ModelConfig(max_length=200_100), TaskConfig().letters, seed=0)
    capfd.readouterr()
    options = ("--model.max_length=200100", "--rollout.timeout_s=600")
    body = generate_body(params={"max_tokens": 200_000, "temperature": 1.0, "stop_ids": []})
    program = "tests.grpo_core.impatient_server"  # a running call would take the CPU for 9 s
    server_process = own_server(forked_servers, tmp_path, *options, program=program)
    with server_process as (process, server), ThreadPoolExecutor(1) as pool:
        running = pool.submit(call, server, "POST", "/generate", body, None, **JSON)
        while not call(server, "GET", "/info", token=None)[1]["calls"]:
            assert not running.done()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=500) == 0
        status, answer = running.result(timeout=500)
    assert (status, answer["detail"]) == (503, "the server is stopping")
    assert capfd.readouterr().err == ""
