"""Import contracts that `lint-imports` does not hold: what runs in a cell, probes, and start-up."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "vllm", "ray", "transformers", "numpy", "trl"}
PROBES = ROOT / "diagnostics" / "doctor" / "probe" / "programs"
# Packages that a cell has; any other would have to be added. `repro fuzz` adds Hypothesis to the path.
IN_CELL = {
    "datasets", "fastapi", "filelock", "h11", "huggingface_hub", "math_verify", "numpy", "peft", "pyarrow",
    "pydantic", "ray", "safetensors", "starlette", "swift", "tensorboard", "tokenizers", "tomli", "torch",
    "transformers", "trl", "uvicorn", "verl", "vllm", "wandb",
}  # fmt: skip


def imports(path: Path) -> set[str]:
    """The top-level packages that a file imports anywhere, read with the grammar of Python 3.10."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 10))
    packages: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            packages.add(node.module.partition(".")[0])
    return packages


@pytest.mark.parametrize("package", ["grpo_core", "repro"])
def test_what_runs_in_a_cell_needs_only_the_cell(package):
    """Its standard library is that of Python 3.10 (tomli where tomllib is missing), and no package is added."""
    allowed = set(sys.stdlib_module_names) | IN_CELL | {"grpo_core", "repro", "diagnostics"}
    imports_of = {path: imports(path) for path in (ROOT / package).rglob("*.py")}
    assert {
        path: names - allowed for path, names in imports_of.items() if names - allowed - {"hypothesis"}
    } == {}
    assert {
        path for path, names in imports_of.items() if "hypothesis" in names and path.parent.name != "fuzz"
    } == set()
    assert {
        path for path, names in imports_of.items() if "tomllib" in names and "tomli" not in names
    } == set()


def test_probes_stand_alone():
    """They are run by the examined environment's Python, 3.10 or newer, and import nothing of ours."""
    probes = list(PROBES.glob("*.py"))
    assert probes
    assert {path for path in probes if imports(path) & {"diagnostics", "grpo_core", "repro"}} == set()


@pytest.mark.parametrize(
    "module", ["diagnostics.__main__", "diagnostics.catalog", "diagnostics.matrix.__main__"]
)
def test_start_up_loads_nothing_heavy(module):
    """Importing a command of diagnostics loads no heavy package, by whatever way."""
    program = f"import sys, {module}; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
