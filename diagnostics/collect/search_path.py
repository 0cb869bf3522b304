"""Compute the search path (sys.path) of an environment's Python from files and variables, without running it.

`collect` returns the `SearchPath`. Its order is that of CPython's `site`:

1. PYTHONPATH,
2. the user's packages, outside a venv,
3. the environment's packages,
4. the user's packages and then the system's, for a venv with system site packages.

The environment's and the system's packages include Debian's `dist-packages`. PYTHONNOUSERSITE removes the user's.

A folder of packages is followed by the folders that its `.pth` files add. Modules that editable installs map to paths
are listed apart (`SearchPath.editable`). The standard library and the folder of the started script are left out.

Other functions find the working folder, the Python release, and interpreters that are missing or do not match the
packages.
"""

import ast
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from diagnostics import safe_io

_RELEASE = re.compile(r"python(3\.\d{1,3})t?")
_VERSION = re.compile(r"3\.\d{1,3}\b")
_FINDER_IMPORT = re.compile(r"import\s+(__editable___\w+_finder)\b")
# (place, reason) for each file or folder that could not be read.
Unread = list[tuple[str, str]]


@dataclass(frozen=True)
class SearchEntry:
    """One folder on the search path.

    Attributes:
        path: The folder. If a line of a `.pth` file names no existing path, it is the source: the line may be any text.
        source: Origin of the entry: a variable, a file with its line, or the folder itself.
        kind: `variable`, `user`, `own`, `system`, `pth` for an entry of a `.pth` file, or `editable`.
        state: Why the folder cannot be read, such as "not there"; empty if it can.
        module: Name of the module that an editable install maps to the path; empty for other entries.
    """

    path: str
    source: str
    kind: str
    state: str = ""
    module: str = ""


