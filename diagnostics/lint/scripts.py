"""A script of the user's own that a command starts: whether it trains by GRPO, and what it makes of its options."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import given
from diagnostics.lint.sources import python_file
from diagnostics.lint.sources.tree import MAX_BYTES, MAX_NODES, UnreadableError
from diagnostics.lint.values import UNKNOWN, Place, Settings, Value
from diagnostics.output.findings import NotJudged

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRAINS = re.compile(r"\b(?:GRPOTrainer|GRPOConfig)\b")
_PARSES = re.compile(r"\b(?:HfArgumentParser|TrlParser|H4ArgumentParser)\b")
_ABOVE = 5
_IMPORTS = 8


@dataclass
class Script:
    """What was read of it.

    Attributes:
        options: What it declares: fields of its dataclasses, arguments of its parser.
        parses: A parser of the framework's kind takes its options, so that they are those of GRPOConfig.
        configs: The GRPOConfig objects that it makes itself.
    """

    path: Path
    options: frozenset[str] = frozenset()
    parses: bool = False
    configs: list[Settings] = field(default_factory=list)


def find(named: str, file: str, *, module: bool = False) -> Path | None:
    """The script that a command names, from the folder of its file or one above."""
    if not named or "\0" in named or len(named) > 300:
        return None
    name = named.replace(".", "/") + ".py" if module else named
    start = Path(file).absolute().parent
    for folder in (start, *list(start.parents)[:_ABOVE]):
        for path in (folder / name, folder / "src" / name):
            try:
                if path.is_file() and path.stat().st_size <= MAX_BYTES:
                    return path
            except (OSError, ValueError):
                return None
    from diagnostics.lint import nearby

    return nearby.by_tail(name, start) if not module and name.endswith(".py") else None


def read(path: Path) -> Script | None:
    """Reads a script; None where it does not train by GRPO, or is no Python."""
    text = given.text(path, MAX_BYTES)
    if not _TRAINS.search(text):
        return None
    tree = _tree(text)
    if tree is None:
        return None
    try:
        configs = [each for each in python_file.read(text, str(path)) if each.framework == "trl"]
    except UnreadableError:
        configs = []
    return Script(path, _options(tree, path), bool(_PARSES.search(text)), configs)


def _options(tree: ast.Module, path: Path) -> frozenset[str]:
    """What a script and the files that it imports declare."""
    options = set(_declared(tree))
    for other in islice(_imported(tree, path), _IMPORTS):
        own = _tree(given.text(other, MAX_BYTES))
        options |= set(_declared(own)) if own is not None else set()
    return frozenset(options)


def declared(path: Path) -> frozenset[str]:
    """The options that a file declares; none where it can't be read."""
    try:
        tree = _tree(given.text(path, MAX_BYTES))
    except OSError:
        tree = None
    return frozenset(_declared(tree)) if tree is not None else frozenset()


def _tree(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _declared(tree: ast.Module) -> Iterator[str]:
    for node in islice(ast.walk(tree), MAX_NODES * 5):
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    yield each.target.id
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("--"):
                    yield str(argument.value).lstrip("-").replace("-", "_")


def _imported(tree: ast.Module, path: Path) -> Iterator[Path]:
    """The files of the project that its own imports name: beside it, or from the folder that the run is started in."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            for folder in islice(path.parents, _ABOVE):
                package = folder.joinpath(*parts) / "__init__.py"
                if package.is_file():
                    yield from _handed_on(package, {name.name for name in node.names})
                    break
                beside = (folder.joinpath(*parts).with_suffix(".py"), folder / f"{parts[-1]}.py")
                found = next((each for each in beside if each.is_file()), None)
                if found is not None:
                    yield found
                    break


def _handed_on(package: Path, names: set[str]) -> Iterator[Path]:
    """The modules of a package that it takes these names from."""
    tree = _tree(given.text(package, MAX_BYTES))
    for node in tree.body if tree is not None else ():
        if (
            isinstance(node, ast.ImportFrom)
            and node.level == 1
            and names & {each.name for each in node.names}
        ):
            module = package.parent.joinpath(*(node.module or "").split(".")).with_suffix(".py")
            if module.is_file():
                yield module


def join(made: Settings, file: str, *, module: bool = False) -> None:
    """Puts what the script itself says under what its command sets."""
    path = find(made.about, file, module=module)
    if path is None:
        why = "it is not here, so what it makes of its options was not read"
        made.gaps.append(NotJudged(made.about, why, "lint it where the script is", str(made.place)))
        return
    script = read(path)
    if script is None:
        # A trainer of another name, whose options may be its own all the same.
        tree = _tree(given.text(path, MAX_BYTES))
        made.own = _options(tree, path) if tree is not None else frozenset()
        return
    made.own = script.options
    if script.parses or not script.configs:
        if not script.parses:
            why = "it trains with a config that is made where nobody can read it"
            made.gaps.append(NotJudged(made.about, why, "", str(Place(str(path)))))
        return
    if len(script.configs) > 1:
        why = "it makes several configs, and which of them the run takes is decided when it runs"
        made.gaps.append(NotJudged(made.about, why, f"lint {path.name} by itself", str(Place(str(path)))))
        made.items.clear()
        made.open = True
        return
    config = script.configs[0]
    given_here, made.items = dict(made.items), dict(config.items)
    for key, option in config.handed.items():
        said = given_here.get(option)
        if said is not None:
            made.items[key] = said.named(key)
        elif key not in made.items:
            made.items[key] = Value(UNKNOWN, config.place, key)
    made.open, made.exact = config.open, config.exact
    made.gaps += config.gaps
    made.environ = {**config.environ, **made.environ}
