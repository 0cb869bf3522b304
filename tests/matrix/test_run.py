"""The matrix command runs a toy project with real uv, a real index on loopback, real environments and tiny packages.

The tests check verdicts and exit codes, which layers a second run repeats, infrastructure faults, and interrupts.
"""

import shutil
import signal
import subprocess
from dataclasses import replace

import pytest

from diagnostics.matrix import command as cli
from tests.fork_server import ROOT
from tests.processes import is_running, wait_until


@pytest.fixture(scope="module")
def locked_project(tmp_path_factory, kit):
    """Lock three cells: one that works, one with a known crash, one whose trainer does not fit its engine.

    The packages are toys with the numbers of real releases, whose names the layer `contract` reads from the API index.
    """
    folder = tmp_path_factory.mktemp("locked")
    with kit.make_project(folder) as project:
        project.index.add("vllm", "0.10.2", kit.toy_vllm("0.10.2", kit.NOT_REPRODUCED))
        project.index.add("vllm", "0.11.0", kit.toy_vllm("0.11.0", kit.CRASH, kit.MITIGATED))
        project.index.add("trl", "0.24.0", extras={"vllm": ("vllm>=0.10.2",)})
        project.index.add("trl", "0.14.0", extras={"vllm": ("vllm<0.11",)})
        known = """
            [CELL.expect.scheduler]
            outcome = "fail"
            codes = ["SCH001"]
            reason = "known"
            shows = ["SCH001 lost_step unmitigated reproduced vllm/core/scheduler.py:7", "abort_orphans mitigated"]
        """
        missing_name = """
            [CELL.expect.resolve]
            outcome = "unresolvable"
            reason = "trl wants vllm<0.11"
            [CELL.expect.contract]
            outcome = "fail"
            reason = "no argument device"
            shows = ["vllm.LLM(device=)"]
        """
        project.write(
            kit.cell_table("0.10.2", "0.24.0", (*kit.CELL_LAYERS, "engine", "train:colocate")),
            kit.cell_table("0.11.0", "0.24.0", kit.CELL_LAYERS, more=known),
            kit.cell_table("0.11.0", "0.14.0", kit.LIGHT_LAYERS, recipe=None, more=missing_name),
        )
        locked = project.run("lock")
        assert (locked.returncode, "failed" in locked.stderr) == (0, False), locked.stderr
        yield project


@pytest.fixture
def fresh_project(locked_project, tmp_path):
    """Return a copy of the locked project in which nothing has run."""
    return copy_project(locked_project, tmp_path)


@pytest.fixture(scope="module")
def first_run(locked_project, tmp_path_factory):
    """Return a copy of the locked project after one run, and the run's exit code and output."""
    project = copy_project(locked_project, tmp_path_factory.mktemp("finished"))
    return project, project.run("run")


@pytest.fixture
def finished_project(first_run, tmp_path):
    """Return a copy of the finished project with its store and environments."""
    return copy_project(first_run[0], tmp_path)


def copy_project(project, folder):
    """Copy a project into a folder."""
    shutil.copytree(project.folder, folder / "project", symlinks=True)
    return replace(project, folder=folder / "project")


def verdicts(report):
    """Return the verdicts of each cell's layers."""
    return {
        name: {layer: item["verdict"] for layer, item in layers.items()} for name, layers in report.items()
    }


EXPECTED = {
    "vllm-0.10.2+trl-0.24.0": dict.fromkeys(
        ["resolve", "contract", "install", "import", "scheduler", "engine", "train:colocate"], "pass"
    ),
    "vllm-0.11.0+trl-0.24.0": {
        **dict.fromkeys(["resolve", "contract", "install", "import"], "pass"),
        "scheduler": "expected_fail",
    },
    "vllm-0.11.0+trl-0.14.0": {"resolve": "unresolvable", "contract": "expected_fail"},
}


def test_unchanged_second_run_uses_the_store(first_run):
    """The first run runs all layers in real environments; an unchanged second run only reads the store."""
    project, first = first_run
    assert first.returncode == 0, first.stdout + first.stderr
    assert verdicts(project.report()) == EXPECTED
    before = (project.store / "store.jsonl").read_bytes()
    second = project.run("run")
    assert (second.returncode, second.stdout) == (0, first.stdout)
    assert (project.store / "store.jsonl").read_bytes() == before
    assert layers_run(second) == set()
    assert len(layers_run(first)) == sum(map(len, EXPECTED.values()))


def change_matrix(project, old, new):
    """Replace a text of the matrix file."""
    path = project.folder / "matrix.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def layers_run(done):
    """Return the (cell, layer) pairs that a run started."""
    return {tuple(line.split()[-3:-1]) for line in done.stderr.splitlines() if line.endswith("…")}


CODES, OTHER_CODES = (f'codes = ["{code}"]\n            reason' for code in ("SCH001", "SCH002"))


def test_unexpected_codes_decide_the_exit_code(finished_project):
    """Unexpected codes exit with 1; a changed expectation runs no layer again."""
    change_matrix(finished_project, 'reason = "known"', 'reason = "known better"')
    done = finished_project.run("run")
    assert ("known better" in done.stdout, layers_run(done)) == (True, set())
    change_matrix(finished_project, CODES, OTHER_CODES)
    done = finished_project.run("run")
    assert done.returncode == 1
    assert "expected the codes SCH002, observed SCH001" in done.stdout


