"""Listing installed packages, and proving that their files are those of the release."""

import base64
import hashlib
import importlib
import sys

import pytest

from repro import upstream

SCHEDULER = """
class Other:
    def run(self):
        assert len(self.left) == 0

class Scheduler:
    def run(self):
        x = "assert len(self.left) == 0"
        for _ in x:
            assert len(
                self.left) == 0, "with a message"
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution named vllm on disk, with a true RECORD."""
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


def proof():
    """The comparison, as the command makes it."""
    return upstream.compare(upstream.installed(upstream.VLLM))


def test_an_untouched_distribution_is_unmodified(installed):
    """Every Python file with a hash in RECORD is compared; data files and files without one are not."""
    assert proof() == upstream.WheelProof("vllm", "2.0", files_checked=2, modified=())
    assert upstream.versions()["vllm"] == "2.0"


def test_a_touched_file_is_named(installed):
    """An edited and a missing file are both named."""
    (installed / "vllm" / "__init__.py").write_text("x = 2\n")
    (installed / "vllm" / "scheduler.py").unlink()
    assert proof().modified == ("vllm/__init__.py", "vllm/scheduler.py (gone)")


def test_nothing_is_found_where_nothing_is_installed():
    """No distribution, no source, no error."""
    assert upstream.installed(("no-such-distribution",)) is None
    assert upstream.source("vllm/scheduler.py", ("no-such-distribution",)) is None


def test_a_statement_is_found_as_code_in_its_method(installed):
    """Broken over lines, nested and with a message, it's still the same assertion."""
    statement = "assert len(self.left) == 0"
    assert upstream.lacks("vllm/scheduler.py", statement, "Scheduler.run") is None


@pytest.mark.parametrize(
    ("path", "method", "statement", "reason"),
    [
        ("vllm/core.py", "Scheduler.run", "assert x", "vllm 2.0 has no vllm/core.py"),
        (
            "vllm/scheduler.py",
            "Scheduler.go",
            "assert x",
            "vllm/scheduler.py of vllm 2.0 has no Scheduler.go",
        ),
        (
            "vllm/scheduler.py",
            "Scheduler.run",
            "assert x",
            "Scheduler.run of vllm 2.0 does not contain `assert x`",
        ),
        # verl moved its own from a method into a function; the file and the statement are what counts.
        ("vllm/scheduler.py", "", "assert x", "vllm/scheduler.py of vllm 2.0 does not contain `assert x`"),
        ("vllm/scheduler.py", "", "assert len(self.left) == 0", None),
    ],
)
def test_what_is_missing_is_named(installed, path, method, statement, reason):
    """The file, the method, or the statement, from the installed source."""
    assert upstream.lacks(path, statement, method) == reason
