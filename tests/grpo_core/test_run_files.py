"""A run records the requested steps and leaves no temporary files."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core import run
from grpo_core.config import RecordError
from grpo_core.records.recording import read_step

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("every", "expected"), [(2, [1, 3, 4]), (3, [1, 4]), (9, [1, 4]), (0, [])])
def test_recorded_steps_follow_the_setting(short_run, every, expected):
    """The first, every n-th and the last step are recorded; none at 0."""
    document = run.train(short_run(**{"output.record_every": every}), lambda _: None)
    folder, frames = Path(document["metrics"]).parent, []
    for step in range(1, 5):
        with contextlib.suppress(RecordError):
            read_step(folder, step)
            frames.append(step)
    assert frames == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    ["colocate", "server", pytest.param("async", marks=pytest.mark.long)],
)
def test_no_temporary_files_are_left(tmp_path, command):
    """This holds in each mode."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = ["train", f"--rollout.mode={command}", "--train.steps=2"]
    small = [
        "--train.prompts_per_step=2",
        "--sampling.group_size=2",
        f"--output.dir={tmp_path / 'runs'}",
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "grpo_core", *words, *small],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [path.name for path in temporary.iterdir()] == []
