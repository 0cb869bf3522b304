"""The examples in the docstrings of grpo_core run and give their documented results."""

import doctest
import importlib

import pytest

MODULES = (
    "grpo_core.learn.advantages",
    "grpo_core.learn.logprobs",
    "grpo_core.learn.dialects",
    "grpo_core.rollout.engine",
    "repro.cell_programs.server_start",
    "grpo_core.rollout.vllm_requests",
    "grpo_core.rollout.vllm_releases",
    "grpo_core.run_files",
    "grpo_core.errors",
    "grpo_core.records.recording",
    "grpo_core.tasks.reward_functions",
    "grpo_core.tasks.rewards",
    "grpo_core.rollout.weights.digest",
    "grpo_core.rollout.wire",
    "grpo_core.tasks.dataset",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    names = (
        {}
        if name.rpartition(".")[2] in ("advantages", "dialects", "engine", "metrics")
        else {"torch": importlib.import_module("torch")}
    )
    result = doctest.testmod(module, extraglobs=names)
    assert (result.failed, result.attempted > 0) == (0, True)
