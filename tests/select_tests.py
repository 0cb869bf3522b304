"""Select the tests that depend on a file, by imports and by the names of modules and files in the sources' strings.

usage: python -m tests.select_tests FILE...
`needs_torch` returns whether tests need the trainer's environment. The noxfile calls both before anything is installed,
so this module parses the sources and imports only the standard library.
"""

import ast
import functools
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("diagnostics", "grpo_core", "repro", "benchmarks", "tests")
# Tests that import one of these need the trainer's environment of hundreds of megabytes.
TRAINER_PACKAGES = frozenset(
    {"torch", "transformers", "safetensors", "tokenizers", "numpy", "fastapi", "uvicorn"}
)
_MODULE = r"((?:diagnostics|grpo_core|repro|tests)(?:\.\w+)*)"
_NAMED = re.compile(rf"^{_MODULE}$")
_IMPORTED = re.compile(rf"\b(?:import|from) {_MODULE}")
_STARTED = re.compile(rf"-m {_MODULE}")


def select_tests(paths: Sequence[Path], *, direct_only: bool = False) -> list[Path]:
    """Return the test files that depend on one of these files, or on a file in one of these folders.

    For a Python file all indirect imports are followed. For data and folders only direct imports are, because
    almost every test depends on them indirectly.

    Args:
        paths: Sources, data files or folders; a test file selects itself.
        direct_only: Whether to select only tests of the same package that import the module directly. For data, they
            must import a module of the data's package other than its `__init__`.
    """
    selected = set()
    for path in map(Path.resolve, paths):
        files = _files(path)
        owners = {owner for file in files for owner in _owners(file)}
        depth = 1 if direct_only or path.suffix != ".py" else None
        for test in all_tests():
            depends = closure(test, depth) & owners and not (direct_only and _is_distant(test, path))
            if test in files or depends:
                selected.add(test)
    return sorted(selected)


def _is_distant(test: Path, path: Path) -> bool:
    """Return whether a test belongs to another package, or imports only the `__init__` of the data's package."""
    if _test_folder(test) != _test_folder(path):
        return True
    package = next((folder for folder in path.parents if (folder / "__init__.py").is_file()), None)
    if path.suffix == ".py" or path.is_dir() or package is None or package == ROOT / "tests":
        return False
    inside = {file for name in _references(test)[0] for file in _modules(name) if file.parent == package}
    return inside <= {package / "__init__.py"}


def needs_torch(tests: Sequence[Path]) -> bool:
    """Return whether these tests import PyTorch or other packages of the trainer, directly or indirectly.

    Imports inside the functions of sources do not count.
    """
    return any(_references(file)[1] for test in tests for file in closure(test))


@functools.cache
def all_tests() -> tuple[Path, ...]:
    """Return all test files."""
    return tuple(sorted((ROOT / "tests").rglob("test_*.py")))


@functools.cache
def closure(file: Path, depth: int | None = None) -> frozenset[Path]:
    """Return the project's files that a file imports, with itself and the conftest files above it.

    Args:
        file: A Python file.
        depth: Number of import steps to follow; None: all. Re-exports of a package count as the package.
    """
    reached: set[Path] = set()
    pending = [(path, 0) for path in (file, *_conftests(file))]
    while pending:
        path, steps = pending.pop(0)
        if path in reached:
            continue
        reached.add(path)
        if depth is not None and steps >= depth and path.name != "__init__.py":
            continue
        pending += [(target, steps + 1) for target in _imported_files(path) - reached]
    return frozenset(reached)


