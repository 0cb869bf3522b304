"""The workflow made from the matrix file: valid, complete, and of commands that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from diagnostics.matrix import __main__ as cli
from diagnostics.matrix import ci
from diagnostics.matrix.cells import load

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / ".github" / "workflows" / "matrix.yml"


@pytest.fixture(scope="module")
def matrix():
    """The project's own."""
    return load(ROOT / "matrix.toml")


def test_the_committed_workflow_is_the_one_that_is_made(capsys):
    """A cell added to the matrix file is a job as soon as the file is made again, and this test says when."""
    assert cli.main(["workflow"]) == 0
    assert capsys.readouterr().out == COMMITTED.read_text()


def test_every_cell_has_a_job_that_may_last(matrix):
    """Each under the name of its cell, at least as long as its layers' limits, at most as long as GitHub lets it."""
    text = COMMITTED.read_text()
    cells = [cell for cell in matrix.cells if "full" in cell.profiles]
    found = dict(re.findall(r'cell: "([^"]+)", artifact: "[^"+:]+", minutes: (\d+)', text))
    assert list(found) == [cell.id for cell in cells]
    for cell in cells:
        limits = sum(matrix.layer(name).timeout_s for name in cell.layers) / 60
        assert min(ci.LONGEST_MINUTES, limits) < int(found[cell.id]) <= ci.LONGEST_MINUTES


def test_the_commands_in_it_exist():
    """What follows `nox -s matrix --` is taken by the matrix's own parser."""
    commands = re.findall(r"run: nox -s matrix -- (.+)", COMMITTED.read_text())
    assert len(commands) == 4
    for line in commands:
        words = shlex.split(line)
        asked = words if not words[0].startswith("-") else ["run", *words]
        assert callable(cli._parser().parse_args(asked).command)


def test_without_a_gpu_runner_there_is_no_such_job(matrix):
    """And nothing waits for it; a hostile label stays a string."""
    text = ci.workflow(matrix, matrix.cells[:1], cpu='x" }\n evil: y', gpu=())
    assert "gpu" not in re.sub(r"#.*", "", text)
    assert '"x\\" }\\n evil: y"' in text
    assert '["self-hosted", "a b"]' in ci.workflow(matrix, (), cpu="c", gpu=("self-hosted", "a b"))


def test_it_is_a_valid_workflow():
    """By the schema of GitHub's workflows, as check-jsonschema ships it."""
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, str(COMMITTED)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
