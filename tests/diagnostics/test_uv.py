"""`diagnostics.uv` finds uv, copies pip's variables (not pip.conf), and chooses arguments for PyTorch's CPU build.

The module needs the standard library only.
"""

import sys

import pytest

from diagnostics import uv
from tests.case_files import each_case, read_cases
from tests.processes import run_python

CASES = read_cases(__file__, "uv_settings.yaml")


@each_case(CASES["pip_settings"])
def test_pip_settings_reach_uv(environ, added):
    """PIP_* variables are passed under uv's names, unless uv's own variable is set."""
    assert uv.uv_environment(environ) == added


@each_case(CASES["torch_wheels"])
def test_torch_arguments_select_the_cpu_build(tmp_path, name, python, version, local):
    """torch comes from a local folder with the CPU build for this Python, otherwise from PyTorch's index for CPUs."""
    (tmp_path / name).write_text("")
    arguments = uv.torch_arguments({"PIP_FIND_LINKS": str(tmp_path)}, python=python, version=version)
    assert arguments == ([] if local else ["--torch-backend", "cpu"])


def test_uv_is_found_or_reported_missing(tmp_path, monkeypatch):
    """uv is found on PATH; otherwise the error says how to install it."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(uv.UvMissingError, match="`pip install uv`"):
        uv.find_uv()
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    assert uv.find_uv() == tmp_path / "uv"


def test_uv_module_needs_only_the_standard_library():
    """The uv module, which the noxfile imports, needs only the standard library."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(['packaging', 'rich', 're2', 'jinja2']))"
    root = uv.__file__.rpartition("/diagnostics/")[0]
    run_python("-S", "-c", f"{blocked}; import diagnostics.uv", check=True, cwd=root)
