"""A separate server that dies and is restarted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from grpo_core import run
from grpo_core.modes import connection


def start(model_dir, port: int = 0) -> tuple[subprocess.Popen, int]:
    """Start a real server in a separate process; return its port."""
    command = [
        sys.executable,
        "-m",
        "grpo_core",
        "serve",
        f"--model.path={model_dir}",
        f"--rollout.port={port}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, json.loads(process.stdout.readline())["port"]


@pytest.mark.slow
@pytest.mark.parametrize("when", [pytest.param("publish", marks=pytest.mark.long), "generate"])
def test_a_server_killed_and_started_again_changes_no_number(short_run, model_dir, monkeypatch, when):
    """The trainer reconnects, sends the weights again and repeats the request: every completion is the same."""
    undisturbed = run.train(short_run(**{"model.path": model_dir, "output.name": "whole"}), lambda _: None)
    process, port = start(model_dir)
    servers = [process]
    original = getattr(connection.Connection, when)
    calls, starting = [], []

    def killed_before(self, *arguments):
        calls.append(when)
        if len(calls) == 3:
            os.kill(servers[0].pid, signal.SIGKILL)
            servers[0].wait()
            starting.append(threading.Thread(target=lambda: servers.append(start(model_dir, port)[0])))
            starting[0].start()
        return original(self, *arguments)

    monkeypatch.setattr(connection.Connection, when, killed_before)
    settings = {"model.path": model_dir, "rollout.port": port, "rollout.reconnect_s": 500}
    try:
        document = run.train(short_run("server", **settings), lambda _: None)
    finally:
        for thread in starting:
            thread.join()
        for server in servers:
            server.kill()
            server.wait()
            server.stdout.close()
    assert document["outcome"] == "ok", document["error"]
    assert len(servers) == 2
    assert document["parameters"] == undisturbed["parameters"]


@pytest.mark.long
def test_a_server_that_stays_away_ends_the_run_by_name(short_run, model_dir, monkeypatch):
    """With the address and what failed; and the run can be resumed."""
    process, port = start(model_dir)
    original = connection.Connection.generate

    def killed_before(self, rollout):
        if rollout.number == 2:
            process.kill()
            process.wait()
        return original(self, rollout)

    monkeypatch.setattr(connection.Connection, "generate", killed_before)
    settings = {"model.path": model_dir, "rollout.port": port, "rollout.reconnect_s": 0.1}
    document = run.train(short_run("server", **settings), lambda _: None)
    process.stdout.close()
    assert document["outcome"] == "failed"
    assert f"http://127.0.0.1:{port}/generate: ConnectionRefusedError" in document["error"]
    assert document["steps"] == 2
    monkeypatch.undo()
    process, _ = start(model_dir, port)
    try:
        document = run.train(short_run("server", **settings), lambda _: None, resume=True)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert (document["outcome"], document["steps"]) == ("ok", 4)
