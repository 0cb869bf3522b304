"""The budget of disk for environments."""

from __future__ import annotations

import json
import os

import pytest

from diagnostics.matrix.build import disk
from diagnostics.matrix.build.environments import MARKER


@pytest.fixture
def folder(tmp_path):
    """Three whole environments of 2, 3 and 1 GB by their markers, oldest first, and a half-built one."""
    for age, (name, size) in enumerate([("old", 2.0), ("middle", 3.0), ("young", 1.0), ("half", None)]):
        (tmp_path / name).mkdir()
        if size is not None:
            (tmp_path / name / MARKER).write_text(json.dumps({"size_gb": size}))
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    return tmp_path


@pytest.mark.parametrize(
    ("budget", "needed", "keep", "gone"),
    [
        (10, 2, "new", []),
        (7, 2, "new", ["old"]),
        (4, 2, "new", ["old", "middle"]),
        (1, 2, "new", ["old", "middle", "young"]),
        # The one that is about to be used is its own successor: it stays, and doesn't count twice.
        (5, 1, "middle", []),
        (3.5, 1, "middle", ["old"]),
    ],
)
def test_the_oldest_go_until_the_next_one_fits(folder, budget, needed, keep, gone):
    """In order of age, no more than it takes; what is half built has no size and is left to its next build."""
    assert disk.within(folder, budget, needed, keep=keep) == gone
    left = {path.name for path in folder.iterdir()}
    assert left == {"old", "middle", "young", "half"} - set(gone)
