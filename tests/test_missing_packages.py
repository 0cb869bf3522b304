"""A command whose package is missing prints how to install it, and other commands work without the package."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from grpo_core.errors import not_installed
from tests.documents import ROOT
from tests.processes import run_python

# Program that runs a module with some imports blocked, as if these packages were not installed.
WITHOUT = """\
import runpy, sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
LOG = next((ROOT / "tests" / "diagnostics" / "logs").glob("*/scheduler073__overlong_prompt.log"))
HANG = ROOT / "tests" / "diagnostics" / "hang" / "snapshots" / "HNG001-gather_skipped-0.json"
TRAIN_EXTRA = "pip install 'grpo-doctor[train]'"
TORCH = (
    f"grpo_core: torch is not installed here: {TRAIN_EXTRA} (with CUDA: gigabytes; the CPU's "
    "comes by pip install torch --index-url https://download.pytorch.org/whl/cpu first)\n"
)


def install_hint(package: str) -> str:
    """Return the error line for a package that every installation should have."""
    return f"grpo-doctor: {package} is not installed here: pip install {package}\n"


# Missing module, command, and the complete stderr; the exit code is 2.
REFUSED = [
    ("click", "diagnostics triage run.log", install_hint("click")),
    ("msgspec", "diagnostics explain SCH002", install_hint("msgspec")),
    ("re2", "diagnostics triage run.log", install_hint("google-re2")),
    ("re2", "diagnostics explain stale weights", install_hint("google-re2")),
    ("yaml", "diagnostics lint c.yaml", install_hint("pyyaml")),
    ("rich", "diagnostics triage run.log", install_hint("rich")),
    ("rich", "diagnostics hang --from hang.json --verbose", install_hint("rich")),
    ("packaging", "diagnostics versions", install_hint("packaging")),
    ("packaging", "diagnostics matrix run", install_hint("packaging")),
    ("jinja2", "diagnostics triage run.log --format markdown", install_hint("jinja2")),
    ("transformers", "grpo_core train", f"grpo_core: transformers is not installed here: {TRAIN_EXTRA}\n"),
    ("safetensors", "grpo_core train", f"grpo_core: safetensors is not installed here: {TRAIN_EXTRA}\n"),
    (
        "ray",
        "diagnostics matrix run --ray auto --store store",
        "grpo-doctor: --ray: Ray is not installed here: pip install 'grpo-doctor[matrix,ray]'\n",
    ),
    ("torch", "diagnostics train", TORCH),
    ("torch", "grpo_core replay run 1", TORCH),
    (
        "hypothesis",
        "repro fuzz --engine v1",
        "repro: a search needs Hypothesis beside the cell: uv pip install --target DIR hypothesis, "
        "and DIR in PYTHONPATH (playing a saved story needs none)\n",
    ),
]
# Missing modules, command, exit code, and text in stdout.
ANSWERED = [
    ("py_spy,torch", "diagnostics matrix", 0, "versions: "),
    ("py_spy,yaml", "diagnostics hang --from hang.json", 1, "HANG  HNG001"),
    ("pyarrow", "diagnostics audit run", 3, "pyarrow"),
    ("packaging,re2,yaml,rich,jinja2,torch,transformers", "repro list", 0, "SCH001  "),
    ("torch,fastapi,uvicorn", "grpo_core --help", 0, "train"),
]  # fmt: skip


@pytest.fixture
def run_without(tmp_path):
    """Return a function that runs a command without some modules and returns (exit code, stdout, stderr)."""
    (tmp_path / "c.yaml").write_text("per_device_train_batch_size: 4\n")
    shutil.copy(LOG, tmp_path / "run.log")
    shutil.copy(HANG, tmp_path / "hang.json")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "completions_00001.parquet").touch()

    def run(modules, line):
        done = run_python("-c", WITHOUT, modules, *line.split(), cwd=tmp_path, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize(("module", "line", "message"), REFUSED)
def test_missing_package_is_named_with_its_install_command(run_without, module, line, message):
    code, _, errors = run_without(module, line)
    assert (code, errors) == (2, message)


@pytest.mark.parametrize(("modules", "line", "code", "output"), ANSWERED)
def test_command_works_without_packages_that_it_does_not_need(run_without, modules, line, code, output):
    exit_code, answer, errors = run_without(modules, line)
    assert (exit_code, errors) == (code, "")
    assert output in answer


def test_missing_module_of_another_package_is_named():
    """If an error of transformers has no module name, the name is taken from its cause."""
    error = ModuleNotFoundError("Could not import module 'LlamaConfig'.")
    error.__cause__ = ModuleNotFoundError("No module named 'safetensors'", name="safetensors")
    assert not_installed(error) == "safetensors is not installed here: pip install 'grpo-doctor[train]'"
    assert not_installed(ModuleNotFoundError("of nothing")) == ""
