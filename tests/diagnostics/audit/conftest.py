"""Fixtures of the audit tests: a tiny trained model and a tokenizer process that they share, and one torch thread.

Importing this module also hides the package `sniffio` from httpcore.
"""

import fcntl
import functools
import os
import sys

import pytest
import torch

from diagnostics import process
from diagnostics.audit import checkpoint_validation
from diagnostics.audit.live import checkpoint_tokenizer
from tests.diagnostics.audit import tiny_model

# httpcore searches for this package, which asyncio does not need, more than once in each request.
sys.modules.setdefault("sniffio", None)


@pytest.fixture(scope="session", autouse=True)
def single_torch_thread():
    """Use one torch thread, which is faster for this small model, and restore the number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def ended_tokenizer_process():
    """End the child process that the tests of this folder share for tokenizers."""
    yield
    if checkpoint_tokenizer._start_child.cache_info().currsize:
        process.end_group(checkpoint_tokenizer._start_child()[0])


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Train the tiny model; return the folder with base, checkpoint-20, checkpoint-110 and checkpoint-120.

    The workers of pytest-xdist share it: the first trains, the others wait.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "trained"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "checkpoint-120").exists():
            tiny_model.train_checkpoints(folder, keep=(20, 110, 120), width=48, layers=2)
    return folder


_load_once = functools.cache(checkpoint_validation.load_model)


@pytest.fixture
def models_loaded_once(monkeypatch):
    """Load each folder of weights once for all tests that use this; an audit copies a model before it changes it."""
    monkeypatch.setattr(checkpoint_validation, "load_model", _load_once)
