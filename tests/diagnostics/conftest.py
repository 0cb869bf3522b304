"""Fixtures of the diagnostics' tests."""

import pytest
from hypothesis import settings

from tests.diagnostics.environments import Maker

# The same examples each time: a failure that comes once in ten runs stops the wrong change.
settings.register_profile("same", derandomize=True)
settings.load_profile("same")


@pytest.fixture
def environment(tmp_path):
    """An empty Python environment on disk."""
    return Maker(tmp_path / "env")