@functools.cache
def _imported_files(file: Path) -> frozenset[Path]:
    return frozenset(target for name in _references(file)[0] for target in _modules(name))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return [file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


def _owners(file: Path) -> set[Path]:
    """Return the files whose tests also test a file.

    They are the file itself, a package that lists its folder, and sources that name the file or its folder.
    """
    owners = {file} if file.suffix == ".py" else set()
    # No source names a module that its package imports by listing the folder.
    package = file.parent / "__init__.py"
    if file.suffix == ".py" and package.is_file() and _lists_modules(package):
        owners.add(package)
    if not file.name.startswith("__"):
        owners |= _sources_with_string(file.name)
    if _top_folder(file) == "tests":
        return owners.union(*(_sources_with_string(folder) for folder in file.relative_to(ROOT).parts[2:-1]))
    if any(_top_folder(owner) != "tests" for owner in owners):
        return owners
    return owners | _sources_with_string(file.parent.name)


def _lists_modules(package: Path) -> bool:
    modules, _heavy, names = _references(package)
    return "[a-z]*.py" in names or "pkgutil" in modules


def _sources_with_string(name: str) -> set[Path]:
    """Return the sources that contain this file or folder name as a string."""
    return {source for source in _sources() if name in _references(source)[2]}


@functools.cache
def _sources() -> tuple[Path, ...]:
    return tuple(path for top in PACKAGES for path in sorted((ROOT / top).rglob("*.py")))


def _conftests(file: Path) -> Iterator[Path]:
    for folder in file.parents:
        if folder == ROOT:
            return
        if (folder / "conftest.py").is_file():
            yield folder / "conftest.py"


@functools.cache
def _modules(name: str) -> tuple[Path, ...]:
    """Return the files that run when a module of the project is imported: its own and those of its packages."""
    parts = name.split(".")
    if parts[0] not in PACKAGES:
        return ()
    places = [ROOT.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
    files = [path for place in places for path in (place / "__init__.py", place.with_suffix(".py"))]
    return tuple(path for path in files if path.is_file())


@functools.cache
def _references(file: Path) -> tuple[frozenset[str], bool, frozenset[str]]:
    """Return the modules that a file uses, whether it needs trainer packages, and the file names in its strings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    modules, names, is_test = set(), set(), _top_folder(file) == "tests"
    for node in _walk_code(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules |= _imported(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Only names of the file's own package count: others, such as programs for cells, are not run here.
            mentioned = _IMPORTED.findall(node.value) if is_test else _NAMED.findall(node.value)
            modules |= {name for name in mentioned if name.startswith(_subject(file)) and _is_file(name)}
            names.add(node.value.rstrip("/").rpartition("/")[2])
            # Only tests start our commands; sources mostly mention them.
            modules |= {f"{name}.__main__" for name in _STARTED.findall(node.value) if is_test}
        elif isinstance(node, ast.List | ast.Tuple | ast.Call) and is_test:
            modules |= {f"{name}.__main__" for name in _started(node)}
    # Sources import optional packages inside functions; tests use all that they import.
    required = modules if is_test else {name for node in tree.body for name in _imported(node)}
    heavy = any(module.partition(".")[0] in TRAINER_PACKAGES for module in required)
    return frozenset(modules), heavy, frozenset(names)


def _imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return set()


def _started(node: ast.List | ast.Tuple | ast.Call) -> Iterator[str]:
    """Yield the modules that follow `-m` in a list of command-line arguments."""
    words = node.args if isinstance(node, ast.Call) else node.elts
    literals = [word.value if isinstance(word, ast.Constant) else None for word in words]
    for option, name in itertools.pairwise(literals):
        if option == "-m" and isinstance(name, str):
            yield name


def _test_folder(path: Path) -> str:
    """Return the folder in tests/ for a path; the matrix has a folder of its own."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "tests":
        return "/".join(parts[1:2])
    of_matrix = parts[:2] == ("diagnostics", "matrix") or parts[0] in {"locks", "matrix.toml"}
    return "matrix" if of_matrix else parts[0]


def _subject(file: Path) -> str:
    """Return the package that a file belongs to; empty for a test of several packages."""
    part = _test_folder(file)
    return "diagnostics" if part == "matrix" else part if part in PACKAGES else ""


def _top_folder(file: Path) -> str:
    return file.relative_to(ROOT).parts[0]


def _is_file(name: str) -> bool:
    return ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file()


def _walk_code(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a syntax tree without docstrings and TYPE_CHECKING blocks."""
    pending = [node]
    while pending:
        for child in ast.iter_child_nodes(pending.pop()):
            is_typing = isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING"
            if not is_typing and not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
                yield child
                pending.append(child)


if __name__ == "__main__":
    for test in select_tests([Path(argument) for argument in sys.argv[1:]]):
        print(test.relative_to(ROOT))
