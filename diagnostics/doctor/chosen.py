"""Which environment is judged: the one that was named, or else the one doctor runs in; and others it may have been."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import given
from diagnostics.collect.names import NoEnvironmentError, working_folder
from diagnostics.collect.search_path import own_folders, release_of
from diagnostics.frameworks import ENGINES, TRAINERS
from diagnostics.output.findings import CheckResult, NotJudged
from diagnostics.output.wording import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.collect.environment import Environment

_NAME = re.compile(r"(?:python|pypy|graalpy)[\d.]*[a-z]*(?:\.exe)?", re.IGNORECASE)
_LONGEST = 4096
_FOLDERS = (".venv", "venv", "env")
_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX", "UV_PROJECT_ENVIRONMENT")


def prefix_of(python: Path) -> Path:
    """The environment of an interpreter, which is not run. One that is a link to nothing has an environment, too.

    Raises:
        NoEnvironmentError: It is no interpreter, by its name or by what it is.
    """
    said = f"--python {python}"
    if not python.exists() and not python.is_symlink():
        raise NoEnvironmentError(f"{said}: no such file")
    if python.is_dir():
        raise NoEnvironmentError(f"{said}: a folder; expected an interpreter, or --prefix {python}")
    if not _NAME.fullmatch(python.name):
        raise NoEnvironmentError(f"{said}: no Python, by its name; expected one such as ENV/bin/python")
    try:
        if python.exists() and not given.head(python, 4).startswith(
            (b"\x7fELF", b"#!", b"MZ", b"\xcf\xfa", b"\xca\xfe")
        ):
            raise NoEnvironmentError(f"{said}: neither a program nor a script; expected an interpreter")
    except OSError as error:
        raise NoEnvironmentError(f"{said}: cannot be read: {error.strerror or error}") from None
    return python.absolute().parent.parent


def nothing_to_run(
    environment: Environment, *, named: bool, environ: Mapping[str, str]
) -> CheckResult | None:
    """That nothing of a run is installed where it was looked, and where it may be; None where something is.

    Args:
        environment: What was looked at.
        named: Whether somebody named it; else it is the one that doctor itself runs in.
        environ: Variables.
    """
    known = {*ENGINES, *TRAINERS}
    if known & set(environment.packages):
        return None
    which = "the environment that was named" if named else "the environment that doctor itself runs in"
    others = _others(Path(environment.prefix), Path(working_folder()), environ)
    told = "; ".join(quoted(("--prefix", place)) for place in others)
    return CheckResult.of(
        "environment",
        (),
        [
            NotJudged(
                "a run",
                f"neither a trainer nor vLLM is installed in {which}",
                f"likely: {told}" if told else "give --python PATH of the one that trains",
                environment.prefix,
            )
        ],
    )


def told(environment: Environment, environ: Mapping[str, str]) -> dict[str, list[str]]:
    """That nobody named the environment that is judged, and others in which something of a run is installed.

    Those are what was activated, what lies near, and what Python processes of the same user run in: a trainer's, Ray's.
    """
    here, working = Path(environment.prefix), Path(working_folder())
    running = [place for place in _running() if os.path.realpath(place) != os.path.realpath(here)]
    return {"unnamed": list(dict.fromkeys([*_others(here, working, environ), *filter(_trains_at, running)]))}


def _trains_at(place: str) -> bool:
    try:
        return _trains(Path(place))
    except OSError:
        return False


def _running() -> list[str]:
    """The environments of the same user's Python processes, by how they were started."""
    found: dict[str, None] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid != os.getuid():
                continue
            program = (process / "cmdline").read_bytes()[:_LONGEST].split(b"\0")[0].decode("utf-8", "replace")
        except OSError:
            continue
        place = Path(program)
        if place.is_absolute() and _NAME.fullmatch(place.name) and place.parent.name == "bin":
            found[str(place.parent.parent)] = None
    return list(found)


def _others(here: Path, working: Path, environ: Mapping[str, str]) -> list[str]:
    """Environments nearby in which something of a run is installed."""
    places = [Path(environ[name]) for name in _VARIABLES if environ.get(name)]
    places += [folder / name for folder in (working, *list(working.parents)[:2]) for name in _FOLDERS]
    unique = {os.path.realpath(place): place for place in places if place.is_dir()}
    unique.pop(os.path.realpath(here), None)
    return [str(place) for place in unique.values() if _trains(place)]


def _trains(prefix: Path) -> bool:
    known = tuple(f"{name.replace('-', '_')}-" for name in (*ENGINES, *TRAINERS))
    names = (
        name
        for folder in own_folders(prefix, release_of(prefix))
        if os.access(folder, os.R_OK)
        for name in os.listdir(folder)  # noqa: PTH208 - names alone
    )
    return any(name.endswith(".dist-info") and name.lower().startswith(known) for name in names)


def interpreter_of(options_python: Path | None, prefix: Path | None) -> Path:
    """What the tiers that import run."""
    return options_python or (prefix / "bin" / "python" if prefix else Path(sys.executable))
