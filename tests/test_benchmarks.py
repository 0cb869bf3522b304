"""Every benchmark starts and ends, at a size that measures nothing: one that nobody runs for a month must still run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cells import ROOT, cell_python

SMALL = {
    "answers": ["--repeats=1"],
    "audit_recorded_pairs": ["--models=1", "--toy"],
    "audit_recorded": ["--runs=1", "--models=1", "--pairs=3", "--toy"],
    "audit_running": ["--toy"],
    "doctor": ["--prefix", sys.prefix, "--repeats=1"],
    "efficiency": ["--toy"],
    "first_hour": ["--toy"],
    "gpu": ["--device=cpu", "--toy"],
    "hang": ["--processes=2", "--repeats=1"],
    "learning": ["--seeds=2", "--steps=2", "--arms=colocate", "--results={tmp}"],
    "lint": ["{tmp}/a.sh"],
    "logprobs": ["--toy"],
    "overheads": ["--toy"],
    "proof": ["--toy"],
    "startup": ["--toy"],
    "step": ["{cell}", "--toy"],
    "sync": ["1", "1"],
    "triage": ["--megabytes=1", "--repeats=1"],
}
# These judge what they measured by their exit code, too.
JUDGES = ("answers", "first_hour", "hang", "learning", "lint")
SAYS = {
    "gpu": "step, ours",
    "efficiency": "real work, one core each: median",
    "step": "ours",
    "overheads": "watchdog: ",
}


def started(name: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The benchmark, run to its end as a user runs it."""
    (folder / "a.sh").write_text("swift rlhf --rlhf_type grpo\n")
    cell = str(cell_python("vllm-0.31.0+trl-1.16.0")) if name == "step" else ""
    arguments = [argument.format(tmp=folder, cell=cell) for argument in SMALL[name]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments, *more],
        env=environment, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip


def names() -> list[object]:
    """Those that only read files in the fast suite; that of a step needs TRL, so a real cell."""
    marks = dict.fromkeys(("answers", "doctor", "first_hour", "lint", "triage"), ()) | {
        "step": pytest.mark.vllm
    }
    return [pytest.param(name, marks=marks.get(name, pytest.mark.long)) for name in sorted(SMALL)]


def test_none_is_left_out():
    """A new one gets a line above."""
    found = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"measure"}
    assert found == set(SMALL)


@pytest.mark.slow
@pytest.mark.vllm
def test_the_benchmark_for_a_gpu_starts_trl(tmp_path):
    """On the CPU, at a size that measures nothing: its steps stand beside ours."""
    cell = str(cell_python("vllm-0.31.0+trl-1.16.0"))
    done = started("gpu", tmp_path, f"--trl={cell}")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step, TRL + transformers" in done.stdout
    assert "step, ours / TRL + transformers" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_a_benchmark_runs(name, tmp_path):
    """To its end, with figures."""
    done = started(name, tmp_path)
    assert done.returncode in ((0, 1) if name in JUDGES else (0,)), done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert SAYS.get(name, "") in done.stdout
    assert any(letter.isdigit() for letter in done.stdout)
