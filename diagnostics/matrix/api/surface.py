"""Find what an engine's source provides: modules, names in them, attributes and arguments of classes, routes, options.

It follows what Python follows: re-exports, `import *`, submodules, base classes, and vLLM's two lazy idioms (a
module-level `__getattr__` with a table of names, or with names compared one by one).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from diagnostics.matrix.wheels import Sources

_DEPTH = 12  # re-exports of re-exports; more is a cycle
# Bases without an attribute that a trainer would use.
_EMPTY_BASES = frozenset(
    {"object", "ABC", "Generic", "Protocol", "Struct", "PydanticMsgspecMixin", "Enum", "IntEnum"}
)
_ROUTE_METHODS = frozenset({"get", "post", "put", "delete", "head", "route", "api_route", "add_api_route"})
# Files with most of the routes; the other hundred are parsed only for a route in none of these.
_ROUTE_FILES = ("router", "api_server", "health")
# The files whose fields and literals are the options of `vllm serve`.
_OPTION_FILES = ("/arg_utils.py", "/cli_args.py")


@dataclass(frozen=True)
class Definition:
    """The place where a name is defined."""

    module: str
    node: ast.AST | None
    """Its definition; None for a module, and for a name from another package."""
    kind: str
    """`defined`, `module`, `outside` (another package's) or `dynamic` (provided by `__getattr__`)."""


@dataclass(frozen=True)
class Members:
    """The attributes of a class and of its instances."""

    names: frozenset[str]
    complete: bool
    """False if a base class lies outside the package or `__getattr__` is defined: more names may exist."""


@dataclass
class Surface:
    """The API of one release of the engine; modules are parsed when first needed."""

    sources: Sources
    package: str
    _trees: dict[str, ast.Module | None] = field(default_factory=dict)
    _members: dict[Definition, Members] = field(default_factory=dict)
    _types: dict[tuple[Definition, str], list[tuple[Definition, bool]]] = field(default_factory=dict)

    def module_file(self, module: str) -> str | None:
        """Return the member that holds a module, None if there is no such module."""
        base, names = module.replace(".", "/"), self.sources.names()
        return next((name for name in (f"{base}/__init__.py", f"{base}.py") if name in names), None)

    def parse(self, module: str) -> ast.Module | None:
        """Return the syntax tree of a module, None if it does not exist."""
        if module not in self._trees:
            member = self.module_file(module)
            self._trees[module] = ast.parse(self.sources.read(member)) if member else None
        return self._trees[module]

    def has_module(self, module: str) -> bool:
        """Return whether a module or a folder of modules of that name exists."""
        folder = module.replace(".", "/") + "/"
        return self.module_file(module) is not None or any(
            name.startswith(folder) for name in self.sources.names()
        )

    def find(self, module: str, name: str, depth: int = 0) -> Definition | None:
        """Return the definition that `from module import name` imports, None if the import fails."""
        if not name:
            return Definition(module, None, "module") if self.has_module(module) else None
        tree = self.parse(module)
        if tree is None or depth > _DEPTH:
            return None
        definition = None
        for node in _import_time_statements(tree.body):
            # The last assignment wins, but one without a target does not hide one with a target (try/except imports).
            definition = self._binding(node, module, name, depth) or definition
        if definition:
            return definition
        if self.has_module(f"{module}.{name}"):
            return Definition(f"{module}.{name}", None, "module")
        return self._lazy_attribute(tree, module, name, depth)

    def _binding(self, node: ast.stmt, module: str, name: str, depth: int) -> Definition | None:  # noqa: C901, PLR0911 - a case a kind of statement
        """Return the definition if this statement binds the name."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound = {node.name}
            case ast.Assign():
                bound = {item for target in node.targets for item in _name_targets(target)}
            case ast.AnnAssign():
                bound = _name_targets(node.target)
            case ast.Import():
                for alias in node.names:
                    if (alias.asname or alias.name.partition(".")[0]) == name:
                        return self._follow(alias.name if alias.asname else name, "", depth)
                return None
            case ast.ImportFrom():
                source = self.absolute_module(node, module)
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._follow(source, alias.name, depth)
                    if alias.name == "*" and self._is_inside(source):
                        return self.find(source, name, depth + 1)
                return None
            case _:
                return None
        return Definition(module, node, "defined") if name in bound else None

    def _follow(self, module: str, name: str, depth: int) -> Definition | None:
        inside = self._is_inside(module)
        return self.find(module, name, depth + 1) if inside else Definition(module, None, "outside")

    def _is_inside(self, module: str) -> bool:
        return module == self.package or module.startswith(f"{self.package}.")

    def absolute_module(self, node: ast.ImportFrom, module: str) -> str:
        """Return the absolute module that an import in `module` names."""
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        is_package = (self.module_file(module) or "").endswith("/__init__.py")
        parents = parts[: len(parts) - node.level + is_package]
        return ".".join([*parents, *([node.module] if node.module else [])])

    def _lazy_attribute(self, tree: ast.Module, module: str, name: str, depth: int) -> Definition | None:
        """Follow a module-level `__getattr__`: a table of names, or names compared one by one."""
        statements = _import_time_statements(tree.body)
        getter = next((node for node in statements if _is_function(node, "__getattr__")), None)
        if getter is None:
            return None
        for table in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
            for key, value in zip(table.keys, table.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    return self._table_entry(value, module, name, depth)
        compared = any(isinstance(node, ast.Constant) and node.value == name for node in ast.walk(getter))
        return Definition(module, getter, "dynamic") if compared else None

    def _table_entry(self, value: ast.expr, module: str, name: str, depth: int) -> Definition | None:
        """Follow 'name': '.entrypoints.llm:LLM', or the plain module '.entrypoints.llm'."""
        if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
            return Definition(module, value, "dynamic")
        target, _, attribute = value.value.partition(":")
        if target.startswith("."):
            target = module + target
        return self._follow(target, attribute or name, depth)

    def class_and_bases(
        self, definition: Definition, depth: int = 0
    ) -> Iterator[tuple[str, ast.ClassDef | None]]:
        """Yield the class and its bases as (module, node); None for one outside the package."""
        if not isinstance(definition.node, ast.ClassDef) or depth > _DEPTH:
            yield definition.module, None
            return
        yield definition.module, definition.node
        for base in definition.node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            if getattr(plain, "id", getattr(plain, "attr", "")) in _EMPTY_BASES:
                continue
            parent = self.find(definition.module, plain.id) if isinstance(plain, ast.Name) else None
            if parent is None:
                yield definition.module, None
            else:
                yield from self.class_and_bases(parent, depth + 1)

    def members(self, definition: Definition) -> Members:
        """Return the attributes of a class and of its instances."""
        if definition not in self._members:
            nodes = [node for _module, node in self.class_and_bases(definition)]
            names = frozenset(name for node in nodes if node for name in _class_attributes(node))
            complete = None not in nodes and "__getattr__" not in names
            self._members[definition] = Members(names, complete)
        return self._members[definition]

    def attribute_types(self, definition: Definition, attribute: str) -> list[tuple[Definition, bool]]:
        """Return the possible classes of an attribute, best first, and whether it is exactly that one.

        Calling a class creates exactly that class; its class methods and annotations also admit others.
        """
        key = (definition, attribute)
        if key not in self._types:
            self._types[key] = []
            for module, node in self.class_and_bases(definition):
                for hint, exact in _type_hints(node, attribute) if node is not None else ():
                    target = self.find(module, hint)
                    if target is not None and isinstance(target.node, ast.ClassDef):
                        self._types[key].append((target, exact))
        return self._types[key]

    def method_keywords(self, definition: Definition, method: str) -> frozenset[str] | None:
        """Return the keywords of a method, its overloads included; None if they are unknown."""
        for _module, node in self.class_and_bases(definition):
            if node is None:
                return None
            overloads = [item for item in node.body if _is_function(item, method)]
            if any(item.args.kwarg is not None for item in overloads):
                return None
            if overloads:
                return frozenset(name for item in overloads for name in _parameters(item))
        return None

    def constructor_keywords(self, definition: Definition) -> tuple[frozenset[str], bool]:
        """Return (keywords of the constructor, whether it accepts others too)."""
        names: set[str] = set()
        for _module, node in self.class_and_bases(definition):
            if node is None:
                return frozenset(names), True
            constructor = next((item for item in node.body if _is_function(item, "__init__")), None)
            if constructor is not None:
                return frozenset(names | _parameters(constructor)), constructor.args.kwarg is not None
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    names.add(item.target.id)
        return frozenset(names), False

    def has_route(self, route: str) -> bool:
        """Return whether the engine's server has a route."""
        entrypoints = f"{self.package}/entrypoints/"
        files = [name for name in sorted(self.sources.names()) if name.startswith(entrypoints)]
        files.sort(key=lambda name: not any(part in name for part in _ROUTE_FILES))
        trees = (self.parse(_module_name(name)) for name in files)
        return any(route in registered_routes(tree) for tree in trees if tree is not None)

    def has_serve_option(self, option: str) -> bool:
        """Return whether `vllm serve` accepts an option."""
        plain = option.removeprefix("--no-").removeprefix("--")
        spellings = {plain, plain.replace("-", "_"), f"--{plain}"}
        for name in sorted(self.sources.names()):
            tree = self.parse(_module_name(name)) if name.endswith(_OPTION_FILES) else None
            for node in ast.walk(tree) if tree is not None else ():
                is_field = isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") in spellings
                if is_field or (isinstance(node, ast.Constant) and node.value in spellings):
                    return True
        return False


def registered_routes(tree: ast.Module) -> Iterator[str]:
    """Yield the paths that one file registers."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _ROUTE_METHODS
        ):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and str(first.value).startswith("/"):
                yield str(first.value)


def _module_name(member: str) -> str:
    return member.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _import_time_statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run at import, those inside `if`, `try`, `with` and loops included."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try):
            for key in ("body", "orelse", "finalbody"):
                yield from _import_time_statements(getattr(node, key, []))
            for handler in getattr(node, "handlers", []):
                yield from _import_time_statements(handler.body)


def _name_targets(node: ast.expr) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _class_attributes(node: ast.ClassDef) -> set[str]:
    """Return the names of the class body and every `self.name` that a method assigns."""
    names: set[str] = set()
    for item in _import_time_statements(node.body):
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(item.name)
        elif isinstance(item, ast.Assign):
            names |= {name for target in item.targets for name in _name_targets(target)}
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            names.add(item.target.id)
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and _is_self(part.value):
            names.add(part.attr)
    return names


def _is_function(node: ast.stmt, name: str) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {item.arg for item in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}


def _type_hints(node: ast.ClassDef, attribute: str, depth: int = 0) -> Iterator[tuple[str, bool]]:
    """Yield (class name, exact) for the values and annotations of an attribute, best first."""
    if depth > 3:
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Assign) and any(_binds(target, attribute) for target in part.targets):
            yield from _created_types(node, part.value, depth)
            yield from ((name, False) for name in _parameter_types(node, part))
    for part in ast.walk(node):
        if isinstance(part, ast.AnnAssign) and _binds(part.target, attribute):
            yield from ((name, False) for name in _annotation_names(part.annotation))
        elif isinstance(part, ast.FunctionDef) and part.name == attribute and part.returns is not None:
            yield from ((name, False) for name in _annotation_names(part.returns))


def _parameter_types(node: ast.ClassDef, assignment: ast.Assign) -> Iterator[str]:
    """Yield the annotation of a parameter that is stored unchanged: `self.group = group`."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and any(part is assignment for part in ast.walk(method)):
            for item in (*method.args.args, *method.args.kwonlyargs):
                if item.annotation and getattr(assignment.value, "id", "") == item.arg:
                    yield from _annotation_names(item.annotation)


def _created_types(node: ast.ClassDef, value: ast.expr, depth: int) -> Iterator[tuple[str, bool]]:
    """Follow `Engine(…)`, `Engine.from_args(…)`, `self.engine_class.from_args(…)`, `self.get_class()`."""
    if not isinstance(value, ast.Call):
        return
    root: ast.expr = value
    while isinstance(root, ast.Call) or (isinstance(root, ast.Attribute) and not _is_self(root.value)):
        root = root.func if isinstance(root, ast.Call) else root.value
    if isinstance(root, ast.Name):
        # A class method may return another class: vLLM 0.8 to 0.10 choose between two engines there.
        yield root.id, root is value.func
    elif isinstance(root, ast.Attribute):
        yield from ((name, False) for name, _exact in _type_hints(node, root.attr, depth + 1))


def _binds(target: ast.expr, attribute: str) -> bool:
    if isinstance(target, ast.Attribute):
        return _is_self(target.value) and target.attr == attribute
    return isinstance(target, ast.Name) and target.id == attribute


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def _annotation_names(node: ast.expr) -> Iterator[str]:
    """Yield the plain names of an annotation: `Optional["Executor"]` gives Executor."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():
            yield part.value
