"""Execute the import statements with which one package takes names from another, and print those that fail.

    PYTHONPATH=SOURCES python evaluation/api_index/import_pairs.py FOLDER_OF_A B > TRUTH.json

FOLDER_OF_A has the unpacked release of A; SOURCES has B and what it imports. Standard library only. A statement counts
as `import` if importing its module executes it, as `call` inside a function, and as `guarded` below an `if`, `try` or
`with`. The outcome of a name is present, missing or, if its module of B cannot be imported here for another reason,
undecided.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

GUARDS = (ast.If, ast.Try, ast.With, ast.Match)


def statements(tree: ast.AST, package: str, when: str = "import", guarded: bool = False) -> Iterator[tuple]:
    """Yield module, name, line and the moment of each import from a package."""
    for node in ast.iter_child_nodes(tree):
        moment = "guarded" if guarded else when
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            if node.module.partition(".")[0] == package:
                yield from ((node.module, alias.name, node.lineno, moment) for alias in node.names)
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names if alias.name.partition(".")[0] == package)
            yield from ((name, "", node.lineno, moment) for name in names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from statements(node, package, "call", guarded)
        else:
            yield from statements(node, package, when, guarded or isinstance(node, GUARDS))


def outcome(module: str, name: str) -> str:
    """Return present, missing or undecided for `from module import name`."""
    try:
        imported = importlib.import_module(module)
        if name in {"", "*"} or hasattr(imported, name):
            return "present"
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        wanted = f"{module}.{name}"
        return (
            "missing" if error.name and f"{wanted}.".startswith(f"{error.name}.") else f"undecided: {error}"
        )
    except BaseException as error:  # noqa: BLE001 - any other failure is undecided
        return f"undecided: {type(error).__name__}: {error}"[:150]
    return "present"


def main() -> None:
    """Print the outcome of each distinct import as JSON."""
    folder, package = Path(sys.argv[1]), sys.argv[2]
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    found: dict[tuple[str, str], dict] = {}
    for path in sorted(folder.rglob("*.py")):
        with contextlib.suppress(SyntaxError, ValueError):
            for module, name, line, moment in statements(ast.parse(path.read_bytes()), package):
                row = found.setdefault((module, name), {"module": module, "name": name, "at": {}})
                row["at"].setdefault(moment, f"{path.relative_to(folder)}:{line}")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for (module, name), row in found.items():
            row["outcome"] = outcome(module, name)
    print(json.dumps(list(found.values()), indent=0))


if __name__ == "__main__":
    main()
