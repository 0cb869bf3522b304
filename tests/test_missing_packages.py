"""A command whose package is missing prints how to install it, and other commands work without the package.

The commands run with some imports blocked, as if these packages were not installed.
"""

import shutil
import subprocess

import pytest

from grpo_core.console_text import describe_missing_module
from tests.case_files import each_case, read_cases
from tests.documents import ROOT
from tests.processes import run_python

# Program that runs a module with some imports blocked.
WITHOUT = """\
import runpy, sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
LOG = next((ROOT / "tests" / "diagnostics" / "logs").glob("*/scheduler073__overlong_prompt.log"))
HANG = ROOT / "tests" / "diagnostics" / "hang" / "snapshots" / "HNG001-gather_skipped-0.json"
CASES = read_cases(__file__, "missing_packages.yaml")


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


@each_case(CASES["refused"])
def test_missing_package_is_named_with_its_install_command(run_without, module, line, message):
    code, _, errors = run_without(module, line)
    assert (code, errors) == (2, message)


@each_case(CASES["answered"])
def test_command_works_without_packages_that_it_does_not_need(run_without, modules, line, code, output):
    """Without pyarrow, `audit` reports the Parquet file that it could not read."""
    exit_code, answer, errors = run_without(modules, line)
    assert (exit_code, errors) == (code, "")
    assert output in answer


def test_missing_module_of_another_package_is_named():
    """If an error of transformers has no module name, the name is taken from its cause."""
    error = ModuleNotFoundError("Could not import module 'LlamaConfig'.")
    error.__cause__ = ModuleNotFoundError("No module named 'safetensors'", name="safetensors")
    hint = "safetensors is not installed here: pip install 'grpo-doctor[train]'"
    assert describe_missing_module(error) == hint
    assert describe_missing_module(ModuleNotFoundError("of nothing")) == ""
