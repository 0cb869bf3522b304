"""A run whose separately started server dies ends with a named error, and can be resumed."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from grpo_core import run
from grpo_core.rollout.remote_engines import RemoteEngine
from tests.grpo_core.conftest import own_server


@pytest.fixture
def start(forked_servers, model_dir):
    """Yield a function that starts a server in a separate process, and returns the process and its port."""
    with ExitStack() as stack:

        def start_server(port: int = 0):
            server = own_server(forked_servers, model_dir, f"--rollout.port={port}")
            process, address = stack.enter_context(server)
            stack.callback(kill_server, process)
            return process, address.port

        yield start_server


def kill_server(server) -> None:
    """Kill a server, and wait until it has ended."""
    if server.returncode is None:
        server.kill()
        server.wait()


@pytest.mark.slow
def test_lost_server_ends_the_run_and_resuming_keeps_the_numbers(short_run, model_dir, start, monkeypatch):
    """The error has the address and the failed call; after a restart of the server the run is resumed."""
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
