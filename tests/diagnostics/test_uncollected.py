"""Garbage is left alone for as long as was said, and no longer."""

import gc

import pytest

from diagnostics.uncollected import uncollected


@uncollected()
def _failing():
    raise ValueError(gc.isenabled())


@pytest.mark.parametrize("collects", [True, False])
def test_it_is_afterwards_as_it_was_before(collects):
    """Also after an error, and where nothing was collected before."""
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        with pytest.raises(ValueError, match="False"):
            _failing()
        assert gc.isenabled() is collects
    finally:
        (gc.enable if before else gc.disable)()
