"""Collect what a trainer's source uses of the engine: names, attribute paths, arguments, routes, launch options.

The source is walked statement by statement, so that each use knows the guards around it: a branch that is dead in this
cell is left out, one with an unknown condition is marked, one that needs an option names it, and the arms of a
`try … except ImportError` are alternatives of which one must work.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from packaging.version import Version

from diagnostics.matrix.api.conditions import Conditions, depends_on_run_only

# The file of TRL's client of the server, and the one that starts the server.
CLIENT = "/vllm_client.py"
LAUNCHER = "/vllm_serve.py"
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "AttributeError"}


@dataclass(frozen=True)
class Use:
    """One thing the trainer uses of the engine."""

    kind: str
    """`name` (imported), `patched` (a dotted path in a string), `attribute` (a path below a name), `argument` (a
    keyword of a call), `route` (requested by the client), `launch` (an option of the server's command), `rule`, or
    `arm` (an arm of a `try` without a use)."""
    module: str
    """Module of the engine that the name is imported from."""
    name: str
    """The imported name; empty for a module; a route or an option as written."""
    path: tuple[str, ...] = ()
    """Attributes below the name; an argument's keyword comes last."""
    file: str = ""
    line: int = 0
    unsure: bool = False
    """Inside an unknown condition on what is installed."""
    late: bool = False
    """Inside a function: it fails when that is called, not at import."""
    choice: tuple[int, int] | None = None
    """(number of a `try`, arm): one arm of a `try … except ImportError` is enough."""
    option: str = ""
    """Only runs that set this option reach it."""

    @property
    def text(self) -> str:
        """The use as source code would write it."""
        name = ".".join(part for part in (self.module, self.name) if part)
        if self.kind == "argument":
            return f"{'.'.join((name, *self.path[:-1]))}({self.path[-1]}=)"
        return ".".join((name, *self.path))


def collect_uses(text: str, file: str, engine: str, version: Version, off: frozenset[str]) -> list[Use]:
    """Return what one file of the trainer uses of the package `engine` in that version.

    Args:
        text: The file's content.
        file: Its name in the wheel.
        engine: The engine's package.
        version: The engine's release.
        off: Options of the trainer that are off by default.

    Raises:
        SyntaxError: this Python cannot parse the file.
    """
    tree = ast.parse(text)
    walk = _Walk(file, engine, Conditions(version, off))
    # The first pass binds names: an instance created in `__init__` may be used in a method above it.
    walk.binding_only = True
    walk.block(tree.body, Use("", "", ""))
    walk.uses, walk.choices, walk.binding_only = [], 0, False
    walk.block(tree.body, Use("", "", ""))
    return list(dict.fromkeys(walk.uses))


@dataclass
class _Walk:
    """The walk over one file. A `Use` without a name serves as the template with the current guards."""

    file: str
    engine: str
    conditions: Conditions
    uses: list[Use] = field(default_factory=list)
    choices: int = 0
    binding_only: bool = False
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Local name -> (module, name)."""
    instances: dict[str, tuple[str, str]] = field(default_factory=dict)
    """'self.llm' -> the class that created it."""
    literals: dict[str, set[str]] = field(default_factory=dict)
    """Name of a dictionary literal -> its keys, for calls with `**name`."""

    def block(self, body: list[ast.stmt], guards: Use) -> None:
        for statement in body:
            self.statement(statement, guards)

    def statement(self, node: ast.stmt, guards: Use) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self.import_statement(node, guards)
            case ast.If():
                self.if_statement(node, guards)
            case ast.Try():
                self.try_statement(node, guards)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                outer, self.literals = self.literals, {}
                self.block(node.body, replace(guards, late=True))
                self.literals = outer
            case _:
                self.assignment(node)
                self.children(node, guards)

    def if_statement(self, node: ast.If, guards: Use) -> None:
        """Walk an `if`; a branch that is dead in this cell is left out."""
        self.expression(node.test, guards)
        truth = self.conditions.truth(node.test)
        unsure = guards.unsure or (truth is None and not depends_on_run_only(node.test))
        for body, is_body in ((node.body, True), (node.orelse, False)):
            if truth is None or truth is is_body:
                option = "" if truth is is_body else self.conditions.option(node.test, taken=is_body)
                self.block(body, replace(guards, unsure=unsure, option=guards.option or option))

    def children(self, node: ast.AST, guards: Use) -> None:
        """Walk everything else that contains statements and expressions: classes, loops, `with`, `match`."""
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.stmt):
                self.statement(part, guards)
            elif isinstance(part, ast.expr):
                self.expression(part, guards)
            else:
                self.children(part, guards)

    def try_statement(self, node: ast.Try, guards: Use) -> None:
        """Walk a `try`; with a handler for a failed import, its arms are alternatives."""
        handlers = [handler for handler in node.handlers if _catches_import_errors(handler)]
        if not handlers:
            self.block(node.body, guards)
            for handler in node.handlers:
                self.block(handler.body, replace(guards, unsure=True))
        else:
            self.choices += 1
            number = self.choices
            self.block(node.body, replace(guards, choice=(number, 0)))
            for arm, handler in enumerate(handlers, start=1):
                arm_guards = replace(guards, choice=(number, arm))
                # A handler that only raises is no alternative.
                if not isinstance(handler.body[-1], ast.Raise):
                    self.uses.append(
                        Use("arm", "", "", file=self.file, line=handler.lineno, choice=(number, arm))
                    )
                self.block(handler.body, arm_guards)
        self.block(node.orelse, guards)
        self.block(node.finalbody, guards)

    def import_statement(self, node: ast.Import | ast.ImportFrom, guards: Use) -> None:
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for alias in node.names if not node.level and self.is_engine(module) else ():
                self.imported[alias.asname or alias.name] = (module, alias.name)
                self.add(guards, node, "name", module, alias.name)
            return
        for alias in node.names:
            if self.is_engine(alias.name):
                self.add(guards, node, "name", alias.name, "")
                bound = alias.name if alias.asname else alias.name.partition(".")[0]
                self.imported[alias.asname or bound] = (bound, "")

    def is_engine(self, module: str) -> bool:
        return module == self.engine or module.startswith(f"{self.engine}.")

    def add(
        self,
        guards: Use,
        node: ast.stmt | ast.expr,
        kind: str,
        module: str,
        name: str,
        path: tuple[str, ...] = (),
    ) -> None:
        self.uses.append(
            replace(guards, kind=kind, module=module, name=name, path=path, file=self.file, line=node.lineno)
        )

    def assignment(self, node: ast.stmt) -> None:
        """Remember names for conditions, instances of engine classes, and dictionary literals."""
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            return
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Subscript):
            if isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str):
                self.literals.setdefault(_dotted(target.value), set()).add(target.slice.value)
            return
        name = _dotted(target)
        if not name:
            return
        if isinstance(target, ast.Name):
            self.conditions.names[name] = self.conditions.value(value)
        if isinstance(value, ast.Call) and getattr(value.func, "id", "") in self.imported:
            self.instances[name] = self.imported[value.func.id]  # type: ignore[attr-defined]
        elif isinstance(value, ast.Dict):
            constants = (key.value for key in value.keys if isinstance(key, ast.Constant))
            self.literals[name] = {key for key in constants if isinstance(key, str)}

    def expression(self, node: ast.expr, guards: Use) -> None:  # noqa: C901 - a branch a kind of use
        """Collect the uses inside an expression."""
        if self.binding_only:
            return
        for attribute in _outermost_attributes(node):
            origin = self.origin(_dotted(attribute))
            if origin is not None:
                self.add(guards, attribute, "attribute", *origin)
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                self.call(part, guards)
            elif isinstance(part, ast.JoinedStr) and self.file.endswith(CLIENT):
                route = _route(part)
                if route:
                    self.add(guards, part, "route", "", route)
            elif isinstance(part, ast.List) and self.file.endswith(LAUNCHER):
                for item in part.elts:
                    if isinstance(item, ast.Constant) and str(item.value).startswith("--"):
                        self.add(guards, part, "launch", "", str(item.value))

    def origin(self, dotted: str) -> tuple[str, str, tuple[str, ...]] | None:
        """Return (module, name, attributes below it) of an expression that stems from the engine."""
        parts = dotted.split(".")
        for length in range(len(parts) - 1, 0, -1):  # the longest known prefix: self.llm before self
            prefix, path = ".".join(parts[:length]), tuple(parts[length:])
            stem = self.instances.get(prefix) or self.imported.get(prefix)
            if stem:
                return (*stem, path)
        return None

    def call(self, node: ast.Call, guards: Use) -> None:
        dotted = _dotted(node.func)
        origin = (*self.imported[dotted], ()) if dotted in self.imported else self.origin(dotted)
        if origin is not None:
            module, name, path = origin
            for keyword in node.keywords:
                keys = {keyword.arg} if keyword.arg else self.literals.get(_dotted(keyword.value), set())
                for key in sorted(keys):
                    self.add(guards, node, "argument", module, name, (*path, key))
        first = node.args[0] if node.args else None
        if (
            dotted.rpartition(".")[2] == "patch"
            and isinstance(first, ast.Constant)
            and isinstance(first.value, str)
        ):
            self.patch(first.value, node, guards)

    def patch(self, target: str, node: ast.Call, guards: Use) -> None:
        """Add `unittest.mock.patch("vllm.worker.worker.Worker._x")`: without that path, entering it raises."""
        if self.is_engine(target):
            module, _, attribute = target.rpartition(".")
            owner_module, _, owner = module.rpartition(".")
            if owner[:1].isupper():
                self.add(guards, node, "patched", owner_module, owner, (attribute,))
            else:
                self.add(guards, node, "patched", module, attribute)


def _outermost_attributes(node: ast.AST) -> Iterator[ast.Attribute]:
    """Yield a.b.c, but not the a.b inside it."""
    if isinstance(node, ast.Attribute) and _dotted(node):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _outermost_attributes(child)


def _dotted(node: ast.AST) -> str:
    """Return 'a.b.c' for such an expression, '' for any other."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            prefix = _dotted(value)
            return f"{prefix}.{attr}" if prefix else ""
    return ""


def _catches_import_errors(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(_dotted(kind).rpartition(".")[2] in _IMPORT_ERRORS for kind in kinds)


def _route(node: ast.JoinedStr) -> str:
    """Return '/health/' of f"{self.base_url}/health/", '' for a string that does not end in a path."""
    last = node.values[-1]
    if len(node.values) > 1 and isinstance(last, ast.Constant) and str(last.value).startswith("/"):
        return str(last.value).partition("?")[0]
    return ""
