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
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
import uvicorn
from fastapi import FastAPI, Header, HTTPException, Request
from grpo_core.rollout.serve import connections, uploads

from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.remote import Upload
from grpo_core.rollout.server.weight_routes import add_routes
from grpo_core.rollout.weights.digest import Checksum
from grpo_core.rollout.weights.flat import Flat
from grpo_core.rollout.weights.sync import open_sender

TIMEOUT_S = 500


def weights(seed: int, large: int = 300_000) -> dict[str, torch.Tensor]:
    """Larger than what comes with the headers, and than a socket holds."""
    torch.manual_seed(seed)
    return {"large": torch.randn(large), "small": torch.randn(7, 3), "half": torch.randn(5).half()}


class Held:
    """Stands for an engine: keeps copies of what it is given."""

    name = "held"

    def __init__(self):
        self.policy_version, self.tensors = -1, {}

    def update_weights(self, tensors, version):
        self.tensors = {name: tensor.clone() for name, tensor in tensors}
        self.policy_version = version

    def holds(self, tensors) -> bool:
        held = self.tensors
        return held.keys() == tensors.keys() and all(torch.equal(held[n], v) for n, v in tensors.items())


class Owner:
    """Runs what it is given in the engine's one thread."""

    def __init__(self, engine):
        self.engine, self.thread = engine, ThreadPoolExecutor(1)

    async def call(self, function):
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, function, self.engine)
        except EngineError as error:
            raise HTTPException(422, str(error)) from error