@dataclass(frozen=True)
class SearchPath:
    """The search path of an interpreter, in order.

    Attributes:
        entries: The folders, in the order in which Python searches them.
        release: Python release, such as "3.11"; empty if unknown.
        home: The `bin` folder of the Python that a venv was made from; empty for other environments.
        editable: One entry for each module that an editable install maps to a path.
        unread: (place, reason) for each unreadable folder, and each unreadable file that may add to the path.
    """

    entries: tuple[SearchEntry, ...] = ()
    release: str = ""
    home: str = ""
    editable: tuple[SearchEntry, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()

    @property
    def folders(self) -> list[Path]:
        """The entries that are readable."""
        return [Path(entry.path) for entry in self.entries if not entry.state]


def collect(prefix: Path, environ: Mapping[str, str]) -> SearchPath:
    """Compute the search path of the interpreter at a prefix."""
    settings, unread = venv_settings(prefix)
    release = minor_release(prefix, settings)
    inherits = settings.get("include-system-site-packages", "").lower() == "true"
    base = Path(settings["home"]).parent if settings.get("home") else None
    variable = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    from_variable = [(Path(text), "PYTHONPATH", "variable") for text in variable]
    sites = [(folder, str(folder), "own") for folder in own_folders(prefix, release)]
    if (not settings or inherits) and not environ.get("PYTHONNOUSERSITE"):
        of_user = [(folder, "the user's own packages", "user") for folder in _user_folders(environ, release)]
        # A venv adds its own folders first; elsewhere the user's come first.
        sites = sites + of_user if settings else of_user + sites
    if inherits and base is not None:
        sites += [(folder, str(folder), "system") for folder in own_folders(base, release)]
    entries: dict[str, SearchEntry] = {}
    editable: list[SearchEntry] = []
    for folder, source, kind in (*from_variable, *sites):
        state = _folder_state(folder)
        if kind != "user" or state != "not there":  # user packages are optional
            entries.setdefault(os.path.realpath(folder), SearchEntry(str(folder), source, kind, state))
        if kind != "variable" and not state:
            for entry in _pth_entries(folder, editable, unread):
                entries.setdefault(os.path.realpath(entry.path), entry)
    unread += [(item.path, item.state) for item in entries.values() if item.state not in {"", "not there"}]
    home = settings.get("home", "")
    return SearchPath(tuple(entries.values()), release, home, tuple(editable), tuple(dict.fromkeys(unread)))


def working_folder() -> str:
    """Return the path of the working folder; `/dev/null` if the folder was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 - as text
    except OSError:
        return os.devnull


def venv_settings(prefix: Path) -> tuple[dict[str, str], Unread]:
    """Return the settings in `pyvenv.cfg`, and why it could not be read; no settings if the prefix is no venv.

    In a venv, the additional key `venv` is `read` or `unread`.
    """
    place = prefix / "pyvenv.cfg"
    try:
        lines = safe_io.read_installed(place, safe_io.CONFIG_LIMIT).splitlines()
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        return {"venv": "unread"}, [(str(place), error_text(error))]
    results = {"venv": "read"}
    for line in lines:
        key, equals, value = line.partition("=")
        if equals:
            results[key.strip().lower()] = value.strip()
    return results, []


def minor_release(prefix: Path, settings: Mapping[str, str] | None = None) -> str:
    """Return the Python release as "3.12", by the interpreter's name, `pyvenv.cfg` or the only library folder; else "".

    >>> minor_release(Path("/no/such/prefix"), {"version_info": "3.12.1"})
    '3.12'
    """
    for name in ("python", "python3"):
        if match := _RELEASE.fullmatch(Path(os.path.realpath(prefix / "bin" / name)).name):
            return match[1]
    settings = venv_settings(prefix)[0] if settings is None else settings
    stated = settings.get("version_info") or settings.get("version") or ""
    if match := _VERSION.match(stated):
        return match[0]
    releases = {match[1] for path in prefix.glob("lib/python3.*") if (match := _RELEASE.fullmatch(path.name))}
    return releases.pop() if len(releases) == 1 else ""


def own_folders(prefix: Path, release: str) -> list[Path]:
    """Return the package folders of a prefix for a Python release, or for all releases if it is empty."""
    version = f"python{release}" if release else "python3.*"
    patterns = [f"lib/{version}/site-packages", f"lib64/{version}/site-packages"]
    # Folders of Debian and Ubuntu: one for pip as root, two for apt.
    debian_folders = (f"local/lib/{version}", f"lib/{version}", "lib/python3")
    patterns += [f"{folder}/dist-packages" for folder in debian_folders]
    results = [folder for pattern in patterns for folder in sorted(prefix.glob(pattern))]
    return list({folder.resolve(): folder for folder in reversed(results)}.values())[::-1]


def _user_folders(environ: Mapping[str, str], release: str) -> list[Path]:
    base = environ.get("PYTHONUSERBASE") or (f"{environ['HOME']}/.local" if environ.get("HOME") else "")
    return [Path(base, "lib", f"python{release}", "site-packages")] if base and release else []


def _folder_state(folder: Path) -> str:
    """Return why a folder cannot be read, such as `not there`; empty if it can."""
    try:
        with os.scandir(folder):
            return ""
    except FileNotFoundError:
        return "not there"
    except NotADirectoryError:
        return "a file, such as a zip; only folders are read" if folder.is_file() else "not there"
    except (OSError, ValueError) as error:
        return error_text(error)


def error_text(error: Exception) -> str:
    """Return the reason why something could not be read, in a few words."""
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__


def _pth_entries(folder: Path, editable: list[SearchEntry], unread: Unread) -> Iterator[SearchEntry]:
    """Yield the entries of a folder's `.pth` files; add modules of editable installs and problems to the two lists.

    Code in `.pth` files is not run; the finders that setuptools writes are parsed.
    """
    texts = set[str]()
    for file in sorted(folder.glob("*.pth")):
        if file.name.startswith("."):
            continue
        try:
            lines = safe_io.read_installed(file, safe_io.METADATA_LIMIT).splitlines()
        except OSError as error:
            unread.append((str(file), error_text(error)))
            continue
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#") or text in texts:
                continue
            texts.add(text)
            if text.startswith(("import ", "import\t")):
                if finder := _FINDER_IMPORT.match(text):
                    _read_finder(folder / f"{finder[1]}.py", editable, unread)
                continue
            place, source = folder / text, f"{file}:{number}"
            path = str(place) if os.path.lexists(place) else source
            yield SearchEntry(path, source, "pth", _folder_state(place))


def _read_finder(finder: Path, editable: list[SearchEntry], unread: Unread) -> None:
    """Add the modules that setuptools' finder of an editable install maps to `editable`, or a problem to `unread`."""
    reason = "it contains no setuptools mapping"
    try:
        for node in safe_io.parse_python(safe_io.read_installed(finder, safe_io.METADATA_LIMIT)).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name) and target.id == "MAPPING":
                    mapping = ast.literal_eval(node.value)
                    for module, path in [(str(name), str(value)) for name, value in mapping.items()]:
                        # The path may lack the suffix `.py`.
                        state = "" if any(map(os.path.exists, (path, f"{path}.py"))) else "not there"
                        editable.append(SearchEntry(path, str(finder), "editable", state, module))
                    return
    except (OSError, ValueError, TypeError, RecursionError, MemoryError, AttributeError) as error:
        reason = error_text(error)
    unread.append((str(finder), reason))


