"""Tests of the wheel reader of the evaluation: files are cached, and no file is written outside of the cache."""

from __future__ import annotations

import zipfile

import pytest

from diagnostics import UserError
from diagnostics.api_index import archives
from evaluation.wheels import WheelSources, is_module


def wheel_with(path, name):
    """Return the sources of a wheel with one file."""
    with zipfile.ZipFile(path / "w.whl", "w") as archive:
        archive.writestr(name, "x = 1\n")
    opened = archives.open_wheel(zipfile.ZipFile(path / "w.whl"), is_module)
    return WheelSources(path / "cache", lambda: opened)


def test_files_are_cached(tmp_path):
    """Files that were read once are read again without the wheel."""
    wheel = wheel_with(tmp_path, "vllm/a.py")
    assert (wheel.names(), wheel.read("vllm/a.py")) == ({"vllm/a.py"}, "x = 1\n")
    again = WheelSources(tmp_path / "cache", lambda: pytest.fail("it was opened"))
    assert (again.names(), again.read("vllm/a.py")) == ({"vllm/a.py"}, "x = 1\n")


@pytest.mark.parametrize("name", ["../evil.py", "/tmp/evil.py", "vllm/../../evil.py"])
def test_file_outside_the_folder_is_refused(tmp_path, name):
    """A file whose name points outside the cache folder is refused, and nothing is written."""
    with pytest.raises(UserError, match="outside"):
        wheel_with(tmp_path, name).read(name)
    assert not (tmp_path / "cache").exists()
