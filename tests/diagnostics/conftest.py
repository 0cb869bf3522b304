"""Fixtures of the diagnostics' tests."""

import pytest

from tests.diagnostics.environments import Maker


@pytest.fixture
def environment(tmp_path):
    """An empty Python environment on disk."""
    return Maker(tmp_path / "env")
