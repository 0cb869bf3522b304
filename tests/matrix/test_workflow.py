"""Three GitHub workflows, the issue forms and the citation file are valid; the matrix workflow has a job for each cell.

The three are `matrix`, `release` and `gpu`.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from diagnostics.matrix import command as cli
from diagnostics.matrix.cells import load_matrix
from diagnostics.matrix.layers import LAYERS

ROOT = Path(__file__).parents[2]
MATRIX_WORKFLOW = ROOT / ".github" / "workflows" / "matrix.yml"
RELEASE_WORKFLOW, GPU_WORKFLOW = (MATRIX_WORKFLOW.with_name(f"{name}.yml") for name in ("release", "gpu"))
WORKFLOWS = [MATRIX_WORKFLOW, RELEASE_WORKFLOW, GPU_WORKFLOW]
MATRIX_ACTIONS = set(re.findall(r"uses: (\S+)", MATRIX_WORKFLOW.read_text()))


def ci_jobs(capsys, *arguments):
    """Return the jobs that `run --list --json` prints for the workflow."""
    assert cli.main(["run", "--list", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_cell_has_a_job_with_enough_time(capsys):
    """Each cell of the profile `full` has a job whose limit covers those of its layers, within GitHub's maximum."""
    matrix = load_matrix(ROOT / "matrix.toml", LAYERS)
    cells = [cell for cell in matrix.cells if "full" in cell.profiles]
    jobs = ci_jobs(capsys, "--profile", "full")
    assert [job["cell"] for job in jobs] == [cell.id for cell in cells]
    for cell, job in zip(cells, jobs, strict=True):
        assert job["layers"].split(",") == list(cell.layers)
        assert re.fullmatch(r"[\w.-]+", job["artifact"])
        limits = sum(matrix.settings[name].timeout_s for name in cell.layers) / 60
        assert min(cli.LONGEST_MINUTES, limits) < job["minutes"] <= cli.LONGEST_MINUTES


def test_workflow_commands_parse():
    """The matrix's parser accepts the arguments after `nox -s matrix --`."""
    commands = re.findall(r"nox -s matrix -- ([^)\n]+)", MATRIX_WORKFLOW.read_text())
    assert len(commands) == 5
    for line in commands:
        words = shlex.split(line)
        command = words if not words[0].startswith("-") else ["run", *words]
        name, *rest = command
        arguments = [word.replace("stores/*", "stores") for word in rest]
        assert cli.cli.commands[name].make_context(name, arguments).params


def test_release_workflow_permissions():
    """The publishing job alone may request an identity token, and no job reads secrets.

    The actions of GitHub are among those of the matrix workflow.
    """
    build, publish = RELEASE_WORKFLOW.read_text().split("  publish:")
    assert "id-token" not in build
    assert publish.count("permissions:\n      id-token: write\n    steps:") == 1
    assert "secrets." not in build + publish
    assert set(re.findall(r"uses: (actions/\S+)", build + publish)) <= MATRIX_ACTIONS


def test_gpu_workflow_scripts_exist():
    """The GPU workflow runs two scripts that exist, and uses actions of the matrix workflow."""
    text = GPU_WORKFLOW.read_text()
    scripts = re.findall(r"run: bash (\S+)", text)
    assert scripts == ["evaluation/gpu/fetch_wheels.sh", "evaluation/gpu/run.sh"]
    assert all((ROOT / script).is_file() for script in scripts)
    assert set(re.findall(r"uses: (\S+)", text)) <= MATRIX_ACTIONS


SCHEMA = (sys.executable, "-m", "check_jsonschema", "--builtin-schema")
FORMS = (".github/ISSUE_TEMPLATE/a-run-died.yml", ".github/ISSUE_TEMPLATE/a-fault-of-the-tool.yml")


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (("actionlint",), WORKFLOWS),
        ((str(Path(sys.executable).with_name("zizmor")), "--offline"), WORKFLOWS),
        ((*SCHEMA, "vendor.github-workflows"), WORKFLOWS),
        ((*SCHEMA, "vendor.github-issue-forms"), FORMS),
        ((*SCHEMA, "vendor.github-issue-config"), [".github/ISSUE_TEMPLATE/config.yml"]),
        ((*SCHEMA, "vendor.citation-file-format"), ["CITATION.cff"]),
    ],
    ids=["actionlint", "zizmor", "workflows", "forms", "config", "citation"],
)
def test_external_linters_accept_the_files(command, files):
    """Installed linters and schemas accept WORKFLOWS, the issue forms and the citation file."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    if command[1:2] == ("-m",):
        pytest.importorskip("check_jsonschema")
    done = subprocess.run([*command, *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_issue_forms_ask_for_triage_and_the_citation_has_this_version():
    """The forms ask for triage's output in Markdown; the citation has our version."""
    assert all(re.search(r"triage \S+ --format markdown", (ROOT / file).read_text()) for file in FORMS)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
