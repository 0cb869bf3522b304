"""Every benchmark still runs, at a tiny size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from tests.cells import ROOT, cell_python

SMALL = {
    "gpu": ["--device=cpu", "--toy"],
    "lint": ["{tmp}/a.sh"],
    "logprobs": ["--toy"],
    "step": ["{cell}", "--toy"],
    "sync": ["1", "1"],
    "triage": ["--megabytes=1", "--repeats=1"],
}
# These judge what they measured by their exit code, too.
JUDGES = ("lint",)
SAYS = {
    "gpu": "step, ours",
    "step": "ours",
}


def started(name: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The benchmark, run to its end as a user runs it."""
    (folder / "a.sh").write_text("swift rlhf --rlhf_type grpo\n")
    cell = str(cell_python("vllm-0.31.0+trl-1.16.0")) if name == "step" else ""
    arguments = [argument.format(tmp=folder, cell=cell) for argument in SMALL[name]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments, *more],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def names() -> list[object]:
    """Return the benchmarks with their marks: readers of files are fast, that of a step needs a cell with TRL."""
    marks = dict.fromkeys(("lint", "triage"), ()) | {"step": pytest.mark.vllm}
    return [pytest.param(name, marks=marks.get(name, pytest.mark.long)) for name in sorted(SMALL)]


def test_none_is_left_out():
    """A new one gets a line above."""
    programs = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"measure"}
    assert programs == set(SMALL)


@pytest.mark.slow
@pytest.mark.vllm
def test_the_benchmark_for_a_gpu_starts_trl(tmp_path):
    """It runs on the CPU at a tiny size, and prints TRL's steps next to ours."""
    cell = str(cell_python("vllm-0.31.0+trl-1.16.0"))
    done = started("gpu", tmp_path, f"--trl={cell}")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step, TRL + transformers" in done.stdout
    assert "step, ours / TRL + transformers" in done.stdout


def test_the_hardware_is_measured_even_if_the_steps_fail(monkeypatch, capsys):
    """The document has the bandwidth and the operations a second, and what went wrong; the exit code is 1."""
    monkeypatch.setattr(gpu, "time_steps", lambda folder, options: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device=cpu", "--toy", "--json"])
    assert gpu.main() == 1
    document = json.loads(capsys.readouterr().out)
    assert [figure["unit"] for figure in document["figures"]] == ["GB/s", "TFLOP/s"]
    assert document["error"] == "ZeroDivisionError: division by zero"


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_a_benchmark_runs(name, tmp_path):
    """To its end, with figures."""
    done = started(name, tmp_path)
    assert done.returncode in ((0, 1) if name in JUDGES else (0,)), done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert SAYS.get(name, "") in done.stdout
    assert any(letter.isdigit() for letter in done.stdout)
