"""Where an environment's Python looks for modules: computed from its files and variables, never by running it.

As CPython's `site` has it: PYTHONPATH, the standard library, the user's own packages, the environment's, Debian's
`dist-packages`, the system's below a venv that takes them in, and what `.pth` files and editable installs add.
"""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import given

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MOST_ENTRIES, _MOST_LINES = 200, 1000
_LONGEST = 4096
_RELEASE = re.compile(r"python(3\.\d{1,3})t?")
_TOLD = re.compile(r"3\.\d{1,3}\b")
_EDITABLE = re.compile(r"import\s+(__editable___\w+_finder)\b")


@dataclass(frozen=True)
class SearchEntry:
    """A folder that Python looks into.

    Attributes:
        path: The folder, or a zip.
        source: What names it: a variable, a file with its line, or the place itself.
        kind: `variable`, `user`, `own`, `system`, `pth` for what a `.pth` file adds, `editable`.
        state: Empty where it can be read; else why not.
        module: The one name that leads there, of an editable install that maps names.
    """

    path: str
    source: str
    kind: str
    state: str = ""
    module: str = ""


@dataclass(frozen=True)
class SearchPath:
    """What an interpreter would look through, in its order.

    Attributes:
        release: Python's, as "3.11"; empty where nothing tells it.
        home: Where the interpreter of a venv comes from; empty where it is none.
        editable: What editable installs lead to that map names.
        unread: (place, why) of what could not be read and may add to the path.
    """

    entries: tuple[SearchEntry, ...] = ()
    release: str = ""
    home: str = ""
    editable: tuple[SearchEntry, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()

    @property
    def folders(self) -> list[Path]:
        """Those that are there."""
        return [Path(entry.path) for entry in self.entries if not entry.state]


def collect(prefix: Path, environ: Mapping[str, str]) -> SearchPath:
    """The path of the interpreter at a prefix."""
    settings, unread = _venv(prefix)
    release = release_of(prefix, settings)
    inherits = settings.get("include-system-site-packages", "").lower() == "true"
    base = Path(settings["home"]).parent if settings.get("home") else None
    named = [
        (Path(text), "PYTHONPATH", "variable")
        for text in environ.get("PYTHONPATH", "").split(os.pathsep)
        if text
    ]
    sites = [(folder, str(folder), "own") for folder in own_folders(prefix, release)]
    if (not settings or inherits) and not environ.get("PYTHONNOUSERSITE"):
        mine = [(folder, "the user's own packages", "user") for folder in _user(environ, release)]
        # A venv adds its own folders before anything else; elsewhere the user's come first.
        sites = sites + mine if settings else mine + sites
    if inherits and base is not None:
        sites += [(folder, str(folder), "system") for folder in own_folders(base, release)]
    entries: dict[str, SearchEntry] = {}
    editable: list[SearchEntry] = []
    for folder, source, kind in islice([*named, *sites], _MOST_ENTRIES):
        state = _state(folder)
        if kind != "user" or state != "not there":  # nobody has to have packages of his own
            entries.setdefault(os.path.realpath(folder), SearchEntry(str(folder), source, kind, state))
        if kind != "variable" and not state:
            for added in _pth(folder, editable, unread):
                entries.setdefault(os.path.realpath(added.path), added)
    unread += [
        (entry.path, entry.state) for entry in entries.values() if entry.state not in {"", "not there"}
    ]
    return SearchPath(
        tuple(entries.values()),
        release,
        settings.get("home", ""),
        tuple(editable),
        tuple(dict.fromkeys(unread)),
    )


def _venv(prefix: Path) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """What `pyvenv.cfg` says; nothing where the prefix is no venv."""
    place = prefix / "pyvenv.cfg"
    try:
        lines = given.text(place, given.WORD).splitlines()
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        return {"venv": "unread"}, [(str(place), why(error))]
    found = {"venv": "read"}
    for line in lines:
        key, equals, value = line.partition("=")
        if equals:
            found[key.strip().lower()] = value.strip()
    return found, []


def release_of(prefix: Path, settings: Mapping[str, str] | None = None) -> str:
    """Python's release by what its interpreter is called, else by the venv's own word, else by its only folder.

    >>> release_of(Path("/no/such/prefix"), {"version_info": "3.12.1"})
    '3.12'
    """
    for name in ("python", "python3"):
        if match := _RELEASE.fullmatch(Path(os.path.realpath(prefix / "bin" / name)).name):
            return match[1]
    settings = _venv(prefix)[0] if settings is None else settings
    told = settings.get("version_info") or settings.get("version") or ""
    if match := _TOLD.match(told):
        return match[0]
    there = {match[1] for path in prefix.glob("lib/python3.*") if (match := _RELEASE.fullmatch(path.name))}
    return there.pop() if len(there) == 1 else ""


def own_folders(prefix: Path, release: str) -> list[Path]:
    """The folders for packages of a prefix; of all releases where its own is not known."""
    version = f"python{release}" if release else "python3.*"
    patterns = [f"{lib}/{version}/site-packages" for lib in ("lib", "lib64")]
    # Debian's and Ubuntu's: one for pip as root, two for apt.
    patterns += [
        f"local/lib/{version}/dist-packages",
        f"lib/{version}/dist-packages",
        "lib/python3/dist-packages",
    ]
    found = [
        folder for pattern in (*patterns, "Lib/site-packages") for folder in sorted(prefix.glob(pattern))
    ]
    return list({folder.resolve(): folder for folder in reversed(found)}.values())[::-1]


def _user(environ: Mapping[str, str], release: str) -> list[Path]:
    base = environ.get("PYTHONUSERBASE") or (f"{environ['HOME']}/.local" if environ.get("HOME") else "")
    return [Path(base, "lib", f"python{release}", "site-packages")] if base and release else []


def _state(folder: Path) -> str:
    try:
        if folder.is_file():
            return ""  # a zip
        with os.scandir(folder):
            return ""
    except (FileNotFoundError, NotADirectoryError):
        return "not there"
    except (OSError, ValueError) as error:
        return why(error)


def _state_of(module: str) -> str:
    """Of a module's place, which may be named without its ending."""
    return "" if any(os.path.exists(f"{module}{end}") for end in ("", ".py")) else "not there"  # noqa: PTH110 - text


def why(error: Exception) -> str:
    """Why something could not be read, in a few words."""
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__


def _pth(folder: Path, editable: list[SearchEntry], unread: list[tuple[str, str]]) -> Iterator[SearchEntry]:
    """What the `.pth` files of a folder add; lines that are code are not run, and those of setuptools read."""
    for file in sorted(folder.glob("*.pth"))[:_MOST_ENTRIES]:
        if file.name.startswith("."):
            continue
        try:
            lines = given.text(file, given.METADATA).splitlines()[:_MOST_LINES]
        except OSError as error:
            unread.append((str(file), why(error)))
            continue
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if text.startswith(("import ", "import\t")):
                if finder := _EDITABLE.match(text):
                    editable += _mapping(folder / f"{finder[1]}.py", unread)
                continue
            if len(text) > _LONGEST:  # a screen of it tells nobody more
                unread.append((f"{file}:{number}", "a line longer than any path"))
                continue
            added = folder / text
            yield SearchEntry(str(added), f"{file}:{number}", "pth", _state(added))


def _mapping(finder: Path, unread: list[tuple[str, str]]) -> list[SearchEntry]:
    """The names that setuptools' finder of an editable install leads elsewhere."""
    try:
        tree = ast.parse(given.text(finder, given.METADATA))
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            named = any(isinstance(target, ast.Name) and target.id == "MAPPING" for target in targets)
            if named and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                mapping = ast.literal_eval(node.value)
                return [
                    SearchEntry(str(place), str(finder), "editable", _state_of(str(place)), str(module))
                    for module, place in islice(mapping.items(), _MOST_LINES)
                ]
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError, AttributeError) as error:
        unread.append((str(finder), why(error)))
        return []
    unread.append((str(finder), "no mapping of setuptools' in it"))
    return []
