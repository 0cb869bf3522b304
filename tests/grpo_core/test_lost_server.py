"""A run whose separately started server dies ends with a named error, and can be resumed."""

from __future__ import annotations

import json

import pytest

from grpo_core import run
from grpo_core.rollout.remote_engines import RemoteEngine


@pytest.fixture
def start(forked_servers, model_dir):
    """Start a server in a separate process; return it and its port."""
    servers = []

    def start_server(port: int = 0):
        command = ["grpo_core", "serve", "--allow-unauthenticated"]
        command += [f"--model.path={model_dir}", f"--rollout.port={port}"]
        servers.append(forked_servers.start_server(command, threads=1))
        return servers[-1], json.loads(servers[-1].stdout.readline())["port"]

    yield start_server
    for server in servers:
        kill_server(server)
        server.stdin.close()
        server.stdout.close()


def kill_server(server) -> None:
    """Kill a server, and wait until it has ended."""
    if server.returncode is None:
        server.kill()
        server.wait()


@pytest.mark.slow
def test_lost_server_ends_the_run_which_resumes_with_the_same_numbers(
    short_run, model_dir, start, monkeypatch
):
    """The error has the address and the failed call; the server is started again."""
    undisturbed = run.train(short_run(**{"model.path": model_dir, "output.name": "whole"}), lambda _: None)
    process, port = start()
    original = RemoteEngine.generate

    def killed_before(self, requests, params):
        if requests[0].id.startswith("2."):
            kill_server(process)
        return original(self, requests, params)

    monkeypatch.setattr(RemoteEngine, "generate", killed_before)
    settings = {"model.path": model_dir, "rollout.port": port}
    document = run.train(short_run("server", **settings), lambda _: None)
    assert document["outcome"] == "failed"
    assert f"http://127.0.0.1:{port}/generate: ConnectionRefusedError" in document["error"]
    assert document["steps"] == 2
    monkeypatch.undo()
    start(port)
    document = run.train(short_run("server", **settings), lambda _: None, resume=True)
    assert (document["outcome"], document["steps"]) == ("ok", 4)
    assert document["parameters"] == undisturbed["parameters"]
