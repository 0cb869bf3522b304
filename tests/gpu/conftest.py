"""Fixtures of the device tests: settings of a short run on a device; torch's threads and determinism are restored.

The tiny model and `no_token`, which removes GRPO_CORE_TOKEN, come from the trainer tests.
Importing this module sets the variable that makes cuBLAS deterministic.
"""

import os

import pytest
import torch

from tests.grpo_core.conftest import SHORT, make_config, model_dir, no_token  # noqa: F401 - fixtures

# cuBLAS reads this variable when its handle is created; PyTorch's deterministic mode requires it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(autouse=True)
def restore_torch_settings():
    """Restore the number of threads and the deterministic mode after each test."""
    threads, exact = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(exact)


@pytest.fixture
def short_run(tmp_path):
    """Return a function that builds the settings of a run of a few seconds, with trainer and engine on a device."""

    def build(device: str, mode: str = "colocate", **settings):
        where = {"train.device": device, "rollout.device": device}
        values = {**SHORT, **where, "rollout.mode": mode, "output.dir": tmp_path, "output.name": mode}
        return make_config({**values, **settings})

    return build
