"""The wheel has the packages and their data, and the sdist also has the matrix and tests.

The tested commands of the installed wheel work, or print what is missing. They write no file, except __pycache__, into
the environment and the working folder. `uvx --from WHEEL` runs the wheel, too. A tag that is not the version cannot be
released. uv installs the dependencies of the wheel from the package index.
"""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from diagnostics.uv import find_uv, uv_environment
from tests import dist
from tests.processes import run_text

ROOT = Path(__file__).resolve().parent.parent
LOG = next((ROOT / "tests" / "diagnostics" / "logs").glob("*/scheduler073__overlong_prompt.log"))


def uv(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run uv outside the project with the index settings of pip; it must exit with this code."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | uv_environment(os.environ)
    done = run_text([find_uv(), *arguments], env=environ, cwd="/")
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def dist_folder(tmp_path_factory) -> Path:
    """Build the sdist, and the wheel from it; return their folder."""
    folder = tmp_path_factory.mktemp("dist")
    # The build backend of this environment is used, so that nothing is downloaded.
    uv("build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist_folder) -> Path:
    """Return the wheel in the folder."""
    return next(dist_folder.glob("*.whl"))


@pytest.mark.parametrize("tag", ["v0.0.7", "0.1.0"])
def test_tag_that_is_not_the_version_is_refused(tag):
    assert any(f"the tag {tag} is not v" in line for line in dist.release_problems(tag))


class InstalledWheel:
    """An environment with the installed wheel; calling it runs grpo-doctor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workdir = folder.parent / f"{folder.name}-work"
        self.workdir.mkdir()

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Run the console script in an empty folder, without uv; return (exit code, stdout, stderr)."""
        hidden = ("PYTHON", "GRPO_", "UV_", "PIP_")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        environ |= {"GRPO_DOCTOR_QUIET": "1", "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin"}
        command = [self.folder / "bin" / "grpo-doctor", *arguments]
        done = run_text(command, env=environ, cwd=self.workdir, stdin=subprocess.DEVNULL)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    def files(self) -> set[Path]:
        """Return all files of the environment and the working directory, except __pycache__."""
        folders = (self.folder, self.workdir)
        return {path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def installed_wheel(wheel, tmp_path_factory) -> InstalledWheel:
    """Install the wheel with its dependencies into a new environment."""
    folder = tmp_path_factory.mktemp("installed") / "env"
    uv("venv", "--quiet", "--python", sys.executable, folder)
    uv("pip", "install", "--quiet", "--python", folder / "bin" / "python", wheel)
    return InstalledWheel(folder)


def test_wheel_has_catalog_and_data_and_no_matrix(wheel):
    """The wheel has the three packages with the catalog and data, and neither the matrix nor tests."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"diagnostics", "grpo_core", "repro"}
    read = [*ROOT.glob("diagnostics/catalog/issues/*.toml"), *ROOT.glob("diagnostics/data/*.json")]
    assert len(read) > 100
    assert {str(path.relative_to(ROOT)) for path in read} <= names
    assert not [name for name in names if name.startswith("diagnostics/matrix/")]


def test_sdist_has_matrix_and_tests(dist_folder):
    with tarfile.open(next(dist_folder.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"matrix.toml", "noxfile.py", "diagnostics/matrix/__main__.py", "tests/test_wheel.py"} <= names


NO_CHECKOUT = "grpo-doctor: matrix needs a checkout of the project; there: nox -s matrix\n"
NO_TORCH = (
    "grpo_core: torch is not installed here: pip install 'grpo-doctor[train]' (with CUDA: gigabytes; the CPU's "
    "comes by pip install torch --index-url https://download.pytorch.org/whl/cpu first)\n"
)
# Arguments, exit code, text in stdout, and the complete stderr (None: not checked).
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
    (["versions"], 0, "$ uv pip install --no-config vllm==", ""),
    (["versions", "verl==0.7.1"], 0, "$ uv pip install --no-config verl==0.7.1", ""),
    (["matrix", "run"], 2, "", NO_CHECKOUT),
    (["matrix", "lock"], 2, "", NO_CHECKOUT),
    (["train"], 2, "", NO_TORCH),
    (["doctor", "--tier", "probe"], 3, "doctor: ", None),
    (["triage", str(LOG)], 1, "SCH002", ""),
    (["catalogue", "--check"], 0, "all samples match as they should", ""),
]


def test_commands_of_an_installed_wheel_work(installed_wheel):
    """Each command runs, or prints in one line what is missing; none prints a traceback or writes a file there."""
    files_before, wrong = installed_wheel.files(), []
    for arguments, code, expected_output, expected_errors in COMMANDS:
        exit_code, output, errors = installed_wheel(*arguments)
        if exit_code != code or expected_output not in output or expected_errors not in {None, errors}:
            wrong.append((arguments, exit_code, output[-300:], errors[-300:]))
        if exit_code == 2 and errors.count("\n") != 1:
            wrong.append((arguments, "more than a line", errors))
    assert wrong == []
    assert installed_wheel.files() == files_before


def test_wheel_runs_with_uvx(wheel):
    """`uvx --from WHEEL grpo-doctor triage LOG` finds the code of the log."""
    options = ["--quiet", "--python", sys.executable, "--from", wheel]
    done = uv("tool", "run", *options, "grpo-doctor", "triage", LOG, code=1)
    assert done.stderr == ""
    assert "SCH002" in done.stdout
