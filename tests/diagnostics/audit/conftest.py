"""Fixtures: one trained model for all audit tests."""

import pytest
import torch

from tests.diagnostics.audit import world


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Use one torch thread, which is faster for this small model, and restore the number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder with base, checkpoint-20, checkpoint-110 and checkpoint-120."""
    folder = tmp_path_factory.mktemp("trained")
    world.train_world(folder, keep=(20, 110, 120))
    return folder
