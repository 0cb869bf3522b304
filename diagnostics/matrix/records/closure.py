"""Which of our own files an answer rests on: what is imported to make it, computed from the files themselves.

Followed are imports, wherever they stand, modules that are started or imported by a name in a string, and data files
that a module names and that lie beside it. Not followed is what only a type checker imports. Where the arguments of a
program choose among alternatives (`probe` and not `train`), what stands for another alternative is left out. A change
of a comment or a docstring is no change: see `source.py`.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diagnostics.matrix.records.source import without_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

# Words of which a command line holds one at most: the other ones' code does not run.
ALTERNATIVES = (
    frozenset({"train", "serve", "probe", "replay", "check"}),
    frozenset({"run", "repeat", "list", "imports", "fuzz"}),
    frozenset({"transformers", "vllm", "fake"}),
    frozenset({"colocate", "async", "server"}),
)
_WORDS = frozenset().union(*ALTERNATIVES)
# They list all repros and do no more: which of them run is said by their codes.
_LISTS = frozenset({"repro.registry", "repro.issues"})
# They say what an answer rests on, and make none.
_ASIDE = frozenset({"diagnostics.matrix.records.closure", "diagnostics.matrix.records.source"})
_PLAIN = re.compile(r"\w[\w.+-]*(/\w[\w.+-]*)*")


@dataclass(frozen=True)
class Link:
    """One module or program that a file names.

    Attributes:
        module: Its dotted name; a prefix that ends in `*` stands for all modules that begin so.
        only: Alternatives one of which must be chosen, for each choice that stands around it.
        chooses: The word that a program is started with, '' for none.
    """

    module: str
    only: tuple[frozenset[str], ...] = ()
    chooses: str = ""


@dataclass(frozen=True)
class File:
    """What one file comes to: its digest, and what it names."""

    digest: str
    links: tuple[Link, ...] = ()
    strings: frozenset[str] = frozenset()


@dataclass
class Code:
    """Our own code as it is now; each file is read once."""

    places: Mapping[str, Path]
    """Top package -> the folder that holds it."""
    _files: dict[Path, File] = field(default_factory=dict)
    _modules: dict[str, tuple[str, Path | None]] = field(default_factory=dict)
    _beside: dict[Path, dict[str, Path]] = field(default_factory=dict)
    _found: dict[tuple[frozenset[str], frozenset[str]], dict[str, Path]] = field(default_factory=dict)

    def digest(self, modules: Iterable[str], words: Iterable[str] = ()) -> str:
        """Returns the digest of all that these modules rest on; names count as well as contents."""
        files = sorted(self.files(modules, words).items())
        return _short("".join(f"{name}\0{self._file(path, name).digest}\0" for name, path in files).encode())

    def files(self, modules: Iterable[str], words: Iterable[str] = ()) -> dict[str, Path]:
        """Returns the files on which these modules rest: name below the project -> path.

        Args:
            modules: Where to begin; a package that is started counts with its `__main__`.
            words: Of the command line; those that are no alternatives are of no matter.
        """
        begin, chosen = frozenset(modules), frozenset(words) & _WORDS
        while (begin, chosen) not in self._found:
            found, further = self._walk(begin, chosen)
            if further <= chosen:
                self._found[begin, chosen] = found
                break
            chosen |= further  # a program that is started in turn has a command line of its own
        return self._found[begin, chosen]

    def _walk(self, begin: frozenset[str], chosen: frozenset[str]) -> tuple[dict[str, Path], set[str]]:
        found: dict[str, Path] = {}
        further: set[str] = set()
        due = [name for module in sorted(begin) for name in (module, f"{module}.__main__")]
        while due:
            module = due.pop()
            name, path = self._module(module)
            if not name or path is None or name in found or module in _ASIDE:
                continue
            found[name] = path
            due += [module.rpartition(".")[0]]  # importing a module runs the packages around it
            if module in _LISTS:
                continue
            file = self._file(path, name)
            if path not in self._beside:
                self._beside[path] = self._data(module, path, file.strings)
            found |= self._beside[path]
            for link in file.links:
                if not all(_followed(words, chosen) for words in link.only):
                    continue
                further |= {link.chooses} - {""}
                due += self._named(link.module, chosen)
        return found, further

    def _named(self, module: str, chosen: frozenset[str]) -> Iterator[str]:
        """Yields the modules of a link; of those that begin so, the ones that are not called as what isn't chosen."""
        if not module.endswith("*"):
            yield module
            return
        package, _, start = module[:-1].rpartition(".")
        place = self.places[package.partition(".")[0]] / package.replace(".", "/")
        for path in sorted(place.glob(f"{start}*.py")):
            if _followed({path.stem}, chosen):
                yield f"{package}.{path.stem}"

    def _module(self, module: str) -> tuple[str, Path | None]:
        """Returns name and path of a module's file; ('', None) if it isn't one of ours."""
        if module not in self._modules:
            place = self.places.get(module.partition(".")[0])
            names = [module.replace(".", "/") + ending for ending in (".py", "/__init__.py") if place]
            paths = ((name, place / name) for name in names if place)
            self._modules[module] = next((found for found in paths if found[1].is_file()), ("", None))
        return self._modules[module]

    def _file(self, path: Path, name: str) -> File:
        if path not in self._files:
            data = path.read_bytes()
            try:
                tree = ast.parse(data) if path.suffix == ".py" else None
            except (SyntaxError, ValueError):
                tree = None  # whatever it is, a change of it is a change
            if tree is None:
                made = File(_short(data))
            else:
                reader = _Reader(name, frozenset(self.places))
                reader.visit(tree)
                text = without_words(data.decode(), tree)
                made = File(_short(text.encode()), tuple(reader.links), frozenset(reader.strings))
            self._files[path] = made
        return self._files[path]

    def _data(self, module: str, path: Path, strings: frozenset[str]) -> dict[str, Path]:
        """Returns the files that a module names and that lie beside it, in a folder it names, or at that path."""
        place = self.places[module.partition(".")[0]]
        folders = [path.parent, *(path.parent / text for text in strings if (path.parent / text).is_dir())]
        files = [folder / text for folder in folders for text in strings if (folder / text).is_file()]
        files += [place / text for text in strings if "/" in text and (place / text).is_file()]
        for folder in folders[1:]:
            if not (folder / "__init__.py").exists():
                files += [item for item in folder.rglob("*") if item.is_file() and item.suffix != ".pyc"]
        return {item.relative_to(place).as_posix(): item for item in files}


