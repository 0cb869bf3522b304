"""Each benchmark runs to its end and prints figures: `logprobs` at full size, the others at a small one.

The GPU benchmark also runs TRL.
"""

import os
import subprocess

import pytest

from tests.cells import ROOT, cell_python
from tests.processes import run_python

SMALL = {
    "gpu": ["--device=cpu", "--toy"],
    "logprobs": [],
    "step": ["{cell}", "1"],
    "sync": ["1", "1"],
    "triage": ["--megabytes=1"],
}
EXPECTED_OUTPUT = {"gpu": "step, grpo_core", "step": "grpo_core"}


def run_benchmark(name: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark as a process, with its arguments in SMALL and more."""
    cell = str(cell_python("vllm-0.31.0+trl-1.16.0")) if name == "step" else ""
    arguments = [argument.format(cell=cell) for argument in SMALL[name]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return run_python("-m", f"benchmarks.{name}", *arguments, *more, env=environment)


def benchmarks() -> list[object]:
    """Return each benchmark with further pytest marks: none for `triage`, `vllm` for `step`, `long` for the others."""
    marks = {"triage": (), "step": pytest.mark.vllm}
    return [pytest.param(name, marks=marks.get(name, pytest.mark.long)) for name in sorted(SMALL)]


def test_every_benchmark_is_listed():
    programs = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"harness"}
    assert programs == set(SMALL)


@pytest.mark.slow
@pytest.mark.vllm
def test_gpu_benchmark_runs_trl_too():
    """With --trl the GPU benchmark, here on the CPU, also prints TRL's step time and the ratio."""
    cell = str(cell_python("vllm-0.31.0+trl-1.16.0"))
    done = run_benchmark("gpu", f"--trl={cell}")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step, TRL + transformers" in done.stdout
    assert "step, grpo_core / TRL + transformers" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", benchmarks())
def test_benchmark_prints_figures(name):
    """The exit code is 0, there is no traceback, and the output has the expected words and a digit."""
    done = run_benchmark(name)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert EXPECTED_OUTPUT.get(name, "") in done.stdout
    assert any(letter.isdigit() for letter in done.stdout)
