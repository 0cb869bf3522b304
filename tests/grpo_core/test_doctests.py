"""The examples in the docstrings of grpo_core, and of repro's server_start, give their documented results."""

import doctest
import importlib

import pytest
import torch

from tests.cells import ROOT

FILES = [*(ROOT / "grpo_core").rglob("*.py"), ROOT / "repro" / "cell_programs" / "server_start.py"]
PATHS = [path.relative_to(ROOT).with_suffix("") for path in FILES if ">>> " in path.read_text()]
MODULES = [".".join(path.parts) for path in PATHS]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch})
    assert (result.failed, result.attempted > 0) == (0, True)
