"""Collects what a trainer's source takes from the engine: names, attribute paths, arguments, routes, launch options.

The source is walked statement by statement, so that each use knows the guards around it: a branch known to be
dead in this cell is left out, one that can't be decided is marked, one that an option has to open names it, and the
arms of a `try … except ImportError` are alternatives of which one has to work.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from diagnostics.matrix.ask.contract.conditions import Conditions, of_the_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.version import Version

# The file that speaks to the server, and the one that starts it.
CLIENT = "/vllm_client.py"
LAUNCHER = "/vllm_serve.py"
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "AttributeError"}


@dataclass(frozen=True)
class Use:
    """One thing the trainer takes from the engine."""

    kind: str
    """`name` (imported), `patched` (a dotted path in a string), `attribute` (a path below it), `argument` (a keyword
    of a call), `route` (of the server, asked by the client), `launch` (an option of its command), `rule`."""
    module: str
    """Module of the engine that the name is imported from."""
    name: str
    """The imported name; empty for a module as a whole; a route or an option as it is written."""
    path: tuple[str, ...]
    """Attributes below the name; an argument's keyword comes last."""
    instance: bool
    """The path starts at an instance of the named class, not at the class."""
    file: str
    line: int
    unsure: bool = False
    """Inside a condition on what is installed that can't be decided from source."""
    late: bool = False
    """Inside a function: fails when that is called, not at import."""
    choice: tuple[int, int] | None = None
    """(number of a `try`, which arm): one arm of a `try … except ImportError` is enough."""
    option: str = ""
    """Reached only by a run that sets this option."""

    @property
    def text(self) -> str:
        """The use as one would write it."""
        whole = ".".join(part for part in (self.module, self.name) if part)
        if self.kind == "argument":
            return f"{'.'.join((whole, *self.path[:-1]))}({self.path[-1]}=)"
        return ".".join((whole, *self.path))


@dataclass(frozen=True)
class _Place:
    """Where the walk is."""

    unsure: bool = False
    late: bool = False
    choice: tuple[int, int] | None = None
    option: str = ""