class Server:
    """An application with one upload route and the routes of the control channel, under uvicorn in a thread."""

    def __init__(self, root):
        self.engine, self.timeout_s, self.staging = Held(), TIMEOUT_S, uploads.Staging()
        self.root, self.app, self.owner = root, FastAPI(), Owner(self.engine)
        limits = SimpleNamespace(weights_bytes=2**24)
        add_routes(self.app, self.owner, limits, timeout_s=TIMEOUT_S, root=root)

        @self.app.post("/weights")
        async def weights(request: Request, x_content_sha256: str | None = Header(None)):
            arguments = {"timeout_s": self.timeout_s, "sha256": x_content_sha256}
            async with uploads.uploaded(request, self.staging, **arguments) as tensors:
                version = self.engine.policy_version + 1
                await self.owner.call(lambda engine: engine.update_weights(tensors.items(), version))
            return {"policy_version": version}

        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        config = uvicorn.Config(self.app, log_level="error", http=connections.http_protocol(), lifespan="off")
        self.server = uvicorn.Server(config)
        self.running = threading.Thread(target=lambda: asyncio.run(self.server.serve(sockets=[self.socket])))
        self.running.start()

    def request(self, path, body=None, headers=None):
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)) as connection:
            connection.request("POST", path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def upload(self, tensors, **changed):
        body = Upload(Flat(tensors.items(), 0))
        return self.request("/weights", body, {**body.headers, **changed})

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
        self.owner.thread.shutdown()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One for all of these."""
    with closing(Server(tmp_path_factory.mktemp("root"))) as running:
        yield running


@pytest.fixture
def direct(monkeypatch):
    """Counts the bodies that went around the parser."""
    count = []
    through = uploads._direct

    async def counted(*arguments):
        count.append(1)
        await through(*arguments)

    monkeypatch.setattr(uploads, "_direct", counted)
    return count


@pytest.mark.parametrize("large", [0, 1, 1_000_003])
def test_an_upload_arrives_bit_for_bit_and_goes_around_the_parser(server, direct, large):
    """From a few bytes, all with the headers, to megabytes."""
    for seed in range(2):
        sent = weights(seed, large)
        assert server.upload(sent)[0] == 200
        assert server.engine.holds(sent)
    assert len(direct) == 2


def test_the_server_is_woken_once_a_piece_and_not_by_less(server, monkeypatch):
    """Else a sender that is faster than the server wakes it for every segment, and that costs more than the bytes."""
    reads, read = [], uploads._Into.buffer_updated
    monkeypatch.setattr(uploads._Into, "buffer_updated", lambda self, n: (reads.append(n), read(self, n)))
    sent = weights(9, 500_000)
    body = b"".join(bytes(piece) for piece in Upload(Flat(sent.items(), 0)))
    head = f"POST /weights HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as client:
        client.sendall(head.encode())
        for at in range(0, uploads.PIECE, 2**18):
            server.request("/nothing")  # the server's loop has gone round
            assert len(reads) <= 1  # the kernel may wake it early once, where its buffer is short
            client.sendall(body[at : at + 2**18])
        client.sendall(body[uploads.PIECE :])
        answer = b""
        while part := client.recv(4096):
            answer += part
    assert b"200" in answer.splitlines()[0]
    assert server.engine.holds(sent)
    assert sum(reads) == len(body)


@pytest.mark.parametrize("changed", [{"Connection": "keep-alive"}, {"Expect": "100-continue"}])
def test_with_any_other_framing_the_parser_reads_it(server, direct, changed):
    """A connection that stays; a client that may wait to be told to go on."""
    assert server.upload(weights(3), **changed)[0] == 200
    assert server.engine.holds(weights(3))
    assert direct == []


def test_a_connection_can_be_used_again_after_a_parsed_upload(server):
    """Two uploads over one."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)) as connection:
        for seed in range(2):
            body = Upload(Flat(weights(seed).items(), 0))
            connection.request("POST", "/weights", body, {**body.headers, "Connection": "keep-alive"})
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
            assert server.engine.holds(weights(seed))


def test_a_body_with_its_sha256_announced_needs_no_checksum_behind_it(server):
    """As any HTTP client can send it."""
    body = safetensors.torch.save(weights(4))
    digest = hashlib.sha256(body).hexdigest()
    assert server.request("/weights", body, {"X-Content-SHA256": digest, "Connection": "close"})[0] == 200
    assert server.engine.holds(weights(4))
    status, answer = server.request("/weights", body, {"X-Content-SHA256": "0" * 64})
    assert (status, "checksum" in answer["detail"]) == (400, True)


@pytest.mark.parametrize("fault", ["bit", "no checksum", "garbage", "short", "empty"])
@pytest.mark.parametrize("closes", ["close", "keep-alive"])
def test_a_damaged_upload_is_refused_and_the_old_weights_kept(server, fault, closes):
    """Each with the reason, whichever way it is read."""
    server.upload(weights(5))
    body = bytearray(b"".join(bytes(piece) for piece in Upload(Flat(weights(6).items(), 0))))
    if fault == "bit":
        body[len(body) // 2] ^= 16
    elif fault == "garbage":
        body = bytearray(b"garbage")
        body += Checksum().digest()
    else:
        del body[{"no checksum": -16, "short": -1, "empty": 0}[fault] :]
    status, answer = server.request("/weights", bytes(body), {"Connection": closes})
    assert (status, "checksum" in answer["detail"]) == (400, True)
    assert server.engine.holds(weights(5))


@pytest.mark.parametrize("body", ["none", "half"])
def test_an_upload_that_stops_is_ended_by_the_clock(server, monkeypatch, body):
    """The client is told how much came."""
    monkeypatch.setattr(server, "timeout_s", 0.3)
    sent, limited = threading.Event(), asyncio.wait_for

    async def behind_all(coming, limit_s):  # the clock starts when the client has sent what it will
        running = asyncio.ensure_future(coming)
        assert await asyncio.to_thread(sent.wait, TIMEOUT_S)
        return await limited(running, limit_s)

    monkeypatch.setattr(uploads, "asyncio", SimpleNamespace(**vars(asyncio) | {"wait_for": behind_all}))
    held = server.engine.policy_version
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as client:
        client.sendall(
            b"POST /weights HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n"
        )
        client.sendall(b"x" * (500_000 if body == "half" else 0))
        sent.set()
        answer = b""
        while part := client.recv(4096):
            answer += part
    assert b"408" in answer.splitlines()[0]
    assert f"{500_000 if body == 'half' else 0} of 1000000 bytes came in 0.3 s".encode() in answer
    assert server.engine.policy_version == held


def test_a_client_that_dies_in_the_middle_leaves_the_server_as_it_was(server):
    """The next upload works."""
    server.upload(weights(7))
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as client:
            client.sendall(
                b"POST /weights HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\nConnection: close\r\n\r\n"
                + b"x" * 200_000
            )
    assert server.engine.holds(weights(7))
    assert server.upload(weights(8))[0] == 200
    assert server.engine.holds(weights(8))


def test_uploads_at_once_do_not_mix(server):
    """Each has memory of its own until the engine has taken it."""
    taken, sent = [], [weights(seed) for seed in range(4)]
    load = server.engine.update_weights

    def remember(tensors, version):
        load(tensors, version)
        taken.append(dict(server.engine.tensors))

    server.engine.update_weights = remember
    try:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(server.upload, sent))
    finally:
        del server.engine.update_weights
    assert [status for status, _ in answers] == [200] * 4
    expected = {float(tensors["large"][0]): tensors for tensors in sent}
    assert len(taken) == 4
    for held in taken:
        tensors = expected.pop(float(held["large"][0]))
        assert all(torch.equal(held[name], value) for name, value in tensors.items())


@pytest.mark.parametrize("kind", ["shm", "files", "gloo"])
def test_a_client_beside_the_server_sends_another_way(server, kind):
    """And says over HTTP what it has sent."""
    with closing(open_sender(kind, server.call, timeout_s=TIMEOUT_S, root=server.root)) as sender:
        for version in (50, 51):
            sent = weights(version)
            assert sender.send(sent.items(), version) == version
            assert server.engine.holds(sent)


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("open", {"kind": "smoke"}, 422, "'shm', 'gloo'"),
        ("open", {"kind": "shm", "name": "/etc/passwd", "size": 10}, 422, "nothing that a sender makes"),
        ("open", {"kind": "shm", "name": "/proc/self/fd/0", "size": 10}, 422, "nothing that a sender makes"),
        (
            "open",
            {"kind": "shm", "name": "/proc/1/fd/99999", "size": 10},
            422,
            "weight sync by shared memory",
        ),
        ("open", {"kind": "gloo", "host": "10.0.0.1", "port": 80}, 422, "the client's own address"),
        ("open", {"kind": "gloo", "host": "127.0.0.1", "port": 9}, 422, "no sender at 127.0.0.1:9"),
        ("open", {"kind": "shm", "size": 2**30}, 413, "at most"),
        ("begin", {"kind": "nccl", "version": 0, "size": 9}, 422, "open it first"),
        ("load", {"kind": "shm", "version": 0, "size": 9}, 422, "open it first"),
        ("load", {"kind": "shm", "version": -1, "size": 9}, 422, "greater than or equal to 0"),
        ("load", {"kind": "shm", "version": 0, "size": 2**30}, 413, "at most"),
    ],
)
def test_what_a_client_may_not_ask_for(server, path, body, status, says):
    """Each refused with its reason, and the server goes on."""
    found, answer = server.request(f"/sync/{path}", json.dumps(body), {"Content-Type": "application/json"})
    assert (found, says in json.dumps(answer)) == (status, True), answer
