"""The suite itself: tests are found and furnished in whatever order their files are named."""

from __future__ import annotations

import subprocess
import sys

from tests.screen import ROOT


def test_a_folder_may_be_named_again():
    """A file of a folder, one of another, and again one of the first: its fixtures are still there."""
    named = [
        "tests/diagnostics/test_tables.py",
        "tests/test_heads.py",
        "tests/diagnostics/test_output.py::test_every_report_is_as_published",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "--setup-plan", *named],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert "fixture 'environment' not found" not in done.stdout
    assert done.returncode == 0, done.stdout[-2000:]
