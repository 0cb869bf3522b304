"""Weights in the body of a request, and the calls that announce weights that went another way: a real server."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import safetensors.torch
import torch
import uvicorn

from grpo_core.rollout.engine import Capabilities, EngineError
from grpo_core.rollout.server.app import Limits, create_app
from grpo_core.rollout.weights.digest import checksum
from grpo_core.rollout.weights.flat import Flat
from grpo_core.rollout.weights.sync import Sender

TIMEOUT_S = 500


def weights(seed: int, large: int = 300_000) -> dict[str, torch.Tensor]:
    """Larger than what comes with the headers, and than a socket holds."""
    torch.manual_seed(seed)
    return {"large": torch.randn(large), "small": torch.randn(7, 3), "half": torch.randn(5).half()}


def upload_of(tensors) -> tuple[bytes, dict[str, str]]:
    """Body and headers, as our client sends them."""
    data = Flat(tensors.items(), 0).joined()
    return data.numpy().tobytes(), {"X-Content-Blocks": checksum(data), "Connection": "close"}


class StoringEngine:
    """A fake engine that stores copies of received weights."""

    name = "held"
    capabilities = Capabilities(seeds=True, fingerprint=False, sleep=False)

    def __init__(self):
        self.policy_version, self.tensors = -1, {}

    def update_weights(self, tensors, version):
        self.tensors = {name: tensor.clone() for name, tensor in tensors}
        self.policy_version = version

    def has_weights(self, tensors) -> bool:
        stored = self.tensors
        return stored.keys() == tensors.keys() and all(torch.equal(stored[n], v) for n, v in tensors.items())


class Server:
    """Our application around such an engine, under uvicorn in a thread."""

    def __init__(self):
        self.engine, self.thread = StoringEngine(), ThreadPoolExecutor(1)
        limits = Limits(weights_bytes=2**24)
        self.app = create_app(self.engine, self.thread, token=None, limits=limits)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        config = uvicorn.Config(self.app, log_level="error", http="h11", lifespan="off")
        self.server = uvicorn.Server(config)
        self.running = threading.Thread(target=lambda: asyncio.run(self.server.serve(sockets=[self.socket])))
        self.running.start()

    def request(self, path, body=None, headers=None):
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)) as connection:
            connection.request("POST", path, body, {"X-Policy-Version": "1", **(headers or {})})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def upload(self, tensors, **changed):
        body, headers = upload_of(tensors)
        answers = (self.request("/weights", body, {**headers, **changed}) for _ in range(2000))
        return next(answer for answer in answers if answer[0] != 503)  # another upload may not have ended yet

    def call(self, method, arguments, payload=None):
        assert payload is None
        status, answer = self.request(
            "/" + method.replace("_", "/"), json.dumps(arguments), {"Content-Type": "application/json"}
        )
        if status != 200:
            raise EngineError(f"status {status}: {answer['detail']}")
        return answer

    def close(self):
        self.server.should_exit = True
        self.running.join()
        self.socket.close()
        self.thread.shutdown()


@pytest.fixture(scope="module")
def server():
    """One for all of these."""
    with closing(Server()) as running:
        yield running


@pytest.mark.parametrize("large", [0, 1, 1_000_003])
def test_an_upload_arrives_bit_for_bit(server, large):
    """From a few bytes, all with the headers, to megabytes."""
    for seed in range(2):
        sent = weights(seed, large)
        assert server.upload(sent)[0] == 200
        assert server.engine.has_weights(sent)


def test_a_connection_can_be_used_again_after_a_parsed_upload(server):
    """Two uploads over one."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)) as connection:
        for seed in range(2):
            body, headers = upload_of(weights(seed))
            headers |= {"X-Policy-Version": "1", "Connection": "keep-alive"}
            connection.request("POST", "/weights", body, headers)
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
            assert server.engine.has_weights(weights(seed))


def test_any_client_can_announce_the_sha256_of_a_body(server):
    """Instead of our own checksum."""
    body = safetensors.torch.save(weights(4))
    digest = hashlib.sha256(body).hexdigest()
    assert server.request("/weights", body, {"X-Content-SHA256": digest, "Connection": "close"})[0] == 200
    assert server.engine.has_weights(weights(4))
    status, answer = server.request("/weights", body, {"X-Content-SHA256": "0" * 64})
    assert (status, "checksum" in answer["detail"]) == (400, True)


@pytest.mark.parametrize("fault", ["bit", "no checksum", "garbage", "short", "empty"])
def test_a_damaged_upload_is_refused_and_the_old_weights_kept(server, fault):
    """Each with the reason."""
    server.upload(weights(5))
    body, headers = upload_of(weights(6))
    damaged = bytearray(body)
    damaged[len(body) // 2] ^= 16
    body = {"bit": bytes(damaged), "garbage": b"garbage", "short": body[:-1], "empty": b""}.get(fault, body)
    if fault == "no checksum":
        del headers["X-Content-Blocks"]
    status, answer = server.request("/weights", body, headers)
    assert (status, "checksum" in answer["detail"]) == (400, True)
    assert server.engine.has_weights(weights(5))


def test_a_client_that_dies_in_the_middle_leaves_the_server_as_it_was(server):
    """The next upload works."""
    server.upload(weights(7))
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as client:
            client.sendall(
                b"POST /weights HTTP/1.1\r\nHost: localhost\r\nX-Policy-Version: 1\r\n"
                b"Content-Length: 9000000\r\nConnection: close\r\n\r\n" + b"x" * 200_000
            )
    assert server.engine.has_weights(weights(7))
    assert server.upload(weights(8))[0] == 200
    assert server.engine.has_weights(weights(8))


def test_a_client_beside_the_server_sends_through_shared_memory(server):
    """Only the control messages use HTTP."""
    with closing(Sender("shm", server.call)) as sender:
        for version in (50, 51):
            sent = weights(version)
            assert sender.send(sent.items(), version) == version
            assert server.engine.has_weights(sent)


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("open", {"name": "/etc/passwd"}, 422, "size: Field required"),
        ("open", {"name": "/etc/passwd", "size": 10}, 422, "nothing that a sender makes"),
        ("open", {"name": "/proc/self/fd/0", "size": 10}, 422, "nothing that a sender makes"),
        ("open", {"name": "/proc/1/fd/99999", "size": 10}, 422, "weight sync by shared memory"),
        ("open", {"name": "/proc/1/fd/9", "size": 2**30}, 413, "at most"),
        ("load", {"version": 0, "size": 9, "generation": 1}, 422, "open them first"),
        ("load", {"version": -1, "size": 9, "generation": 1}, 422, "greater than or equal to 0"),
        ("load", {"version": 0, "size": 2**30, "generation": 1}, 413, "at most"),
    ],
)
def test_what_a_client_may_not_ask_for(server, path, body, status, says):
    """Each is refused with its reason, and the server continues."""
    actual, answer = server.request(f"/sync/{path}", json.dumps(body), {"Content-Type": "application/json"})
    assert (actual, says in json.dumps(answer)) == (status, True), answer
