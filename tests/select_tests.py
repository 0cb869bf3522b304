"""Which tests rest on a file: those whose imports, or the modules that they start by name, lead to it.

Standard library only: the noxfile asks before anything is installed. Read from the sources, nothing is imported.
`python -m tests.select_tests FILE...` prints them.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = ("diagnostics", "grpo_core", "repro", "benchmarks", "tests")
# Tests that import one of these need the trainer's environment, hundreds of megabytes.
HEAVY = frozenset({"torch", "transformers", "safetensors", "tokenizers", "numpy", "fastapi", "uvicorn"})
FEW = 1
_OURS = r"((?:diagnostics|grpo_core|repro|tests)(?:\.\w+)*)"
_NAMED = re.compile(rf"^{_OURS}$")
_IMPORTED = re.compile(rf"\b(?:import|from) {_OURS}")
_STARTED = re.compile(rf"-m {_OURS}")


def select_tests(
    paths: Sequence[Path], tests: Sequence[Path] | None = None, *, near: bool = False
) -> list[Path]:
    """Return the files of tests that rest on one of these files or on something in one of these folders.

    A Python file is looked for as far as imports lead. Of data and of a folder everything rests on everything soon,
    so these are looked for one import away.

    Args:
        paths: of sources, of data, or of tests, which are chosen themselves.
        tests: to choose from; all there are if None.
        near: only those of the same part that name a module themselves, not through other modules; of data those that
            name more of the package that reads it than the package.
    """
    selected = set()
    for path in map(Path.resolve, paths):
        files = _files(path)
        owners = {owner for file in files for owner in _owners(file)}
        depth = 1 if near else None if path.suffix == ".py" else FEW
        for test in all_tests() if tests is None else tests:
            if test in files or (closure(test, depth) & owners and not (near and _far(test, path))):
                selected.add(test)
    return sorted(selected)


def _far(test: Path, path: Path) -> bool:
    """Whether a test is of another part than a path, or, of the package that data lies in, names no more than it."""
    if _test_folder(test) != _test_folder(path):
        return True
    package = next((folder for folder in path.parents if (folder / "__init__.py").is_file()), None)
    if path.suffix == ".py" or path.is_dir() or package is None or package == ROOT / "tests":
        return False
    inside = {file for name in _references(test)[0] for file in _modules(name) if file.parent == package}
    return inside <= {package / "__init__.py"}


def needs_torch(tests: Sequence[Path]) -> bool:
    """Return whether these tests import, directly or indirectly, packages of the trainer's environment."""
    return any(_references(file)[1] for test in tests for file in closure(test))


@functools.cache
def all_tests() -> tuple[Path, ...]:
    """All files of tests."""
    return tuple(sorted((ROOT / "tests").rglob("test_*.py")))


