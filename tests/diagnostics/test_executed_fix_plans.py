"""The plans that `doctor --fix-plan` prints fix five kinds of faults, when they are executed in small uv environments.

The packages are local wheels with one module each. `python -m evaluation.doctor.real_plans` uses real packages.
"""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from diagnostics.uv import UvMissingError, find_uv
from evaluation.doctor import environment_cases as real_cases
from evaluation.doctor import real_plans
from evaluation.doctor.real_environments import BuiltCase, last_error_line
from tests.matrix.conftest import build_wheel

PACKAGES = {
    "numpy": ("2.0.0", ()),
    "tokenizers": ("0.22.2", ()),
    "transformers": ("4.57.6", ("numpy>=1.17", "tokenizers>=0.22.0,<=0.23.0")),
}
OLDER = {"tokenizers": ("0.19.1", ())}
RUN = "import transformers, tokenizers, numpy; assert tokenizers.RELEASE > '0.2'"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Build the wheels; return their folder, the only package index that uv gets."""
    folder = tmp_path_factory.mktemp("wheels")
    for name, (version, requires) in [*PACKAGES.items(), *OLDER.items()]:
        files = {f"{name}/__init__.py": f"RELEASE = {version!r}\n"}
        build_wheel(folder, name, version, files, requires=requires)
    return folder


@pytest.fixture
def healthy_environment(tmp_path, wheels, monkeypatch):
    """Make a working environment with a uv that uses only the local wheels."""
    try:
        uv = find_uv()
    except UvMissingError as error:
        pytest.skip(str(error))
    for name, value in {
        "UV_FIND_LINKS": str(wheels),
        "UV_NO_INDEX": "1",
        "UV_OFFLINE": "1",
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_LINK_MODE": "copy",
        "PATH": f"{uv.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }.items():
        monkeypatch.setenv(name, value)
    prefix = tmp_path / "case"
    for folder in ("cwd", "home"):
        (tmp_path / folder).mkdir()
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, prefix], check=True)
    subprocess.run([uv, "pip", "install", "-q", "--python", prefix, "transformers"], check=True)
    environ = {name: value for name, value in os.environ.items() if name == "PATH" or name.startswith("UV_")}
    return BuiltCase(prefix, {**environ, "HOME": str(tmp_path / "home")}, str(tmp_path / "cwd"))


BROKEN = {
    "a file is gone": (partial(real_cases.remove_files, "tokenizers/__init__.py"), "ENV923"),
    "a package is gone": (partial(real_cases.remove_files, "numpy*"), "CMP904"),
    "another release": (partial(real_cases.install_release, "tokenizers==0.19.1"), "CMP904"),
    "an editable install moved": (
        partial(real_cases.install_editable, "tokenizers", moved=True, finder=False), "ENV926",
    ),
    "the interpreter is a dangling link": (real_cases.break_interpreter_links, "ENV924"),
}  # fmt: skip


@pytest.fixture
def doctor(commands, monkeypatch):
    """Return a function that runs doctor on a case in a forked process, also for `read_plan`."""

    def run(case, *arguments):
        words = ["diagnostics", "doctor", "--prefix", str(case.prefix), *arguments]
        done = commands.run(words, cwd=case.working, env=case.environ)
        return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())

    monkeypatch.setattr(real_plans, "doctor", run)
    return run


@pytest.mark.parametrize(("break_environment", "code"), BROKEN.values(), ids=BROKEN)
def test_printed_plan_fixes_the_environment(healthy_environment, doctor, break_environment, code):
    """Before the plan the import fails and doctor reports the fault; after its commands both are fine."""
    prefix, working = healthy_environment.prefix, healthy_environment.working
    assert last_error_line(prefix, RUN, healthy_environment.environ, working) == ""
    break_environment(prefix=prefix)
    shutil.rmtree(prefix / "lib" / "__pycache__", ignore_errors=True)
    assert last_error_line(prefix, RUN, healthy_environment.environ, working)
    assert code in doctor(healthy_environment).stdout
    commands, _words = real_plans.read_plan(healthy_environment)
    text, environ = real_plans.run_commands(commands, healthy_environment)
    assert text == ""
    assert last_error_line(prefix, RUN, environ, working) == ""
    assert f" {code}" not in doctor(healthy_environment).stdout.replace("explain", "")
