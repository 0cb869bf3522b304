"""A run whose separately started server dies ends with a named error, and can be resumed."""

import pytest

from grpo_core import run
from grpo_core.rollout.remote_engines import RemoteEngine
from grpo_core.rollout.server.process import end_child
from tests.grpo_core.conftest import own_server


@pytest.mark.slow
def test_lost_server_ends_the_run_and_resuming_keeps_the_numbers(
    short_run, model_dir, forked_servers, monkeypatch
):
    """The error has the address and the failed call; after a restart of the server the run is resumed."""
    undisturbed = run.train(short_run(**{"model.path": model_dir, "output.name": "whole"}), lambda _: None)
    original = RemoteEngine.generate
    with own_server(forked_servers, model_dir) as (process, address):

        def killed_before(self, requests, params):
            if requests[0].id.startswith("2."):
                process.kill()
                process.wait(500)
            return original(self, requests, params)

        monkeypatch.setattr(RemoteEngine, "generate", killed_before)
        config = short_run("server", **{"model.path": model_dir, "rollout.port": address.port})
        document = run.train(config, lambda _: None)
    assert (document["outcome"], document["steps"]) == ("failed", 2)
    assert f"http://127.0.0.1:{address.port}/generate: ConnectionRefusedError" in document["error"]
    monkeypatch.undo()
    restart = (f"--rollout.port={address.port}", "--exit-with-stdin")
    with own_server(forked_servers, model_dir, *restart) as (process, _):
        document = run.train(config, lambda _: None, resume=True)
        end_child(process, grace_s=500)
    assert (document["outcome"], document["steps"]) == ("ok", 4)
    assert document["parameters"] == undisturbed["parameters"]
