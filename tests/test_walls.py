"""Who may import whom, and what may be imported at all: the walls between the parts."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

# One worker reads all the sources, once.
pytestmark = pytest.mark.xdist_group("sources")
ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "vllm", "ray", "transformers", "numpy", "trl"}
PROGRAMS = "diagnostics/doctor/probe/programs/"
# What a cell already has. Anything else would have to be added to it.
IN_CELL = {
    "torch",
    "numpy",
    "transformers",
    "huggingface_hub",
    "tokenizers",
    "safetensors",
    "vllm",
    "trl",
    "fastapi",
    "uvicorn",
    "pydantic",
    "starlette",
    "tomli",
    # Imported late, where a setting asks for them.
    "datasets",
    "math_verify",
    "peft",
    "pyarrow",
    "tensorboard",
    "wandb",
    # Imported late, by the repros whose subject they are.
    "filelock",
    "ray",
    "swift",
    "verl",
}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@functools.cache
def imports(path: Path) -> list[tuple[int, str, bool]]:
    """Returns (line, dotted module, runs at import) of each import, those for type checkers left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for child in block.body
        for node in ast.walk(child)
    }
    late = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, id(node) not in late) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append((node.lineno, node.module, id(node) not in late))
    return found


def offences(package: str, forbidden: object, *, only_at_import: bool = False) -> list[str]:
    assert sources(package), f"{package} has no sources: this test would pass on nothing"
    return [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path in sources(package)
        for line, module, at_import in imports(path)
        if (at_import or not only_at_import) and forbidden(module)
    ]


def top(module: str) -> str:
    return module.partition(".")[0]


def test_the_trainer_stands_alone():
    """grpo_core imports neither repro nor diagnostics."""
    assert offences("grpo_core", lambda module: top(module) in {"repro", "diagnostics"}) == []


def test_repros_know_only_the_catalogue_and_the_trainer():
    """Repro imports nothing of ours but diagnostics.catalog and grpo_core."""
    assert (
        offences(
            "repro",
            lambda module: top(module) == "diagnostics" and not module.startswith("diagnostics.catalog"),
        )
        == []
    )


def test_diagnostics_reach_cells_only_by_running_them():
    """Diagnostics import neither the trainer nor the repros, save grpo_core.types in audit."""
    found = offences("diagnostics", lambda module: top(module) in {"repro", "grpo_core"})
    assert [
        line
        for line in found
        if not line.startswith("diagnostics/audit") or not line.endswith("grpo_core.types")
    ] == []


def test_diagnostics_import_nothing_heavy():
    """No module names a heavy package, not even inside a function.

    Programs for children may; one does Ray; and audit, which computes with a checkpoint, does inside functions.
    """
    found = offences("diagnostics", lambda module: top(module) in HEAVY)
    on_ray = re.compile(r"diagnostics/matrix/ray_cells\.py:\d+: ray(\.\w+)*")
    computes = re.compile(r"diagnostics/audit/[\w/]+\.py:\d+: (torch|transformers|numpy)(\.\w+)*")
    allowed = (on_ray.fullmatch, computes.fullmatch, lambda line: line.startswith(PROGRAMS))
    assert [line for line in found if not any(fits(line) for fits in allowed)] == []
    at_import = offences("diagnostics", lambda module: top(module) in HEAVY, only_at_import=True)
    assert [line for line in at_import if not line.startswith(PROGRAMS)] == []


def test_programs_for_children_are_never_imported():
    """They are run by the examined environment's Python: nothing of ours imports them, and they nothing of ours."""
    assert (
        offences("diagnostics", lambda module: module.startswith("diagnostics.doctor.probe.programs")) == []
    )
    ours = offences("diagnostics", lambda module: top(module) in {"diagnostics", "grpo_core", "repro"})
    assert [line for line in ours if line.startswith(PROGRAMS)] == []
    for path in (ROOT / PROGRAMS).glob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 10))


@pytest.mark.parametrize("package", ["grpo_core", "repro"])
def test_what_runs_in_a_cell_adds_nothing_to_it(package):
    """In-cell code imports the standard library, itself and what a cell already has."""
    allowed = set(sys.stdlib_module_names) | IN_CELL | {"grpo_core", "repro", "diagnostics"}
    found = offences(package, lambda module: top(module) not in allowed)
    # A search machine needs Hypothesis, which who searches puts beside the cell. Nothing else may ask for it.
    machines = re.compile(r"repro/search/machine(_v[01])?\.py:\d+: hypothesis(\.\w+)?")
    assert [line for line in found if not machines.fullmatch(line)] == []


@pytest.mark.parametrize("package", ["grpo_core", "repro"])
def test_what_runs_in_a_cell_reads_on_python_310(package):
    """In-cell code keeps to the syntax and the standard library of Python 3.10."""
    for path in sources(package):
        ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 10))
    newer = {"tomllib"}
    for path in sources(package):
        text = path.read_text(encoding="utf-8")
        for _line, module, _ in imports(path):
            assert top(module) not in newer or "import tomli" in text, (
                f"{path}: {module} is not in Python 3.10"
            )


@pytest.mark.parametrize(
    "module", ["diagnostics.__main__", "diagnostics.catalog", "diagnostics.matrix.__main__"]
)
def test_start_up_loads_nothing_heavy(module):
    """Importing a command of diagnostics loads no heavy package, by whatever way."""
    program = f"import sys, {module}; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=500, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
