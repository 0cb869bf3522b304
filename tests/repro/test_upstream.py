"""The proof that upstream's files are those of the release."""

import base64
import hashlib
import importlib
import sys

import pytest

from repro import upstream


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution on disk with a true RECORD."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("x = 1\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).rstrip(b"=").decode()
    info = tmp_path / "pack-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pack\nVersion: 2.0\n")
    (info / "RECORD").write_text(f"pack/__init__.py,sha256={digest},6\npack-2.0.dist-info/RECORD,,\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    return tmp_path


def test_an_untouched_distribution_is_unmodified(installed):
    """Every Python file of the RECORD is hashed."""
    assert upstream.unmodified("pack") == {
        "distribution": "pack", "version": "2.0", "files_checked": 1, "modified": [],
    }  # fmt: skip


@pytest.mark.parametrize("change", ["edit", "remove"])
def test_a_touched_file_is_named(installed, change):
    """An edited or missing file is in the list."""
    path = installed / "pack" / "__init__.py"
    path.write_text("x = 2\n") if change == "edit" else path.unlink()
    assert upstream.unmodified("pack")["modified"] == ["pack/__init__.py"]
