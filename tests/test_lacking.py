"""Without each package that only some commands need: a sentence with what to install, or an answer without it."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from grpo_core.show.causes import not_installed
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
RE2 = "diagnostics: google-re2 is not installed here: pip install google-re2\n"
YAML = "diagnostics: pyyaml is not installed here: pip install pyyaml\n"
RICH = "diagnostics: rich is not installed here: pip install rich\n"
PACKAGING = "diagnostics: packaging is not installed here: pip install packaging\n"
JINJA = "matrix: jinja2 is not installed here: pip install 'grpo-doctor[matrix]'\n"
INDEX = "is not installed here: pip install 'grpo-doctor[matrix]'\n"
READING = ("pypi_simple", "requests", "remotezip")
BISECT = "bisect --trl newest --vllm 0.30.0..0.32.0 --layer contract --store store"
TRAIN = (
    "grpo_core: torch is not installed here: pip install 'grpo-doctor[train]' (with CUDA: gigabytes; the CPU's "
    "comes by pip install torch --index-url https://download.pytorch.org/whl/cpu first)\n"
)
# What is not there, the command, and all that it complains of before it leaves with 2.
REFUSED = [
    ("re2", "diagnostics triage run.log", RE2),
    ("re2", "diagnostics explain stale weights", RE2),
    ("re2", "diagnostics catalogue --check", RE2),
    ("yaml", "diagnostics lint c.yaml", YAML),
    ("rich", "diagnostics hang --from hang.json --verbose", RICH),
    ("packaging", "diagnostics doctor", PACKAGING),
    ("packaging", "diagnostics doctor --fix-plan", PACKAGING),
    ("packaging", "diagnostics explain SCH002", PACKAGING),
    ("packaging", "diagnostics versions", PACKAGING),
    (
        "packaging",
        "diagnostics matrix run",
        "grpo-doctor: matrix: packaging is not installed here: pip install packaging\n",
    ),
    (
        "transformers",
        "grpo_core train",
        "grpo_core: transformers is not installed here: pip install 'grpo-doctor[train]'\n",
    ),
    (
        "safetensors",
        "grpo_core train",
        "grpo_core: safetensors is not installed here: pip install 'grpo-doctor[train]'\n",
    ),
    (
        "torch",
        "diagnostics audit --server http://127.0.0.1:1/v1 --checkpoint .",
        "diagnostics: audit: torch is not installed here: pip install 'grpo-doctor[audit]', "
        "or take the trainer's Python\n",
    ),
    *(
        (module, "diagnostics matrix add vllm==newest --store store", f"matrix: {module} {INDEX}")
        for module in READING
    ),
    ("pypi_simple", "diagnostics matrix lock --releases --store store", f"matrix: pypi_simple {INDEX}"),
    ("jinja2", "diagnostics matrix report --store store", JINJA),
    ("jinja2", "diagnostics matrix workflow", JINJA),
    (
        "ray",
        "diagnostics matrix run --ray auto --store store",
        "matrix: --ray: Ray is not installed here: pip install 'grpo-doctor[matrix,ray]'\n",
    ),
    ("torch", "diagnostics train", TRAIN),
    ("torch", "grpo_core train", TRAIN),
    ("torch", "grpo_core probe", TRAIN),
    ("torch", "grpo_core replay run", TRAIN),
    ("pyarrow", "grpo_core check run", "grpo_core: run: Parquet is read by pyarrow: pip install pyarrow\n"),
    (
        "hypothesis",
        "repro fuzz --engine v1",
        "repro: a search needs Hypothesis beside the cell: uv pip install --target DIR hypothesis, "
        "and DIR in PYTHONPATH (playing a saved story needs none)\n",
    ),
]
# What is not there, the command, its exit code, and what it says all the same.
ANSWERED = [
    ("rich", "diagnostics triage run.log", 1, "SCH002"),
    ("rich,yaml,re2", "diagnostics explain SCH002", 0, "SCH002  "),
    ("re2,yaml", "diagnostics lint -- python train.py", 3, "lint: nothing was judged\n"),
    ("rich,yaml,re2,packaging", "diagnostics catalogue", 0, "SCH002  "),
    ("re2,yaml,jinja2,pypi_simple,requests,remotezip", "diagnostics matrix", 0, "versions: "),
    ("py_spy,yaml", "diagnostics hang --from hang.json", 1, "HANG  HNG001"),
    ("backports.zstd,compression.zstd", "diagnostics triage run.log.zst", 3, "zstd, which Python before 3.14 does not"),
    ("pyarrow", "diagnostics audit run", 3, "pyarrow"),
    ("packaging,re2,yaml,rich,jinja2,torch,transformers", "repro list", 0, "SCH001  "),
    ("torch,fastapi,uvicorn", "grpo_core --help", 0, "train"),
]  # fmt: skip


@pytest.fixture
def without(tmp_path):
    """Runs a command line in a folder with what it names: exit code, standard output, standard error."""
    (tmp_path / "c.yaml").write_text("per_device_train_batch_size: 4\n")
    shutil.copy(LOG, tmp_path / "run.log")
    shutil.copy(HANG, tmp_path / "hang.json")
    (tmp_path / "run.log.zst").write_bytes(b"\x28\xb5\x2f\xfd\x00\x00")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "completions_00001.parquet").touch()

    def run(modules, line):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, modules, *line.split()],
            cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
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
    left, answer, complained = without(modules, line)
    assert (left, complained) == (code, "")
    assert told in answer


def test_a_module_that_another_package_misses_is_named():
    """Transformers raises an error of its own without a name, from the one that has it."""
    error = ModuleNotFoundError("Could not import module 'LlamaConfig'.")
    error.__cause__ = ModuleNotFoundError("No module named 'safetensors'", name="safetensors")
    assert not_installed(error) == "safetensors is not installed here: pip install 'grpo-doctor[train]'"
    assert not_installed(ModuleNotFoundError("of nothing")) == ""
