"""Fixtures of the tests for any device; sets a variable that CUDA reads once, before it starts."""

import os

import pytest
import torch

from grpo_core.settings import load
from tests.grpo_core.conftest import SHORT, children, model_dir, no_token  # noqa: F401 - fixtures

# cuBLAS reads it when its handle is made; PyTorch's deterministic mode requires it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(autouse=True)
def restore_torch_settings():
    """Restore the threads and algorithms that a run sets for its process."""
    threads, exact = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(exact)


@pytest.fixture
def short_run(tmp_path):
    """Build the settings of a run of a few seconds with trainer and engine on a device."""

    def build(device: str, mode: str = "colocate", **settings):
        where = {"train.device": device, "rollout.device": device}
        values = {**SHORT, **where, "rollout.mode": mode, "output.dir": tmp_path, "output.name": mode}
        return load(None, [f"--{key}={value}" for key, value in {**values, **settings}.items()])

    return build
