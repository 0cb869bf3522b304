"""What a Python file names: modules that it imports or starts, under which choices, and strings that may be files."""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Words of which a command line holds one at most: the other ones' code does not run.
ALTERNATIVES = (
    frozenset({"train", "serve", "probe", "replay", "check"}),
    frozenset({"run", "repeat", "list", "imports", "fuzz"}),
    frozenset({"transformers", "vllm", "fake"}),
    frozenset({"colocate", "async", "server"}),
)
WORDS = frozenset().union(*ALTERNATIVES)
_PLAIN = re.compile(r"\w[\w.+-]*(/\w[\w.+-]*)*")


@dataclass(frozen=True)
class Link:
    """One module or program that a file names.

    Attributes:
        module: Its dotted name; what begins so for a prefix that ends in `*`; `module#key` for what a table
            of that module names under the key, `module#*` for all of it.
        only: Alternatives one of which must be chosen, for each choice that stands around it.
        chooses: The word that a program is started with, '' for none.
    """

    module: str
    only: tuple[frozenset[str], ...] = ()
    chooses: str = ""


class Reader(ast.NodeVisitor):
    """Reads out of a syntax tree what a file names, and under which choices."""

    def __init__(self, name: str, packages: frozenset[str]) -> None:
        self._packages = packages
        self._main = name.endswith("/__main__.py")
        self._package = name.split("/")[:-1]
        own = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self._own = {"__name__": own, "__package__": ".".join(self._package)}
        self._tables: dict[str, ast.Dict] = {}
        self._from: dict[str, str] = {}
        self.table: dict[str, str] = {}
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
        if chosen and chosen <= WORDS:
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
            self._add(f"{module}.{alias.name}#*")
            self._from[alias.asname or alias.name] = module

    def visit_Call(self, node: ast.Call) -> None:
        module = self._from.get(getattr(node.func, "id", ""))
        if module and node.args:  # it may be what looks an import up by this key
            self._add(f"{module}#{getattr(node.args[0], 'value', '*')}")
        self.generic_visit(node)

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
        self._under({word} & WORDS, ast.iter_child_nodes(node))

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring names nothing
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if isinstance(node.value, ast.Dict):
            self._tables |= {item.id: node.value for item in targets if isinstance(item, ast.Name)}
        self.generic_visit(node)

    visit_AnnAssign = visit_Assign  # noqa: N815

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        first = node.values[0] if node.values else None
        own = self._own.get(getattr(getattr(first, "value", None), "id", ""))
        rest = [getattr(part, "value", None) for part in node.values[1:]]
        if own and rest[:1] == [
            "."
        ]:  # f"{__name__}.{word}": one of those in this folder, or one that a table names
            table = self._tables.get(getattr(getattr(rest[-1], "value", None), "id", ""))
            if table is None:
                self._add(f"{own}.*")
                return
            pairs = zip(table.keys, table.values, strict=True)
            self.table |= {
                str(getattr(key, "value", "")): f"{own}.{getattr(item, 'value', '')}" for key, item in pairs
            }
        if isinstance(first, ast.Constant) and re.fullmatch(r"(\w+\.)+\w*", text := str(first.value)):
            self._add(f"{text}*")
        self.generic_visit(node)

    def visit_List(self, node: ast.List | ast.Tuple) -> None:
        words = [str(item.value) if isinstance(item, ast.Constant) else "" for item in node.elts]
        for module, word in itertools.pairwise(words):
            if self._starts and module in self._packages and word in WORDS:
                self._add(f"{module}.__main__", word)
        self.generic_visit(node)

    visit_Tuple = visit_List  # noqa: N815

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and len(node.value) < 100 and _PLAIN.fullmatch(node.value):
            self.strings.add(node.value)
            if "." in node.value and not re.search(r"/|\.$", node.value):
                self._add(node.value)
                self._add(f"{node.value}.__main__")


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
