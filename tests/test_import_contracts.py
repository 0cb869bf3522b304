"""grpo_core, repro, the probe programs and the start of commands import only allowed packages.

grpo_core and repro run in cells of the matrix. `lint-imports` checks imports between the project's packages, and cannot
check these.
"""

import ast
import sys
from pathlib import Path

import pytest

from tests.processes import run_python

ROOT = Path(__file__).resolve().parent.parent
HEAVY_PACKAGES = {"torch", "vllm", "ray", "transformers", "numpy", "trl"}
PROBES = ROOT / "diagnostics" / "doctor" / "probe" / "programs"
# Packages that cells have. `repro fuzz` needs Hypothesis too, which its user adds to the path.
IN_CELL = {
    "datasets", "fastapi", "filelock", "h11", "huggingface_hub", "hydra", "math_verify", "numpy", "peft", "pyarrow",
    "pydantic", "ray", "safetensors", "starlette", "swift", "tensorboard", "tokenizers", "tomli", "torch",
    "transformers", "trl", "uvicorn", "verl", "vllm", "wandb",
}  # fmt: skip


def imports(path: Path) -> set[str]:
    """Return the top-level packages that a file imports anywhere, parsed with the grammar of Python 3.10."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 10))
    packages: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            packages.add(node.module.partition(".")[0])
    return packages


@pytest.mark.parametrize("package", ["grpo_core", "repro"])
def test_code_for_cells_imports_only_packages_of_the_cell(package):
    """Code for cells imports only the standard library, packages of cells, and Hypothesis in `fuzz`.

    Python 3.10 has no tomllib, so a file that imports it also imports tomli.
    """
    allowed = set(sys.stdlib_module_names) | IN_CELL | {"grpo_core", "repro", "diagnostics"}
    for path in (ROOT / package).rglob("*.py"):
        names = imports(path)
        assert names - allowed - {"hypothesis"} == set(), path
        assert "hypothesis" not in names or path.parent.name == "fuzz", path
        assert "tomllib" not in names or "tomli" in names, path


def test_probes_import_no_module_of_the_project():
    """Probe programs import nothing from the project, because the examined environment's Python runs them."""
    probes = list(PROBES.glob("*.py"))
    assert probes
    assert {path for path in probes if imports(path) & {"diagnostics", "grpo_core", "repro"}} == set()


@pytest.mark.parametrize(
    "module", ["diagnostics.__main__", "diagnostics.catalog", "diagnostics.matrix.__main__"]
)
def test_start_up_imports_no_heavy_package(module):
    program = f"import sys, {module}; print(sorted({HEAVY_PACKAGES!r} & set(sys.modules)))"
    done = run_python("-c", program, cwd=ROOT)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
