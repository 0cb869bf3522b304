"""Which of our files an answer of a sweep rests on: those of its repros and what these import, and no others.

A change to another repro would else ask 66 releases again.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# What every run goes through. The command itself counts, and is not followed: it also imports the search.
_EVERY = ("repro.runner", "repro.worker", "repro.judge", "repro.render", "repro.upstream")
_COMMAND = "repro/__main__.py"
# It lists all repros and does no more.
_NOT_FOLLOWED = "repro.registry"


def files(programs: Path, codes: Sequence[str]) -> tuple[str, ...]:
    """Returns the files below `programs` on which a run of these codes rests, in order.

    Followed are imports, wherever they stand, and modules that are started by their name.

    Args:
        programs: The folder that holds `repro`.
        codes: Known failures; the module that says `code="..."` is where a repro begins.
    """
    due = [*_EVERY, *(name for code in codes for name in _defining(programs, code))]
    found: set[str] = set()
    while due:
        module = due.pop()
        path = _path(programs, module)
        if path is None or module == _NOT_FOLLOWED or path in found:
            continue
        found.add(path)
        due += _named((programs / path).read_text(encoding="utf-8"))
    return tuple(sorted({*found, _COMMAND}))


def _defining(programs: Path, code: str) -> Iterator[str]:
    for path in sorted((programs / "repro" / "issues").glob("*.py")):
        if f'"{code}"' in path.read_text(encoding="utf-8"):
            yield f"repro.issues.{path.stem}"


def _path(programs: Path, module: str) -> str | None:
    """Returns the file of a module of ours; None if it isn't one."""
    place = module.replace(".", "/")
    candidates = (f"{place}.py", f"{place}/__init__.py")
    return next((name for name in candidates if (programs / name).is_file()), None)


def _named(text: str) -> Iterator[str]:
    """Yields what a file imports, and what may be a module that it names in a string."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and str(node.value).startswith("repro."):
            yield str(node.value)
