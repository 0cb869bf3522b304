"""Find the environment of the interpreter that the user names, and other environments that contain a trainer or vLLM.

`prefix_of` returns the environment of an interpreter, `nearby_environments` other environments. The search covers the
active environment, and folders named .venv, venv or env in the working folder and two folders above it. If the examined
environment contains neither a trainer nor vLLM, `check_trainer_installed` suggests the environments found. No
interpreter is run.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from diagnostics.collect.python_environment import Environment, NoEnvironmentError
from diagnostics.collect.search_path import minor_release, own_folders, working_folder
from diagnostics.findings import CheckResult, NotChecked
from diagnostics.fixes import quote_command
from diagnostics.frameworks import ENGINE_PACKAGES, TRAINER_PACKAGES
from diagnostics.output.sanitize import has_control

_PYTHON_NAME = re.compile(r"(?:python|pypy|graalpy)[\d.]*[a-z]*(?:\.exe)?", re.IGNORECASE)
_FOLDERS = (".venv", "venv", "env")
_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX", "UV_PROJECT_ENVIRONMENT")


def prefix_of(python: Path) -> Path:
    """Return the environment of an interpreter by its path, without running it; it may be a broken link.

    Raises:
        NoEnvironmentError: There is no such file, it is a folder, or its name is not that of an interpreter.
    """
    option = f"--python {python}"
    if not python.exists() and not python.is_symlink():
        raise NoEnvironmentError(f"{option}: no such file")
    if python.is_dir():
        raise NoEnvironmentError(f"{option}: a folder; expected an interpreter, or --prefix {python}")
    if not _PYTHON_NAME.fullmatch(python.name):
        raise NoEnvironmentError(f"{option}: not the name of a Python; expected one such as ENV/bin/python")
    return python.absolute().parent.parent


def check_trainer_installed(
    environment: Environment, nearby: list[str], *, named: bool
) -> CheckResult | None:
    """Report that neither a trainer nor vLLM is installed, and suggest other environments; None if one is.

    Args:
        environment: The examined environment.
        nearby: Folders of other environments.
        named: Whether the user named the environment; otherwise it is doctor's own.
    """
    if {*ENGINE_PACKAGES, *TRAINER_PACKAGES} & set(environment.packages):
        return None
    which = "the named environment" if named else "the environment that doctor itself runs in"
    options = "; ".join(quote_command(("--prefix", place)) for place in nearby)
    missing = NotChecked(
        "a run",
        f"neither a trainer nor vLLM is installed in {which}",
        f"did you mean {options}?" if options else "give --python PATH of the environment that trains",
        environment.prefix,
    )
    return CheckResult.of("environment", (), [missing])


def nearby_environments(prefix: str, environ: Mapping[str, str]) -> list[str]:
    """Return other environments with a trainer or an engine: the active one, and those in or above the working folder.

    Args:
        prefix: The examined environment, which is left out, as are paths that a command cannot name.
        environ: Variables; VIRTUAL_ENV and others name the active environment.
    """
    working = Path(working_folder())
    places = [Path(environ[name]) for name in _VARIABLES if environ.get(name)]
    places += [folder / name for folder in (working, *list(working.parents)[:2]) for name in _FOLDERS]
    unique = {os.path.realpath(place): place for place in places if os.path.isdir(place)}  # noqa: PTH112 - no error
    unique.pop(os.path.realpath(prefix), None)
    return [str(place) for place in unique.values() if not has_control(str(place)) and _can_train(place)]


def _can_train(prefix: Path) -> bool:
    """Return whether a trainer or an engine is installed, by the names of metadata folders."""
    starts = tuple(f"{name.replace('-', '_')}-" for name in (*ENGINE_PACKAGES, *TRAINER_PACKAGES))
    folders = own_folders(prefix, minor_release(prefix))
    names = [path.name for folder in folders for path in folder.glob("*.dist-info")]
    return any(name.lower().startswith(starts) for name in names)
