"""The GitHub workflow generated from the matrix file is valid, complete, and runs existing commands."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from diagnostics.matrix import command as cli
from diagnostics.matrix import workflow as ci
from diagnostics.matrix.cells import load_matrix
from diagnostics.matrix.layers import LAYERS

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / ".github" / "workflows" / "matrix.yml"
RELEASE, SUITE = (COMMITTED.with_name(f"{name}.yml") for name in ("release", "gpu"))
WHOLE = [COMMITTED, RELEASE, SUITE]


@pytest.fixture(scope="module")
def matrix():
    """The project's own matrix."""
    return load_matrix(ROOT / "matrix.toml", LAYERS)


def test_committed_workflow_is_current(capsys):
    """A new cell needs a regenerated workflow."""
    assert cli.main(["workflow"]) == 0
    assert capsys.readouterr().out == COMMITTED.read_text()


def test_every_cell_has_a_job_with_enough_time(matrix):
    """Its limit covers the limits of its layers, within GitHub's maximum."""
    text = COMMITTED.read_text()
    cells = [cell for cell in matrix.cells if "full" in cell.profiles]
    minutes = dict(re.findall(r'cell: "([^"]+)", artifact: "[^"+:]+", minutes: (\d+)\b', text))
    assert list(minutes) == [cell.id for cell in cells]
    for cell in cells:
        limits = sum(matrix.layer(name).timeout_s for name in cell.layers) / 60
        assert min(ci._LONGEST_MINUTES, limits) < int(minutes[cell.id]) <= ci._LONGEST_MINUTES


def test_workflow_commands_parse():
    """The matrix's parser accepts the arguments after `nox -s matrix --`."""
    commands = re.findall(r"run: nox -s matrix -- (.+)", COMMITTED.read_text())
    assert len(commands) == 4
    for line in commands:
        words = shlex.split(line)
        command = words if not words[0].startswith("-") else ["run", *words]
        name, *rest = command
        arguments = [word.replace("stores/*", "stores") for word in rest]
        assert cli.cli.commands[name].make_context(name, arguments).params


def test_gpu_layers_run_on_the_gpu_runner(matrix):
    """The plain job omits them, and lists the layers it runs."""
    cell = next(cell for cell in matrix.cells if "engine" in cell.layers)
    settings = {**matrix.settings, "engine": msgspec.structs.replace(matrix.settings["engine"], gpus=1.0)}
    text = ci.matrix_workflow(msgspec.structs.replace(matrix, settings=settings), [cell], cpu="c", gpu="g")
    (layers,) = re.findall(r'layers: "([^"]+)"', text)
    assert layers.split(",") == [name for name in cell.layers if name != "engine"]
    assert ci.matrix_workflow(matrix, [cell], cpu="c", gpu="g").count("engine") == 1


def test_no_gpu_job_without_a_gpu_runner(matrix):
    """No job waits for it; a hostile label stays a string."""
    text = ci.matrix_workflow(matrix, matrix.cells[:1], cpu='x" }\n evil: y', gpu="")
    assert "gpu" not in re.sub(r"#.*", "", text)
    assert '"x\\" }\\n evil: y"' in text
    assert '["self-hosted", "a b"]' in ci.matrix_workflow(matrix, (), cpu="c", gpu="self-hosted, a b")


def test_release_workflow_permissions():
    """The publishing job may request only its own identity token; the build job may not even that."""
    build, publish = RELEASE.read_text().split("  publish:")
    assert "id-token" not in build
    assert publish.count("permissions:\n      id-token: write\n    steps:") == 1
    assert "secrets." not in build + publish
    matrix_s = set(re.findall(r"uses: (\S+)", COMMITTED.read_text()))
    assert set(re.findall(r"uses: (actions/\S+)", build + publish)) <= matrix_s


def test_gpu_workflow_scripts_exist():
    text = SUITE.read_text()
    scripts = re.findall(r"run: bash (\S+)", text)
    assert scripts == ["evaluation/gpu/fetch_wheels.sh", "evaluation/gpu/run.sh"]
    assert all((ROOT / script).is_file() for script in scripts)
    assert set(re.findall(r"uses: (\S+)", text)) <= set(re.findall(r"uses: (\S+)", COMMITTED.read_text()))


SCHEMA = (sys.executable, "-m", "check_jsonschema", "--builtin-schema")
FORMS = (".github/ISSUE_TEMPLATE/a-run-died.yml", ".github/ISSUE_TEMPLATE/a-fault-of-the-tool.yml")


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (("actionlint",), WHOLE),
        ((str(Path(sys.executable).with_name("zizmor")), "--offline"), WHOLE),
        ((*SCHEMA, "vendor.github-workflows"), WHOLE),
        ((*SCHEMA, "vendor.github-issue-forms"), FORMS),
        ((*SCHEMA, "vendor.github-issue-config"), [".github/ISSUE_TEMPLATE/config.yml"]),
        ((*SCHEMA, "vendor.citation-file-format"), ["CITATION.cff"]),
    ],
    ids=["actionlint", "zizmor", "workflows", "forms", "config", "citation"],
)
def test_external_linters_accept_the_files(command, files):
    """Linters and schemas of workflows, issue forms and the citation, if they are installed."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    if command[1:2] == ("-m",):
        pytest.importorskip("check_jsonschema")
    done = subprocess.run([*command, *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_issue_forms_ask_for_triage_and_the_citation_has_this_version():
    """The forms ask for the Markdown format, which holds no names and addresses."""
    assert all(re.search(r"triage \S+ --format markdown", (ROOT / file).read_text()) for file in FORMS)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