@functools.cache
def closure(file: Path, depth: int | None = None) -> frozenset[Path]:
    """Return the files of ours that a file leads to, itself and the conftests above it included.

    Args:
        file: a Python file.
        depth: of imports to follow; all if None. What a package hands on counts as the package.
    """
    reached: set[Path] = set()
    due = [(path, 0) for path in (file, *_conftests(file))]
    while due:
        path, far = due.pop(0)
        if path in reached:
            continue
        reached.add(path)
        if depth is not None and far >= depth and path.name != "__init__.py":
            continue
        due += [(target, far + 1) for name in _references(path)[0] for target in _modules(name)]
    return frozenset(reached)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return [file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


def _owners(file: Path) -> set[Path]:
    """Return the files that read a file: itself if it is Python, those that name it, or those that name its folder."""
    owners = {file} if file.suffix == ".py" else set()
    # A module that its package finds by looking through the folder is named nowhere.
    package = file.parent / "__init__.py"
    if file.suffix == ".py" and package.is_file() and "[a-z]*.py" in _references(package)[2]:
        owners.add(package)
    if not file.name.startswith("__"):
        owners |= _naming(file.name)
    if _top(file) == "tests":
        return owners.union(*(_naming(folder) for folder in file.relative_to(ROOT).parts[2:-1]))
    return owners if any(_top(owner) != "tests" for owner in owners) else owners | _naming(file.parent.name)


def _naming(name: str) -> set[Path]:
    return {source for source in _sources() if name in _references(source)[2]}


@functools.cache
def _sources() -> tuple[Path, ...]:
    return tuple(path for top in OURS for path in sorted((ROOT / top).rglob("*.py")))


def _conftests(file: Path) -> Iterator[Path]:
    for folder in file.parents:
        if folder == ROOT:
            return
        if (folder / "conftest.py").is_file():
            yield folder / "conftest.py"


@functools.cache
def _modules(name: str) -> tuple[Path, ...]:
    """The files that are run when a module of ours is imported: its own and its packages'; those of no other."""
    parts = name.split(".")
    if parts[0] not in OURS:
        return ()
    places = [ROOT.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
    files = [path for place in places for path in (place / "__init__.py", place.with_suffix(".py"))]
    return tuple(path for path in files if path.is_file())


@functools.cache
def _references(file: Path) -> tuple[frozenset[str], bool, frozenset[str]]:
    """Return the modules that a file names, whether one is heavy, and the last parts of the paths it names."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    modules, names, is_test = set(), set(), _top(file) == "tests"
    for node in _run(tree):
        modules |= _imported(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A name of another package's file, such as a program for cells, is not run here.
            mentioned = _IMPORTED.findall(node.value) if is_test else _NAMED.findall(node.value)
            modules |= {name for name in mentioned if name.startswith(_subject(file)) and _is_file(name)}
            names.add(node.value.rstrip("/").rpartition("/")[2])
            # Only tests start our commands; sources mostly mention them.
            modules |= {f"{name}.__main__" for name in _STARTED.findall(node.value) if is_test}
        elif isinstance(node, ast.List | ast.Tuple | ast.Call) and is_test:
            modules |= {f"{name}.__main__" for name in _started(node)}
    # A source imports late what only some need of it; a test imports what it uses.
    at_once = modules if is_test else {name for node in tree.body for name in _imported(node)}
    heavy = any(module.partition(".")[0] in HEAVY for module in at_once)
    return frozenset(modules), heavy, frozenset(names)


def _imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return set()


def _started(node: ast.List | ast.Tuple | ast.Call) -> Iterator[str]:
    """Yield the modules behind a "-m" in the words of a command line."""
    words = node.args if isinstance(node, ast.Call) else node.elts
    literals = [word.value if isinstance(word, ast.Constant) else None for word in words]
    yield from (
        name for option, name in itertools.pairwise(literals) if option == "-m" and isinstance(name, str)
    )


def _test_folder(path: Path) -> str:
    """Return the test folder of a path: the matrix has a separate one."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "tests":
        return "/".join(parts[1:2])
    return (
        "matrix"
        if parts[:2] == ("diagnostics", "matrix") or parts[0] in {"locks", "matrix.toml"}
        else parts[0]
    )


def _subject(file: Path) -> str:
    """The package that a file belongs to, or tests; empty for a test of them all."""
    part = _test_folder(file)
    return "diagnostics" if part == "matrix" else part if part in OURS else ""


def _top(file: Path) -> str:
    return file.relative_to(ROOT).parts[0]


def _is_file(name: str) -> bool:
    return ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file()


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without what only type checkers read, and without docstrings."""
    for child in ast.iter_child_nodes(node):
        if (
            isinstance(child, ast.If)
            and isinstance(child.test, ast.Name)
            and child.test.id == "TYPE_CHECKING"
        ):
            continue
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        yield child
        yield from _run(child)


if __name__ == "__main__":
    for test in select_tests([Path(argument) for argument in sys.argv[1:]]):
        print(test.relative_to(ROOT))
