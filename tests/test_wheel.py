"""An installed wheel and nothing else: every command answers, and none writes beside itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from diagnostics.matrix.uv import find_uv, uv_environment
from tests import dist

ROOT = Path(__file__).resolve().parent.parent
LOG = next((ROOT / "tests" / "diagnostics" / "logs").glob("*/scheduler073__overlong_prompt.log"))


def uv(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run uv with the settings that the machine gives to pip; the folder it is started from has nothing of ours."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | uv_environment(os.environ)
    command = [str(find_uv()), *map(str, arguments)]
    done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the sdist, and the wheel that was built from it; no index was asked."""
    folder = tmp_path_factory.mktemp("dist")
    # The backend is this environment's, so that nothing has to be downloaded.
    uv("build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    return next(built.glob("*.whl"))


@pytest.mark.parametrize("tag", ["v0.0.7", "0.1.0"])
def test_a_tag_that_is_no_release_is_refused(tag):
    """Nothing is published under a tag that is not the version, or without a day in the changelog."""
    assert any(f"the tag {tag} is not v" in line for line in dist.unready(tag))


class Installed:
    """An environment in which the wheel was installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.beside = folder.parent / f"{folder.name}-work"
        self.beside.mkdir()

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Run the console script in an empty folder: (exit code, standard output, standard error)."""
        environ = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GRPO_", "UV_", "PIP_"))
        } | {"GRPO_DOCTOR_QUIET": "1"}
        done = subprocess.run(
            [self.folder / "bin" / "grpo-doctor", *arguments],
            env=environ,
            cwd=self.beside,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    def files(self) -> set[Path]:
        """All files there are, less what Python compiles for itself."""
        folders = (self.folder, self.beside)
        return {path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Installed:
    """The wheel with what it asks for."""
    folder = tmp_path_factory.mktemp("installed") / "env"
    uv("venv", "--quiet", "--python", sys.executable, folder)
    uv("pip", "install", "--quiet", "--python", folder / "bin" / "python", wheel)
    return Installed(folder)


def test_the_wheel_has_the_catalogue_and_the_data_and_no_matrix(wheel):
    """The wheel has all files that commands read; files for a checkout only, and tests, are absent."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"diagnostics", "grpo_core", "repro"}
    read = [*ROOT.glob("diagnostics/catalog/issues/*.toml"), *ROOT.glob("diagnostics/data/*.json")]
    assert len(read) > 100
    assert {str(path.relative_to(ROOT)) for path in read} <= names
    assert not [name for name in names if name.startswith("diagnostics/matrix/")]


def test_the_sdist_is_a_checkout(built):
    """Out of the sdist the matrix and the tests can be run."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"matrix.toml", "noxfile.py", "diagnostics/matrix/__main__.py", "tests/test_wheel.py"} <= names


NO_CHECKOUT = "grpo-doctor: matrix needs a checkout of the project; there: nox -s matrix\n"
NO_TORCH = (
    "grpo_core: torch is not installed here: pip install 'grpo-doctor[train]' (with CUDA: gigabytes; the CPU's "
    "comes by pip install torch --index-url https://download.pytorch.org/whl/cpu first)\n"
)
# Arguments, the exit code, what stands in standard output, what standard error is (None: not looked at).
COMMANDS = [
    (["--version"], 0, "grpo-doctor 0.1.0\n", ""),
    (["doctor"], 3, "doctor: ", ""),
    (["doctor", "--fix-plan"], 3, "fix plan: ", ""),
    (["doctor", "--facts-json"], 0, '"environment"', ""),
    (["lint", "--", "python", "train.py"], 3, "lint: nothing was checked\n", ""),
    (["explain", "SCH002"], 0, "SCH002  ", ""),
    (["repro", "list"], 0, "SCH001  ", ""),
    (["repro", "run", "SCH001"], 2, "", None),
    (["matrix"], 0, "versions: ", ""),
    (["versions"], 0, "$ uv pip install vllm==", ""),
    (["matrix", "run"], 2, "", NO_CHECKOUT),
    (["matrix", "lock"], 2, "", NO_CHECKOUT),
    (["train"], 2, "", NO_TORCH),
    (["doctor", "--tier", "probe"], 3, "doctor: ", None),
    (["triage", str(LOG)], 1, "SCH002", ""),
    (["catalogue", "--check"], 0, "all samples match as they should", ""),
]


def test_every_command_of_an_installed_wheel_answers(installed):
    """Each runs or says in one line what it lacks; no traceback, and no file written anywhere near."""
    files_before, wrong = installed.files(), []
    for arguments, code, expected_output, expected_errors in COMMANDS:
        exit_code, output, errors = installed(*arguments)
        if exit_code != code or expected_output not in output or expected_errors not in {None, errors}:
            wrong.append((arguments, exit_code, output[-300:], errors[-300:]))
        if exit_code == 2 and errors.count("\n") != 1:
            wrong.append((arguments, "more than a line", errors))
    assert wrong == []
    assert installed.files() == files_before


def test_the_wheel_runs_without_being_installed(wheel, tmp_path):
    """`uvx --from WHEEL grpo-doctor triage LOG`: the first command that a user tries."""
    command = [str(find_uv()), "tool", "run", "--quiet", "--python", sys.executable, "--from", str(wheel)]
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | uv_environment(os.environ)
    done = subprocess.run(
        [*command, "grpo-doctor", "triage", str(LOG)],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "SCH002" in done.stdout
