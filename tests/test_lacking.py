"""Without each package that only some commands need: a sentence with what to install, or an answer without it."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from grpo_core.errors import not_installed
from tests.documents import ROOT

# Runs a program where modules can't be had, as if they had never been installed.
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


def core(package: str) -> str:
    """Return the line for a package that every installation has."""
    return f"grpo-doctor: {package} is not installed here: pip install {package}\n"


# The missing module, the command, and all of standard error before exit code 2.
REFUSED = [
    ("click", "diagnostics triage run.log", core("click")),
    ("msgspec", "diagnostics explain SCH002", core("msgspec")),
    ("re2", "diagnostics triage run.log", core("google-re2")),
    ("re2", "diagnostics explain stale weights", core("google-re2")),
    ("yaml", "diagnostics lint c.yaml", core("pyyaml")),
    ("rich", "diagnostics triage run.log", core("rich")),
    ("rich", "diagnostics hang --from hang.json --verbose", core("rich")),
    ("packaging", "diagnostics versions", core("packaging")),
    ("packaging", "diagnostics matrix run", core("packaging")),
    ("jinja2", "diagnostics matrix workflow", core("jinja2")),
    ("transformers", "grpo_core train", f"grpo_core: transformers is not installed here: {TRAIN_EXTRA}\n"),
    ("safetensors", "grpo_core train", f"grpo_core: safetensors is not installed here: {TRAIN_EXTRA}\n"),
    (
        "ray",
        "diagnostics matrix run --ray auto --store store",
        "matrix: --ray: Ray is not installed here: pip install 'grpo-doctor[matrix,ray]'\n",
    ),
    ("torch", "diagnostics train", TORCH),
    ("torch", "grpo_core probe", TORCH),
    ("torch", "grpo_core replay run 1", TORCH),
    (
        "hypothesis",
        "repro fuzz --engine v1",
        "repro: a search needs Hypothesis beside the cell: uv pip install --target DIR hypothesis, "
        "and DIR in PYTHONPATH (playing a saved story needs none)\n",
    ),
]
# The missing package, the command, its exit code, and its output.
ANSWERED = [
    ("py_spy,torch", "diagnostics matrix", 0, "versions: "),
    ("py_spy,yaml", "diagnostics hang --from hang.json", 1, "HANG  HNG001"),
    ("pyarrow", "diagnostics audit run", 3, "pyarrow"),
    ("packaging,re2,yaml,rich,jinja2,torch,transformers", "repro list", 0, "SCH001  "),
    ("torch,fastapi,uvicorn", "grpo_core --help", 0, "train"),
]  # fmt: skip


@pytest.fixture
def without(tmp_path):
    """Run a command line in a folder with what it names: exit code, standard output, standard error."""
    (tmp_path / "c.yaml").write_text("per_device_train_batch_size: 4\n")
    shutil.copy(LOG, tmp_path / "run.log")
    shutil.copy(HANG, tmp_path / "hang.json")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "completions_00001.parquet").touch()

    def run(modules, line):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, modules, *line.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize(("module", "line", "told"), REFUSED)
def test_what_is_lacking_is_named_with_what_installs_it(without, module, line, told):
    """In one line, with exit code 2, and with no traceback."""
    code, _, complained = without(module, line)
    assert (code, complained) == (2, told)


@pytest.mark.parametrize(("modules", "line", "code", "told"), ANSWERED)
def test_what_is_not_needed_is_not_asked_for(without, modules, line, code, told):
    """The command answers; what it could not read is told in the answer."""
    exit_code, answer, complained = without(modules, line)
    assert (exit_code, complained) == (code, "")
    assert told in answer


def test_a_module_that_another_package_misses_is_named():
    """Transformers raises an error of its own without a name, from the one that has it."""
    error = ModuleNotFoundError("Could not import module 'LlamaConfig'.")
    error.__cause__ = ModuleNotFoundError("No module named 'safetensors'", name="safetensors")
    assert not_installed(error) == "safetensors is not installed here: pip install 'grpo-doctor[train]'"
    assert not_installed(ModuleNotFoundError("of nothing")) == ""
