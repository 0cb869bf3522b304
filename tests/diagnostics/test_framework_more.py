"""A framework more is an entry in the list and a dialect: in a copy of the sources, with nothing else changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
AT = "        # Its package is called verl too, and it is in no registry, so no environment shows its release.\n"
ENTRY = """\
        Framework(
            "toyrl",
            "ToyRL",
            ("toyrl",),
            modules=("toyrl",),
            log_texts=("toyrl.cli",),
            log_marks=r"\\btoyrl[./]cli\\b",
        ),
"""
DIALECT = """\
# ToyRL: its flags.
framework = "toyrl"
start = [{ module = 'toyrl\\.cli$' }]

[names]
rollouts = "group.size"
heat = "sampling.temperature"
"""
LOG = "INFO starting toyrl.cli\nKeyError: 'reward'\n"
ISSUE = ROOT / "diagnostics" / "catalog" / "issues" / "CFG115.toml"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run a command of the copy, which returns its exit code and its document."""
    place = tmp_path_factory.mktemp("copy")
    shutil.copytree(
        ROOT / "diagnostics", place / "diagnostics", ignore=shutil.ignore_patterns("__pycache__", "matrix")
    )
    listed = place / "diagnostics" / "frameworks.py"
    listed.write_text(listed.read_text().replace(AT, ENTRY + AT, 1))
    assert "toyrl" in listed.read_text()
    (place / "diagnostics" / "lint" / "dialects" / "toyrl.toml").write_text(DIALECT)
    entry = place / "diagnostics" / "catalog" / "issues" / "CFG115.toml"
    entry.write_text(ISSUE.read_text().replace('frameworks = ["trl"', 'frameworks = ["toyrl", "trl"', 1))
    assert "toyrl" in entry.read_text()

    def run(*arguments, stdin=""):
        done = subprocess.run(
            [sys.executable, "-m", "diagnostics", *arguments],
            input=stdin,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(place)},
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        return done.returncode, json.loads(done.stdout)

    return run


def test_its_runs_are_linted_in_its_own_words(run):
    """Rules that are of no framework judge it at once."""
    command = ["python3", "-m", "toyrl.cli", "--heat", "0", "--rollouts", "8"]
    code, document = run("lint", "--format", "json", "--", *command)
    assert code == 0
    [finding] = document["findings"]
    assert (finding["code"], finding["severity"]) == ("CFG115", "warning")
    assert [evidence["text"] for evidence in finding["evidence"]] == ["heat = 0", "rollouts = 8"]


def test_its_logs_are_known_and_the_catalogue_may_speak_of_it(run):
    """Logs of an added framework are recognised by the mark in its entry, and catalog entries may name it."""
    code, document = run("triage", "--format", "json", "-", stdin=LOG)
    assert (code, document["subject"]["frameworks"]) == (3, ["toyrl"])
    code, document = run("explain", "CFG115", "--format", "json")
    assert (code, document["frameworks"][0]) == (0, "toyrl")
