"""Fixtures of the repro tests: the toy repros, and the repro command in this process with or without them."""

import importlib
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from repro.__main__ import main
from tests.cells import ROOT

HERE = Path(__file__).parent


@pytest.fixture
def toys(monkeypatch, tmp_path):
    """Return the module of toy repros; put it and the modules whose import hangs or crashes on the path."""
    (tmp_path / "endless_import.py").write_text("import threading\nthreading.Event().wait()\n")
    (tmp_path / "deadly_import.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(ROOT), str(tmp_path)]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("toys")


@pytest.fixture
def run_command(capfd):
    """Return a function that runs the command in this process and returns its exit code, stdout and stderr."""

    def run(*arguments, registry="repro.issues"):
        stdout = os.dup(1)  # the command redirects it
        try:
            code = main(arguments, registry=registry)
        except SystemExit as end:
            code = end.code
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)
        output, errors = capfd.readouterr()
        return SimpleNamespace(returncode=code, stdout=output, stderr=errors)

    return run


@pytest.fixture
def run_toys(run_command, toys):
    """Return a function that runs the command with the toy repros registered."""
    return lambda *arguments: run_command(*arguments, registry="toys")
