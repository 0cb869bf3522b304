"""What an engine's source offers: modules, names in them, attributes and arguments of its classes.

Follows what Python would follow: re-exports, `import *`, submodules, base classes, and the two lazy idioms
vLLM uses (a module-level `__getattr__`, with a table of names or with names compared one by one).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.matrix.build.sources import Sources

_DEPTH = 12  # re-exports of re-exports; more is a cycle


@dataclass(frozen=True)
class Definition:
    """Where a name leads."""

    module: str
    """Module that defines it."""
    node: ast.AST | None
    """Its definition; None for a module, and for what comes from outside the package."""
    how: str
    """`defined`, `module`, `outside` (another package's) or `dynamic` (by `__getattr__`, on trust)."""


@dataclass(frozen=True)
class Members:
    """What a class offers."""

    names: frozenset[str]
    whole: bool
    """False if a base class lies outside the package or `__getattr__` answers: a name may still exist."""


@dataclass
class Surface:
    """The modules of one release of the engine."""

    sources: Sources
    package: str
    _trees: dict[str, ast.Module | None] = field(default_factory=dict)
    _members: dict[Definition, Members] = field(default_factory=dict)
    _types: dict[tuple[Definition, str], list[tuple[Definition, bool]]] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    """Members looked at, for the record."""

    def file(self, module: str) -> str | None:
        """Returns the member that holds a module, None if there is no such module."""
        base = module.replace(".", "/")
        names = self.sources.names()
        return next((name for name in (f"{base}/__init__.py", f"{base}.py") if name in names), None)

    def tree(self, module: str) -> ast.Module | None:
        """Returns the parsed module, None if it isn't there."""
        if module not in self._trees:
            member = self.file(module)
            self._trees[module] = None
            if member is not None:
                self.read.add(member)
                self._trees[module] = ast.parse(self.sources.read(member))
        return self._trees[module]

    def find(self, module: str, name: str, depth: int = 0) -> Definition | None:
        """Returns where `from module import name` leads, None if it fails."""
        if not name:
            return Definition(module, None, "module") if self.has_module(module) else None
        tree = self.tree(module)
        if tree is None or depth > _DEPTH:
            return None
        found = None
        for node in _statements(tree.body):
            # The last assignment wins, but one that leads nowhere doesn't hide one that does (try/except
            # imports).
            found = self._defined_by(node, module, name, depth) or found
        if found:
            return found
        if self.has_module(f"{module}.{name}"):
            return Definition(f"{module}.{name}", None, "module")
        return self._lazy(tree, module, name, depth)

    def has_module(self, module: str) -> bool:
        """Tells whether a module or a folder of modules of that name is there."""
        folder = module.replace(".", "/") + "/"
        return self.file(module) is not None or any(name.startswith(folder) for name in self.sources.names())

    def _defined_by(self, node: ast.stmt, module: str, name: str, depth: int) -> Definition | None:
        """Returns where the name leads if this statement binds it."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound = {node.name}
            case ast.Assign():
                bound = {item for target in node.targets for item in _targets(target)}
            case ast.AnnAssign():
                bound = _targets(node.target)
            case ast.Import() | ast.ImportFrom():
                return self._bound_by_import(node, module, name, depth)
            case _:
                return None
        return Definition(module, node, "defined") if name in bound else None

    def _bound_by_import(
        self, node: ast.Import | ast.ImportFrom, module: str, name: str, depth: int
    ) -> Definition | None:
        source = self.absolute(node, module) if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            if isinstance(node, ast.Import):
                if (alias.asname or alias.name.partition(".")[0]) == name:
                    return self._imported(alias.name if alias.asname else name, "", depth)
            elif (alias.asname or alias.name) == name:
                return self._imported(source, alias.name, depth)
            elif alias.name == "*" and self._inside(source):
                return self.find(source, name, depth + 1)
        return None

    def _imported(self, module: str, name: str, depth: int) -> Definition | None:
        return (
            self.find(module, name, depth + 1)
            if self._inside(module)
            else Definition(module, None, "outside")
        )

    def _inside(self, module: str) -> bool:
        return module == self.package or module.startswith(f"{self.package}.")

    def absolute(self, node: ast.ImportFrom, module: str) -> str:
        """Returns the absolute module that an import in `module` names."""
        if not node.level:
            return node.module or ""
        member = self.file(module) or ""
        parts = module.split(".")
        drop = node.level - (1 if member.endswith("/__init__.py") else 0)
        return ".".join([*parts[: len(parts) - drop], *([node.module] if node.module else [])])

    def _lazy(self, tree: ast.Module, module: str, name: str, depth: int) -> Definition | None:
        """Follows a module-level `__getattr__`."""
        getter = next(
            (
                node
                for node in _statements(tree.body)
                if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
            ),
            None,
        )
        if getter is None:
            return None
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == name:
                        return self._table_entry(value, module, name, depth)
        named = any(isinstance(node, ast.Constant) and node.value == name for node in ast.walk(getter))
        return Definition(module, getter, "dynamic") if named else None

    def _table_entry(self, value: ast.expr, module: str, name: str, depth: int) -> Definition | None:
        """Follows 'name': '.entrypoints.llm:LLM', or the plain module '.entrypoints.llm'."""
        if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
            return Definition(module, value, "dynamic")
        target, _, attribute = value.value.partition(":")
        if target.startswith("."):
            target = module + target
        return (
            self.find(target, attribute or name, depth + 1)
            if self._inside(target)
            else Definition(target, None, "outside")
        )

    def classes(self, found: Definition, depth: int = 0) -> Iterator[tuple[str, ast.ClassDef | None]]:
        """Yields the class and its bases as (module, definition); None for one that lies outside."""
        if not isinstance(found.node, ast.ClassDef) or depth > _DEPTH:
            yield found.module, None
            return
        yield found.module, found.node
        for base in found.node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(plain, ast.Name) and plain.id in _HARMLESS_BASES:
                continue
            if isinstance(plain, ast.Attribute) and plain.attr in _HARMLESS_BASES:
                continue
            above = self.find(found.module, plain.id) if isinstance(plain, ast.Name) else None
            if above is None:
                yield found.module, None
            else:
                yield from self.classes(above, depth + 1)

    def members(self, found: Definition) -> Members:
        """Returns the attributes of a class and of its instances."""
        if found not in self._members:
            self._members[found] = self._members_of(found)
        return self._members[found]

    def _members_of(self, found: Definition) -> Members:
        names: set[str] = set()
        whole = True
        for _module, node in self.classes(found):
            if node is None:
                whole = False
                continue
            names |= _class_names(node)
        return Members(frozenset(names), whole and "__getattr__" not in names)

    def types_of(self, found: Definition, attribute: str) -> list[tuple[Definition, bool]]:
        """Returns the classes that an attribute may be of, best first, and whether it is exactly that one.

        Calling a class makes exactly that; its class methods and annotations also admit others.
        """
        if (found, attribute) not in self._types:
            self._types[found, attribute] = list(self._types_of(found, attribute))
        return self._types[found, attribute]

    def _types_of(self, found: Definition, attribute: str) -> Iterator[tuple[Definition, bool]]:
        for module, node in self.classes(found):
            for hint, exact in _hints(node, attribute) if node is not None else ():
                above = self.find(module, hint)
                if above is not None and isinstance(above.node, ast.ClassDef):
                    yield above, exact

    def keywords(self, found: Definition, method: str) -> frozenset[str] | None:
        """Returns what a method can be called with, None where that can't be told."""
        for _module, node in self.classes(found):
            made = [item for item in (node.body if node else ()) if _is_method(item, method)]
            if any(item.args.kwarg is not None for item in made) or node is None:
                return None
            if made:
                return frozenset(
                    item.arg
                    for each in made  # its overloads among them
                    for item in (*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs)
                )
        return None

    def arguments(self, found: Definition) -> tuple[frozenset[str], bool]:
        """Returns (keywords a class can be made with, whether others are taken too)."""
        names: set[str] = set()
        for _module, node in self.classes(found):
            if node is None:
                return frozenset(names), True
            made = next(
                (item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"),
                None,
            )
            if made is not None:
                spec = made.args
                names |= {item.arg for item in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}
                return frozenset(names), spec.kwarg is not None
            names |= {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
        return frozenset(names), False


# Bases that add no attribute a trainer would use.
_HARMLESS_BASES = {
    "object",
    "ABC",
    "Generic",
    "Protocol",
    "Struct",
    "PydanticMsgspecMixin",
    "Enum",
    "IntEnum",
}


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements that run at import, those inside `if`, `try`, `with` and loops included."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try):
            for key in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, key, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def _targets(node: ast.expr) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _class_names(node: ast.ClassDef) -> set[str]:
    """Returns the names of the class body and every `self.name` that a method assigns."""
    names: set[str] = set()
    for item in _statements(node.body):
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(item.name)
        elif isinstance(item, ast.Assign):
            names |= {name for target in item.targets for name in _targets(target)}
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            names.add(item.target.id)
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and _is_self(part.value):
            names.add(part.attr)
    return names


def _is_method(node: ast.stmt, name: str) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name


def _hints(node: ast.ClassDef, attribute: str, depth: int = 0) -> Iterator[tuple[str, bool]]:
    """Yields (class name, exact) for what an attribute is made by or annotated with, best first."""
    if depth > 3:
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Assign) and any(_names(target, attribute) for target in part.targets):
            yield from _made_by(node, part.value, depth)
            yield from ((name, False) for name in _given(node, part))
    for part in ast.walk(node):
        if isinstance(part, ast.AnnAssign) and _names(part.target, attribute):
            yield from ((name, False) for name in _annotation(part.annotation))
        elif isinstance(part, ast.FunctionDef) and part.name == attribute and part.returns is not None:
            yield from ((name, False) for name in _annotation(part.returns))


def _given(node: ast.ClassDef, assigned: ast.Assign) -> Iterator[str]:
    """Yields the annotation of a parameter that is kept as it was given: `self.group = group`."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and any(part is assigned for part in ast.walk(method)):
            for each in (*method.args.args, *method.args.kwonlyargs):
                if each.annotation and isinstance(assigned.value, ast.Name) and assigned.value.id == each.arg:
                    yield from _annotation(each.annotation)


def _made_by(node: ast.ClassDef, value: ast.expr, depth: int) -> Iterator[tuple[str, bool]]:
    """Follows `Engine(…)`, `Engine.from_args(…)`, `self.engine_class.from_args(…)`, `self.get_class()`."""
    if not isinstance(value, ast.Call):
        return
    root: ast.expr = value
    while isinstance(root, ast.Call) or (isinstance(root, ast.Attribute) and not _is_self(root.value)):
        root = root.func if isinstance(root, ast.Call) else root.value
    if isinstance(root, ast.Name):
        # A class method may return another class: vLLM 0.8 to 0.10 choose between two engines there.
        yield root.id, root is value.func
    elif isinstance(root, ast.Attribute):
        yield from ((name, False) for name, _exact in _hints(node, root.attr, depth + 1))


def _names(target: ast.expr, attribute: str) -> bool:
    if isinstance(target, ast.Attribute):
        return _is_self(target.value) and target.attr == attribute
    return isinstance(target, ast.Name) and target.id == attribute


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def _annotation(node: ast.expr) -> Iterator[str]:
    """Yields the plain names of an annotation: `Optional["Executor"]` gives Executor."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():
            yield part.value