# Installers that are present in most environments; an environment that has only these counts as empty.
INSTALLERS = {"pip", "setuptools", "wheel"}


def interpreter_release(prefix: Path) -> str:
    """Return the Python release in `pyvenv.cfg`, as "3.11.7", or else those of the package folders, as "3.11, 3.12"."""
    settings, _ = venv_settings(prefix)
    if stated := settings.get("version") or settings.get("version_info"):
        return stated.removesuffix(".final.0")  # as virtualenv writes it
    names = {folder.parent.name for folder in own_folders(prefix, "")}
    return ", ".join(sorted(name.removeprefix("python") for name in names))


def finds_packages(prefix: Path, search: SearchPath) -> bool:
    """Return whether the interpreter finds the prefix's packages.

    It does not if the prefix has no package folder of its release, or if only another release's folders have packages.
    """
    matching = {str(entry.path) for entry in search.entries if entry.kind == "own"}
    foreign = {str(folder) for folder in prefix.glob("lib/python3.*/site-packages")} - matching
    return bool(matching) and (any(map(_has_packages, matching)) or not any(map(_has_packages, foreign)))


def _has_packages(folder: str) -> bool:
    """Return whether a folder contains packages besides installers."""
    metadata = (name for name in safe_io.list_folder(folder) if name.endswith((".dist-info", ".egg-info")))
    return any(name.partition("-")[0] not in INSTALLERS for name in metadata)


def interpreter_problems(prefix: Path, search: SearchPath, *, finds_own: bool) -> tuple[tuple[str, str], ...]:
    """Return (place, problem) if a venv's Python or base Python is missing, or the packages are of another release."""
    results = []
    python, settings = prefix / "bin" / "python", prefix / "pyvenv.cfg"
    interpreters = (python, prefix / "bin" / "python3", prefix / "Scripts")
    if settings.is_file() and not any(map(os.path.lexists, interpreters)):
        results.append((str(python), "there is no interpreter"))
    if search.home and not os.path.isdir(search.home):  # noqa: PTH112 - a name that no folder can have is no error
        results.append((str(settings), f"home = {search.home}, which is not there"))
    folders = list(prefix.glob("lib/python3.*/site-packages"))
    releases = {folder.parent.name for folder in [f for f in folders if _has_packages(str(f))] or folders}
    if search.release and releases and not finds_own:
        reason = f"it is Python {search.release}; the packages are those of {', '.join(sorted(releases))}"
        results.append((str(python), reason))
    return tuple(results)


def dangling_links(prefix: Path) -> tuple[tuple[str, str], ...]:
    """Return (link, target) for each interpreter that is a link to a missing file."""
    links = [path for path in sorted(prefix.glob("bin/python*")) if path.is_symlink() and not path.exists()]
    return tuple((str(path), str(path.readlink())) for path in links)