class _Reader(ast.NodeVisitor):
    """Reads out of a syntax tree what a file names, and under which choices."""

    def __init__(self, name: str, packages: frozenset[str]) -> None:
        self._packages = packages
        self._main = name.endswith("/__main__.py")
        self._package = name.split("/")[:-1]
        own = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self._own = {"__name__": own, "__package__": ".".join(self._package)}
        self._tables: dict[str, ast.Dict] = {}
        # What runs outside of cells says commands to people, and starts programs by what a layer names.
        self._starts = self._package[0] != "diagnostics"
        self._only: tuple[frozenset[str], ...] = ()
        self.links: list[Link] = []
        self.strings: set[str] = set()

    def _add(self, module: str, chooses: str = "") -> None:
        if module.partition(".")[0] in self._packages:
            self.links.append(Link(module, self._only, chooses))

    def _under(self, words: Iterable[str], nodes: Iterable[ast.AST]) -> None:
        before, chosen = self._only, frozenset(words)
        if chosen and chosen <= _WORDS:
            self._only = (*before, chosen)
        for node in nodes:
            self.visit(node)
        self._only = before

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        around = self._package[: len(self._package) - node.level + 1] if node.level else []
        module = ".".join([*around, *([node.module] if node.module else [])])
        self._add(module)
        for alias in node.names:
            self._add(f"{module}.{alias.name}")

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in {getattr(node.test, "id", ""), getattr(node.test, "attr", "")}:
            for other in node.orelse:
                self.visit(other)
            return
        self.visit(node.test)
        words = frozenset(_compared(node.test))
        self._under(words, node.body)
        others = next(
            (choice - words for choice in ALTERNATIVES if words and words <= choice), frozenset[str]()
        )
        self._under(others, node.orelse)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            self._under(_texts([key]) if key else (), [value])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        # In a `__main__`, `_train` is what the command `train` does.
        word = node.name.removeprefix("_") if self._main else ""
        self._under({word} & _WORDS, ast.iter_child_nodes(node))

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring names nothing
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Dict):
            self._tables |= {item.id: node.value for item in node.targets if isinstance(item, ast.Name)}
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        first = node.values[0] if node.values else None
        own = self._own.get(getattr(getattr(first, "value", None), "id", ""))
        rest = [getattr(part, "value", None) for part in node.values[1:]]
        if own and rest[:1] == [
            "."
        ]:  # f"{__name__}.{word}": one of those in this folder, or one that a table names
            table = self._tables.get(getattr(getattr(rest[-1], "value", None), "id", ""))
            for value in _texts(table.values) if table else ("*",):
                self._add(f"{own}.{value}")
        if isinstance(first, ast.Constant) and re.fullmatch(r"(\w+\.)+\w*", text := str(first.value)):
            self._add(f"{text}*")
        self.generic_visit(node)

    def visit_List(self, node: ast.List | ast.Tuple) -> None:
        words = [str(item.value) if isinstance(item, ast.Constant) else "" for item in node.elts]
        for module, word in itertools.pairwise(words):
            if self._starts and module in self._packages and word in _WORDS:
                self._add(f"{module}.__main__", word)
        self.generic_visit(node)

    visit_Tuple = visit_List  # noqa: N815

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and len(node.value) < 100 and _PLAIN.fullmatch(node.value):
            self.strings.add(node.value)
            if "." in node.value and not re.search(r"/|\.$", node.value):
                self._add(node.value)
                self._add(f"{node.value}.__main__")


def _followed(words: Iterable[str], chosen: frozenset[str]) -> bool:
    """Tells whether one of these alternatives may run: it is chosen, or nothing chooses among them."""
    return any(
        word in chosen or not any(word in choice and choice & chosen for choice in ALTERNATIVES)
        for word in words
    )


def _compared(test: ast.expr) -> Iterable[str]:
    """Returns the words with one of which a condition wants something to be equal; nothing if it is another one."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.In):
        right = test.comparators[0]
        found = [item for item in ast.walk(right) if isinstance(item, ast.Constant)]
        return _texts(found) if found else ()
    return ()


def _texts(nodes: Iterable[ast.expr]) -> set[str]:
    """Returns the texts of constants; one that is no constant is a text that is no alternative."""
    return {str(getattr(node, "value", "?")) for node in nodes}


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
