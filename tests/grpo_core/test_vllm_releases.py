"""Weights, environment variables and the prefix cache are handled as the vLLM release requires; vLLM is not needed.

Releases that passed in the matrix count as tested.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from grpo_core.rollout import vllm_releases as releases
from grpo_core.rollout.engine import EngineError
from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "vllm_variables.yaml")

COMPAT = Path(__file__).parents[2] / "diagnostics/data/compat.json"


def test_releases_that_passed_in_the_matrix_count_as_tested():
    """VllmEngine warns for releases that don't count as tested."""
    cells = json.loads(COMPAT.read_text())["cells"]
    ran = {cell["vllm"] for cell in cells if cell["layers"].get("engine", {}).get("verdict") == "pass"}
    assert {releases.base_release(version) for version in ran} - set(releases.TESTED) == set()


class Model(torch.nn.Module):
    """A model that loads weights by name and returns the loaded names, as vLLM's models do."""

    def __init__(self, *, packed=False, forgets=""):
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.zeros(0 if packed else 2)) for _ in range(2))
        self.forgets = forgets

    def load_weights(self, tensors):
        return {name for name, _ in tensors} - {self.forgets}


class Llm:
    """An engine whose worker calls run in this process."""

    def __init__(self, **runner):
        self.worker = SimpleNamespace(model_runner=SimpleNamespace(**runner))
        self.reloaded = None
        self.worker.reload_weights = self.reload

    def reload(self, weights_iterator):
        self.reloaded = dict(weights_iterator)

    def collective_rpc(self, method, args=(), kwargs=None):
        call = getattr(self.worker, method) if isinstance(method, str) else lambda *a: method(self.worker, *a)
        return [call(*args, **(kwargs or {}))]


def reload_from_disk():
    """Stand in for `reload_weights` of old releases, which reads the disk."""


def reload_from_tensors(weights_iterator=None):
    """Stand in for `reload_weights` of current releases."""


NEW = {"a": torch.ones(2), "b": torch.ones(2)}


def test_reload_weights_gets_the_tensors():
    """With a current release, packed parameters are loaded by `reload_weights`; `load_weights` would fail."""
    llm = Llm(reload_weights=reload_from_tensors, model=Model(packed=True))
    releases.load_weights(llm, NEW)
    assert llm.reloaded == NEW


@pytest.mark.parametrize("runner", [{}, {"reload_weights": reload_from_disk}])
def test_older_release_uses_load_weights(runner):
    """An older release loads by `load_weights`, and a parameter that it did not load is an error."""
    llm = Llm(model=Model(), **runner)
    releases.load_weights(llm, NEW)
    with pytest.raises(EngineError, match=r"vLLM did not load b; use a release"):
        releases.load_weights(Llm(model=Model(forgets="b"), **runner), NEW)


def test_packed_weights_of_older_release_are_refused():
    """The error names the parameters and the fix."""
    with pytest.raises(EngineError, match=r"vLLM did not load a, b; use a release whose reload_weights"):
        releases.load_weights(Llm(model=Model(packed=True)), NEW)


@each_case(CASES["variables"])
def test_start_options_fit_the_release(monkeypatch, version, given, expected):
    """Whatever is set, 0.8 and 0.9 use V0, and 0.10 uses V1. The CPU's variables have the values of the release."""
    monkeypatch.setattr(os, "environ", dict(given))
    releases.prepare_start(version, 1.5)
    assert {name: os.environ.get(name) for name in expected} == expected


def test_failed_prefix_cache_reset_is_an_error():
    """A reset that returns False is an error; None, which V1 of 0.10 returns, is not."""
    releases.reset_prefix_cache(SimpleNamespace(reset_prefix_cache=lambda: None))
    with pytest.raises(EngineError, match="prefix cache was not dropped"):
        releases.reset_prefix_cache(SimpleNamespace(reset_prefix_cache=lambda: False))