@dataclass
class _Bound:
    """What local names stand for."""

    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Imported name -> (module, name)."""
    instances: dict[str, tuple[str, str]] = field(default_factory=dict)
    """'self.llm' -> the class it was made from."""
    literals: dict[str, set[str]] = field(default_factory=dict)
    """Name of a dictionary literal -> its keys, for calls with `**name`."""


def collect(text: str, file: str, engine: str, version: Version, off: frozenset[str]) -> list[Use]:
    """Returns what one file of the trainer uses of the package `engine` in that version.

    Args:
        text: The file.
        file: Its name in the wheel.
        engine: The engine's package.
        version: The engine's release.
        off: Options of the trainer that are off unless they are set.

    Raises:
        SyntaxError: it is no Python that can be read here.
    """
    tree = ast.parse(text)
    walk = _Walk(file, engine, Conditions(version, off))
    # A first pass for what names stand for: an instance made in `__init__` may be used in a method above it.
    walk.binding = True
    walk.block(tree.body, _Place())
    walk.found, walk.choices, walk.binding = [], 0, False
    walk.block(tree.body, _Place())
    return list(dict.fromkeys(walk.found))


@dataclass
class _Walk:
    file: str
    engine: str
    conditions: Conditions
    bound: _Bound = field(default_factory=_Bound)
    found: list[Use] = field(default_factory=list)
    choices: int = 0
    binding: bool = False
    """Whether expressions are passed over: they use names and bind none."""

    def block(self, body: list[ast.stmt], place: _Place) -> None:
        for statement in body:
            self.statement(statement, place)

    def statement(self, node: ast.stmt, place: _Place) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self.imported(node, place)
            case ast.If():
                self.branched(node, place)
            case ast.Try():
                self.attempt(node, place)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                outside, self.bound.literals = self.bound.literals, {}
                self.block(node.body, replace(place, late=True))
                self.bound.literals = outside
            case _:
                self.assigned(node)
                self.inside(node, place)

    def branched(self, node: ast.If, place: _Place) -> None:
        """An `if`: a branch that is dead in this cell is left out."""
        self.expressions(node.test, place)
        truth = self.conditions.truth(node.test)
        unsure = place.unsure or (truth is None and not of_the_run(node.test))
        for body, taken in ((node.body, True), (node.orelse, False)):
            if truth is None or truth is taken:
                option = "" if truth is taken else self.conditions.option(node.test, taken=taken)
                self.block(body, replace(place, unsure=unsure, option=place.option or option))

    def inside(self, node: ast.AST, place: _Place) -> None:
        """Whatever else holds statements and expressions: classes, loops, `with` and its items, `match`."""
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.stmt):
                self.statement(part, place)
            elif isinstance(part, ast.expr):
                self.expressions(part, place)
            else:
                self.inside(part, place)

    def attempt(self, node: ast.Try, place: _Place) -> None:
        """A `try`: with a handler for a failed import, its arms are alternatives."""
        handlers = [handler for handler in node.handlers if _catches_import_errors(handler)]
        if not handlers:
            self.block(node.body, place)
            for handler in node.handlers:
                self.block(handler.body, replace(place, unsure=True))
        else:
            self.choices += 1
            number = self.choices
            self.block(node.body, replace(place, choice=(number, 0)))
            for arm, handler in enumerate(handlers, start=1):
                # A handler that only raises is no alternative.
                if not isinstance(handler.body[-1], ast.Raise):
                    self.found.append(
                        Use("arm", "", "", (), False, self.file, handler.lineno, choice=(number, arm))
                    )
                self.block(handler.body, replace(place, choice=(number, arm)))
        self.block(node.orelse, place)
        self.block(node.finalbody, place)

    def imported(self, node: ast.Import | ast.ImportFrom, place: _Place) -> None:
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level or not self.ours(module):
                return
            for alias in node.names:
                self.bound.names[alias.asname or alias.name] = (module, alias.name)
                self.use("name", module, alias.name, (), False, node.lineno, place)
            return
        for alias in node.names:
            if self.ours(alias.name):
                self.use("name", alias.name, "", (), False, node.lineno, place)
                bound = alias.name if alias.asname else alias.name.partition(".")[0]
                self.bound.names[alias.asname or bound] = (bound, "")

    def ours(self, module: str) -> bool:
        return module == self.engine or module.startswith(f"{self.engine}.")

    def use(
        self,
        kind: str,
        module: str,
        name: str,
        path: tuple[str, ...],
        instance: bool,
        line: int,
        place: _Place,
    ) -> None:
        self.found.append(
            Use(
                kind, module, name, path, instance, self.file, line,
                place.unsure, place.late, place.choice, place.option,
            )
        )  # fmt: skip

    def assigned(self, node: ast.stmt) -> None:
        """Remembers names for conditions, instances of engine classes, and dictionary literals."""
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            return
        target, value = node.targets[0], node.value
        if (
            isinstance(target, ast.Subscript)
            and isinstance(target.slice, ast.Constant)
            and isinstance(target.slice.value, str)
        ):
            self.bound.literals.setdefault(_dotted(target.value), set()).add(target.slice.value)
            return
        name = _dotted(target)
        if not name:
            return
        if isinstance(target, ast.Name):
            self.conditions.names[name] = self.conditions.value(value)
        if (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Name)
            and value.func.id in self.bound.names
        ):
            self.bound.instances[name] = self.bound.names[value.func.id]
        elif isinstance(value, ast.Dict):
            keys = {
                key.value
                for key in value.keys
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
            self.bound.literals[name] = keys

    def expressions(self, node: ast.expr, place: _Place) -> None:
        """Finds the uses inside an expression."""
        if self.binding:
            return
        for attribute in _outermost_attributes(node):
            self.path(attribute, place)
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                self.call(part, place)
            elif isinstance(part, ast.JoinedStr) and self.file.endswith(CLIENT):
                route = _route(part)
                if route:
                    self.use("route", "", route, (), False, part.lineno, place)
            elif isinstance(part, ast.List) and self.file.endswith(LAUNCHER):
                for option in _options(part):
                    self.use("launch", "", option, (), False, part.lineno, place)

    def path(self, node: ast.Attribute, place: _Place) -> None:
        found = self.known(_dotted(node))
        if found is not None:
            module, name, rest, instance = found
            self.use("attribute", module, name, rest, instance, node.lineno, place)

    def known(self, dotted: str) -> tuple[str, str, tuple[str, ...], bool] | None:
        """Returns (module, name, attributes below it, whether of an instance) of what stems from the engine."""
        parts = dotted.split(".")
        for length in range(len(parts) - 1, 0, -1):  # the longest known start: self.llm before self
            start, rest = ".".join(parts[:length]), tuple(parts[length:])
            if start in self.bound.instances:
                return (*self.bound.instances[start], rest, True)
            if start in self.bound.names:
                return (*self.bound.names[start], rest, False)
        return None

    def call(self, node: ast.Call, place: _Place) -> None:
        dotted = _dotted(node.func)
        found = (*self.bound.names[dotted], (), False) if dotted in self.bound.names else self.known(dotted)
        for keyword in node.keywords if found else ():
            assert found is not None
            module, name, rest, instance = found
            keys = {keyword.arg} if keyword.arg else self.bound.literals.get(_dotted(keyword.value), set())
            for key in sorted(keys):
                self.use("argument", module, name, (*rest, key), instance, node.lineno, place)
        called = _dotted(node.func).rpartition(".")[2]
        if (
            called == "patch"
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        ):
            # unittest.mock.patch("vllm.worker.worker.Worker._x"): the path must exist, or entering it raises.
            patched = node.args[0].value
            if self.ours(patched):
                module, _, attribute = patched.rpartition(".")
                owner_module, _, owner = module.rpartition(".")
                if owner[:1].isupper():
                    self.use("patched", owner_module, owner, (attribute,), False, node.lineno, place)
                else:
                    self.use("patched", module, attribute, (), False, node.lineno, place)


def _outermost_attributes(node: ast.AST) -> Iterator[ast.Attribute]:
    """Yields a.b.c, but not the a.b inside it."""
    if isinstance(node, ast.Attribute) and _dotted(node):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _outermost_attributes(child)


def _dotted(node: ast.AST) -> str:
    """Returns 'a.b.c' for such an expression, '' for any other."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            before = _dotted(value)
            return f"{before}.{attr}" if before else ""
    return ""


def _catches_import_errors(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(_dotted(kind).rpartition(".")[2] in _IMPORT_ERRORS for kind in kinds)


def _route(node: ast.JoinedStr) -> str:
    """Returns '/health/' of f"{self.base_url}/health/", '' for what ends otherwise than in a path."""
    last = node.values[-1]
    if len(node.values) > 1 and isinstance(last, ast.Constant) and str(last.value).startswith("/"):
        return str(last.value).partition("?")[0]
    return ""


def _options(node: ast.List) -> Iterator[str]:
    """Yields the options of a command line that is written as a list."""
    for item in node.elts:
        if isinstance(item, ast.Constant) and isinstance(item.value, str) and item.value.startswith("--"):
            yield item.value
