"""The examples in docstrings are true."""

import doctest
import importlib

import pytest

MODULES = (
    "advantages",
    "logprobs",
    "dialects",
    "engines.base",
    "engines.started",
    "engines.vllm_messages",
    "engines.vllm_releases",
    "metrics",
    "picture",
    "record",
    "reward_functions",
    "sync.digest",
    "task",
    "weights",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    """Each runs and gives what it says."""
    module = importlib.import_module(f"grpo_core.{name}")
    names = (
        {}
        if name in ("advantages", "dialects", "engines.base", "metrics", "picture")
        else {"torch": importlib.import_module("torch")}
    )
    result = doctest.testmod(module, extraglobs=names)
    assert (result.failed, result.attempted > 0) == (0, True)
