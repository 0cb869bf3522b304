"""Run programs in the Python environment of a matrix cell, or in the one of the other trainers (the peers).

`run_in_cell` and `run_with` run a program; `cell_python` and `peers_python` find the interpreter. The tests themselves
run without vLLM. A test whose environment is not built is skipped. The programs run in a temporary folder with copies
of grpo_core, repro, evaluation/repro and the catalog's entries. They use vLLM's V0 engine, and get no other VLLM_* and
PYTHON* variables of the caller.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_text

ROOT = Path(__file__).resolve().parent.parent


def existing_path(variable: str, path: str, advice: str) -> Path:
    """Return `path` below the folder that an environment variable names; skip with advice if it does not exist."""
    value = os.environ.get(variable)
    if not value or not Path(value, path).exists():
        pytest.skip(f"no {path or 'Python'} in {variable}={value or '(unset)'}: {advice}")
    return Path(value, path)


def cell_python(cell: str) -> Path:
    """Return the interpreter of a cell in GRPO_DOCTOR_CELLS, or skip with the command that builds the cell."""
    command = f"nox -s matrix -- run --cells '{cell}' --layers install"
    advice = f"{command} builds those of matrix.toml; docs/repros.md has the others"
    return existing_path("GRPO_DOCTOR_CELLS", f"{cell}/bin/python", advice)


def peers_python() -> Path:
    """Return the interpreter of the other trainers' environment, GRPO_DOCTOR_PEERS, or skip."""
    return existing_path("GRPO_DOCTOR_PEERS", "", "build the peers: nox -s tests-cells")


def run_in_cell(cell: str, *arguments: str, timeout_s: float = 500) -> subprocess.CompletedProcess[str]:
    """Run the cell's Python with copies of the packages that `run_with` provides."""
    return run_with(cell_python(cell), *arguments, timeout_s=timeout_s)


def run_with(
    python: Path, *arguments: str, timeout_s: float = 500, path: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a Python with copies of grpo_core, repro, evaluation/repro and the catalog's entries on its path.

    Other variables for Python and vLLM are removed; vLLM's V0 engine and Hugging Face's offline mode are set.

    Args:
        python: Interpreter to run.
        arguments: Arguments of the interpreter.
        timeout_s: Time limit.
        path: Folders that come first on the path.
    """
    with tempfile.TemporaryDirectory() as stage:
        for package in ("grpo_core", "repro", "evaluation/repro", "diagnostics/catalog/issues"):
            shutil.copytree(
                ROOT / package, Path(stage) / package, ignore=shutil.ignore_patterns("__pycache__")
            )
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "PYTHON"))}
        environment |= {
            "PYTHONPATH": os.pathsep.join([*path, stage]),
            "TMPDIR": stage,  # programs that end with os._exit leave temporary files
            "VLLM_USE_V1": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        return run_text([python, "-P", *arguments], env=environment, cwd=stage, timeout=timeout_s)


def read_attempts(done: subprocess.CompletedProcess[str], code: str) -> dict[tuple[str, str | None], Any]:
    """Return the attempts of a finished `repro run CODE --json` by trigger and mitigation; its exit code must be 0."""
    assert done.returncode == 0, done.stderr[-3000:]
    attempts = json.loads(done.stdout)["codes"][code]["attempts"]
    return {(attempt["trigger"], attempt["mitigation"]): attempt for attempt in attempts}