def test_changed_code_and_fresh_run_again(finished_project):
    """Changed code runs its layers again, a changed comment does not; --fresh repeats only the named layers."""
    program = finished_project.folder / "programs" / "grpo_core" / "__main__.py"
    program.write_text(program.read_text() + "# changed\n")
    assert layers_run(finished_project.run("run")) == set()
    program.write_text(program.read_text() + "CHANGED = 1\n")
    cell = "vllm-0.10.2+trl-0.24.0"
    assert layers_run(finished_project.run("run")) == {(cell, "engine"), (cell, "train:colocate")}
    assert layers_run(finished_project.run("run", "--cells", cell, "--layers", "import", "--fresh")) == {
        (cell, "import")
    }


def test_low_disk_space_is_an_infrastructure_fault(fresh_project):
    """With too little disk nothing is built, the summary has the required space, and the exit code is 3."""
    change_matrix(fresh_project, "disk_gb = 0.01", "disk_gb = 900000.0")
    done = fresh_project.run("run", "--cells", "vllm-0.10.2+trl-0.24.0")
    assert done.returncode == 3, done.stdout + done.stderr
    layers = fresh_project.report()["vllm-0.10.2+trl-0.24.0"]
    assert layers["install"]["verdict"] == "infra_error"
    assert "900000.0 GB of free disk are required" in layers["install"]["summary"]
    assert (layers["import"]["verdict"], layers["import"]["summary"]) == ("not_run", "install: infra_error")
    assert not list((fresh_project.store / "environments").iterdir())


def test_unreachable_index_is_an_infrastructure_fault(fresh_project):
    """An unreachable index is an infrastructure error with exit code 3, and the next run tries again."""
    environ = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple/",
        "UV_CACHE_DIR": str(fresh_project.folder / "empty"),
    }
    light = ("run", "--layers", "resolve,contract")
    done = fresh_project.run(*light, **environ, UV_HTTP_RETRIES="0")
    assert done.returncode == 3, done.stdout
    reports = verdicts(fresh_project.report()).values()
    assert {layers["resolve"] for layers in reports} == {"infra_error"}
    assert layers_run(fresh_project.run(*light)) == {(cell, "resolve") for cell in EXPECTED}


def test_networkx_message_is_no_network_fault(project, kit):
    """A message of uv that names the package networkx is not taken for a network fault."""
    project.index.add("vllm", "0.10.2")
    project.index.add("trl", "0.24.0", extras={"vllm": ("vllm", "networkx==9")})
    project.write(kit.cell_table("0.10.2", "0.24.0", ("resolve",), recipe=None))
    assert project.run("run").returncode == 1
    assert project.report()["vllm-0.10.2+trl-0.24.0"]["resolve"]["verdict"] == "unresolvable"


def test_environment_is_rebuilt_if_fresh_or_incomplete(finished_project):
    """An environment is rebuilt by a fresh `install`, and by another layer if its marker file is missing."""
    place = finished_project.store / "environments" / "vllm-0.10.2+trl-0.24.0"
    (place / "left-over").write_text("")
    again = ("run", "--cells", "vllm-0.10.2+trl-0.24.0", "--fresh", "--layers")
    assert finished_project.run(*again, "install").returncode == 0
    assert ((place / "bin" / "python").exists(), (place / "left-over").exists()) == (True, False)
    (place / "grpo-doctor.json").unlink()
    (place / "bin" / "python").unlink()
    assert finished_project.run(*again, "import").returncode == 0
    assert subprocess.run([place / "bin" / "python", "-c", "import vllm"], check=False).returncode == 0


@pytest.fixture(scope="module")
def hanging_project(tmp_path_factory, kit):
    """Lock a cell whose programs hang after they write their process id into the home folder."""
    folder = tmp_path_factory.mktemp("hanging")
    hang = "import os, time; open(os.environ['HOME'] + '/pid', 'w').write(str(os.getpid())); time.sleep(600)"
    with kit.make_project(folder) as project:
        project.index.add("vllm", "0.10.2", kit.toy_vllm("0.10.2", before=hang))
        project.index.add("trl", "0.24.0", extras={"vllm": ("vllm",)})
        project.write(kit.cell_table("0.10.2", "0.24.0", kit.CELL_LAYERS))
        project.run("lock")
        yield project


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_keeps_results_and_ends_the_program(hanging_project, tmp_path, number, code):
    """After Ctrl-C or SIGTERM the store has the results so far, the table is printed, and the running program ends."""
    project = copy_project(hanging_project, tmp_path)
    pid = project.store / "home" / "pid"
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(project.command("run"), env=project.environ, cwd=ROOT, **streams)
    wait_until(lambda: pid.exists() and pid.read_text())
    process.send_signal(number)
    output, errors = process.communicate(timeout=500)
    assert process.returncode == code, errors
    assert "3 of 5 results passed" in output
    wait_until(lambda: not is_running(int(pid.read_text())))
    assert len((project.store / "store.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cells", "vllm-0.12.0+trl-9"], "did you mean vllm-0.12.0+trl-0.25.0"),
        (["--ray", "nowhere"], "--ray"),
        (["--store", "FILE"], "cannot be used as a store: File exists"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(capsys, tmp_path, arguments, message):
    """Invalid arguments exit with 2 and one line on stderr."""
    (tmp_path / "file").write_text("")
    command_line = [str(tmp_path / "file") if item == "FILE" else item for item in arguments]
    if "--store" not in command_line:
        command_line += ["--store", str(tmp_path / "new")]
    code = cli.main(["run", "--cells", "vllm-0.12.0+trl-0.25.0", "--layers", "contract", *command_line])
    output, errors = capsys.readouterr()
    assert (code, output, len(errors.splitlines())) == (2, "", 1)
    assert message in errors
