"""Run programs in the Python environment of a matrix cell, from tests that have no vLLM themselves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_text

ROOT = Path(__file__).resolve().parent.parent


def _install_hint(cell: str) -> str:
    """Return how to build a cell: by a command if matrix.toml has it, else by hand."""
    cells = tomllib.loads((ROOT / "matrix.toml").read_text(encoding="utf-8"))["cells"]
    if cell in cells:
        return f"build it: nox -s matrix -- --cells '{cell}' --layers install"
    name, _, version = cell.partition("-")
    return f"no cell of the matrix: an environment of that name with {name}=={version}, see docs/repros.md"


def cell_python(cell: str) -> Path:
    """Return the cell's interpreter, or skip with the command that builds one."""
    folder = os.environ.get("GRPO_DOCTOR_CELLS")
    python = Path(folder or "") / cell / "bin" / "python"
    if not folder or not python.exists():
        pytest.skip(f"no cell {cell} in GRPO_DOCTOR_CELLS={folder or '(unset)'}; {_install_hint(cell)}")
    return python


def run_in_cell(cell: str, *arguments: str, timeout_s: float = 500) -> subprocess.CompletedProcess[str]:
    """Run the cell's Python; of our packages it can import only grpo_core and repro."""
    return run_with(cell_python(cell), *arguments, timeout_s=timeout_s)


def run_with(python: Path, *arguments: str, timeout_s: float = 500) -> subprocess.CompletedProcess[str]:
    """Run any Python with copies of grpo_core and repro on its path."""
    with tempfile.TemporaryDirectory() as stage:
        for package in ("grpo_core", "repro", "evaluation/repro", "diagnostics/catalog/issues"):
            shutil.copytree(
                ROOT / package, Path(stage) / package, ignore=shutil.ignore_patterns("__pycache__")
            )
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "PYTHON"))}
        environment |= {
            "PYTHONPATH": stage,
            "TMPDIR": stage,  # programs that end with os._exit leave temporary files
            "VLLM_USE_V1": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        return run_text([python, "-P", *arguments], env=environment, cwd=stage, timeout=timeout_s)


def read_attempts(done: subprocess.CompletedProcess[str], code: str) -> dict[tuple[str, str | None], Any]:
    """Return the attempts of a `repro run CODE --json` that ended as recorded, by trigger and mitigation."""
    assert done.returncode == 0, done.stderr[-3000:]
    attempts = json.loads(done.stdout)["codes"][code]["attempts"]
    return {(attempt["trigger"], attempt["mitigation"]): attempt for attempt in attempts}


def attempts_in_cell(
    cell: str, code: str, *options: str, timeout_s: float = 900
) -> dict[tuple[str, str | None], Any]:
    """Run a repro in a cell and return its attempts, by trigger and mitigation."""
    done = run_in_cell(cell, "-m", "repro", "run", code, *options, "--json", timeout_s=timeout_s)
    return read_attempts(done, code)


def repro_beside_trl(release: str, *arguments: str) -> str:
    """Return a program that runs `python -m repro` with this TRL release; skip the test if it is not unpacked."""
    name = f"GRPO_DOCTOR_TRL_{release.replace('.', '_')}"
    folder = os.environ.get(name)
    if not folder or not Path(folder, "trl").is_dir():
        pytest.skip(f"no TRL {release}: uv pip install --no-deps --target DIR trl=={release}; {name}=DIR")
    return (
        f"import os, sys; sys.path.insert(0, {folder!r}); "
        f"os.environ['PYTHONPATH'] = os.pathsep.join([{folder!r}, os.environ['PYTHONPATH']]); "
        f"from repro.__main__ import main; sys.exit(main({list(arguments)!r}))"
    )
