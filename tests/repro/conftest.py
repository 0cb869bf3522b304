"""Shared fixtures of the repro tests: toy repros, importable here and in every child process."""

import importlib
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.fixture
def toys(monkeypatch, tmp_path):
    """The module of toys; `tmp_path` is on the path as well, with modules that are bad to import."""
    (tmp_path / "endless_import.py").write_text("import threading\nthreading.Event().wait()\n")
    (tmp_path / "deadly_import.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(ROOT), str(tmp_path)]))
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("toys")
