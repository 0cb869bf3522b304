"""The trainer reconnects to a separate server that dies and is restarted."""

from __future__ import annotations

import json
import threading

import pytest

from grpo_core import run
from grpo_core.modes import connection


@pytest.fixture
def start(forked_servers, model_dir):
    """Start a server in a separate process; return it and its port."""
    servers = []

    def start_server(port: int = 0):
        command = ["grpo_core", "serve", f"--model.path={model_dir}", f"--rollout.port={port}"]
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
@pytest.mark.parametrize("when", [pytest.param("publish", marks=pytest.mark.long), "generate"])
def test_server_restart_changes_no_number(short_run, model_dir, start, monkeypatch, when):
    """The trainer reconnects, sends the weights again and repeats the request."""
    undisturbed = run.train(short_run(**{"model.path": model_dir, "output.name": "whole"}), lambda _: None)
    process, port = start()
    original = getattr(connection.Connection, when)
    calls, restarts = [], []

    def killed_before(self, *arguments):
        calls.append(when)
        if len(calls) == 3:
            kill_server(process)
            restarts.append(threading.Thread(target=start, args=(port,)))
            restarts[0].start()
        return original(self, *arguments)

    monkeypatch.setattr(connection.Connection, when, killed_before)
    settings = {"model.path": model_dir, "rollout.port": port, "rollout.reconnect_s": 500}
    document = run.train(short_run("server", **settings), lambda _: None)
    restarts[0].join()
    assert document["outcome"] == "ok", document["error"]
    assert document["parameters"] == undisturbed["parameters"]


@pytest.mark.long
def test_missing_server_ends_the_run_with_a_named_error(short_run, model_dir, start, monkeypatch):
    """The error has the address and the failed call; the run can be resumed."""
    process, port = start()
    original = connection.Connection.generate

    def killed_before(self, rollout):
        if rollout.number == 2:
            kill_server(process)
        return original(self, rollout)

    monkeypatch.setattr(connection.Connection, "generate", killed_before)
    settings = {"model.path": model_dir, "rollout.port": port, "rollout.reconnect_s": 0.1}
    document = run.train(short_run("server", **settings), lambda _: None)
    assert document["outcome"] == "failed"
    assert f"http://127.0.0.1:{port}/generate: ConnectionRefusedError" in document["error"]
    assert document["steps"] == 2
    monkeypatch.undo()
    start(port)
    document = run.train(short_run("server", **settings), lambda _: None, resume=True)
    assert (document["outcome"], document["steps"]) == ("ok", 4)
