"""A run records the requested steps and leaves no temporary files."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest

from grpo_core.config import RecordError
from grpo_core.records.recording import read_step
from tests.grpo_core.conftest import trained


@pytest.mark.parametrize(("every", "expected"), [(2, [1, 3, 4]), (3, [1, 4]), (9, [1, 4]), (0, [])])
def test_recorded_steps_follow_the_setting(short_run, every, expected):
    """The first, every n-th and the last step are recorded; with 0, none is."""
    document, _ = trained(short_run(**{"output.record_every": every}))
    folder, frames = Path(document["metrics"]).parent, []
    for step in range(1, 5):
        with contextlib.suppress(RecordError):
            read_step(folder, step)
            frames.append(step)
    assert frames == expected


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["colocate", "server", pytest.param("async", marks=pytest.mark.long)])
def test_no_temporary_files_are_left(short_run, tmp_path, monkeypatch, mode):
    """A run in any mode leaves no temporary file."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    trained(short_run(mode, **{"train.steps": 2}))
    assert list(temporary.iterdir()) == []
