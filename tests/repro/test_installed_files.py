"""Installed upstream packages and their source are found, and files that differ from the wheel are named."""

import base64
import hashlib
import importlib
import sys

import pytest

from repro import upstream

SCHEDULER = "def run(left):\n    assert len(self.left) == 0\n"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution named vllm with a correct RECORD; return its folder."""
    (tmp_path / "vllm").mkdir()
    files = {"vllm/__init__.py": "x = 1\n", "vllm/scheduler.py": SCHEDULER, "vllm/data.json": "{}"}
    lines = []
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(text)}")
    info = tmp_path / "vllm-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 2.0\n")
    (info / "RECORD").write_text("\n".join([*lines, "vllm/late.py,,", "vllm-2.0.dist-info/RECORD,,"]) + "\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    return tmp_path


def compare_files():
    """Compare the installed vLLM with its RECORD, as the command does."""
    return upstream.compare_with_wheel(upstream.first_installed(upstream.VLLM))


def test_untouched_distribution_is_unmodified(installed):
    """An untouched distribution has no modified files; only Python files with a hash in RECORD are compared."""
    assert compare_files() == upstream.WheelComparison("vllm", "2.0", files_checked=2, modified=())
    assert upstream.versions()["vllm"] == "2.0"


def test_modified_and_missing_files_are_named(installed):
    (installed / "vllm" / "__init__.py").write_text("x = 2\n")
    (installed / "vllm" / "scheduler.py").unlink()
    assert compare_files().modified == ("vllm/__init__.py", "vllm/scheduler.py (gone)")


def test_missing_distribution_gives_no_error():
    assert upstream.first_installed(("no-such-distribution",)) is None
    assert upstream.source("vllm/scheduler.py", ("no-such-distribution",)) is None


@pytest.mark.parametrize(
    ("path", "statement", "reason"),
    [
        ("vllm/scheduler.py", "assert len(self.left) == 0", None),
        ("vllm/scheduler.py", "assert x", "vllm/scheduler.py of vllm 2.0 does not contain `assert x`"),
        ("vllm/core.py", "assert x", "vllm 2.0 has no vllm/core.py"),
    ],
)
def test_missing_source_is_named(installed, path, statement, reason):
    """The reason names the missing file, or the statement that it does not contain; None if nothing is missing."""
    assert upstream.explain_missing_code(path, statement) == reason
