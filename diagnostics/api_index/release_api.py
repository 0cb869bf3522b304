"""Look up modules, names, class members, signatures, routes, model types and serve options in the API of one release.

Lookups follow re-exports, `import *`, submodules, base classes and a module's `__getattr__`. Those of names and base
classes continue in the companions, the APIs of other packages in releases that fit. The facts of a module map each name
to its entry, a one-line text such as `def (self, a, b=)`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from diagnostics.api_index.extract import MODEL_TYPES, Facts
from diagnostics.api_index.packages import RENAMED_MODULES
from diagnostics.api_index.store import Package, UnpackedValues, in_spans

# Old names of the classes in renamed modules.
_RENAMED_CLASS = re.compile(r"\w+(Tokenizer|ImageProcessor)Fast")
_MODEL_TYPE_MODULES = ("configuration_auto", "auto_mappings")
_DEPTH = 12  # re-exports of re-exports; more is a cycle
# Bases without an attribute that a caller would use.
_EMPTY_BASES = {"object", "ABC", "Generic", "Protocol", "Struct", "PydanticMsgspecMixin", "Enum", "IntEnum"}
# Modules with most of the routes; the other hundred are read only for a route in none of these.
_ROUTE_MODULES = ("router", "api_server", "health")
# The modules whose fields and arguments are the options of `vllm serve`.
_OPTION_MODULES = (".arg_utils", ".cli_args")


class IndexedFacts:
    """The facts of a release in the index."""

    def __init__(self, package: Package, number: int) -> None:
        self._package, self._number = package, number
        self._facts: dict[str, Mapping[str, str] | None] = {}

    def modules(self) -> Iterable[str]:
        """Return all modules."""
        return filter(self.has_module, self._package.about["modules"])

    def has_module(self, module: str) -> bool:
        """Return whether there is a module or a folder of modules of that name."""
        return bool(self._package.folders.get(module, 0) >> self._number & 1)

    def facts(self, module: str) -> Mapping[str, str] | None:
        """Return the names that a module defines, with their entries; None if there is no such module."""
        if module not in self._facts:
            exists = in_spans(self._package.about["modules"].get(module, ("", ""))[1], self._number)
            self._facts[module] = (
                UnpackedValues(self._package.packed(module), self._number) if exists else None
            )
        return self._facts[module]


@dataclass(frozen=True)
class Definition:
    """The module and the name where something is defined, with its entry."""

    module: str
    name: str
    entry: str
    kind: str
    """`defined`, `module`, `outside` (another package's) or `dynamic` (code decides at run time)."""

    @property
    def is_class(self) -> bool:
        """Whether the definition is a class."""
        return self.kind == "defined" and self.entry.startswith("class")


@dataclass(frozen=True)
class Members:
    """The attributes of a class and of its instances."""

    names: frozenset[str]
    complete: bool
    """False if a base class is not found or not read, or `__getattr__` is defined: more names may exist."""


@dataclass(frozen=True)
class Signature:
    """The parameters of a function or of a constructor; `takes_others`: it has `**kwargs`, or a base is unknown.

    Attributes:
        positional: Number of parameters that a call may pass by position, with `self`; None if not limited or unknown.
    """

    names: frozenset[str]
    required: frozenset[str]
    takes_others: bool
    positional: int | None = None


@dataclass
class ReleaseApi:
    """The API of one release."""

    source: IndexedFacts
    package: str
    companions: Mapping[str, ReleaseApi] = field(default_factory=dict)
    """APIs of other packages, by module name: for base classes from there."""
    _members: dict[Definition, Members] = field(default_factory=dict)
    _constructors: dict[Definition, Signature] = field(default_factory=dict)
    _searched: set[tuple[str, str]] = field(default_factory=set)
    """(module, name) of the star imports that one look-up has followed; many paths may lead to the same one."""

    def has_module(self, module: str) -> bool:
        """Return whether a module or a folder of modules of that name exists."""
        return self.source.has_module(self._current_name(module))

    def _current_name(self, module: str) -> str:
        """Return the module that a renamed module's old name redirects to."""
        if self.package == "transformers" and not self.source.has_module(module):
            for pattern, name in RENAMED_MODULES.items():
                if pattern.fullmatch(module) and self.source.has_module(target := pattern.sub(name, module)):
                    return target
        return module

    def find(self, module: str, name: str, depth: int = 0) -> Definition | None:
        """Return the definition that `from module import name` would import; None if the import fails.

        Its kind is `dynamic` if only run time decides, and `outside` if another package has it.
        """
        if (owner := self._api_of(module)) is not self:
            return owner.find(module, name, depth)
        if not name:
            return Definition(module, "", "", "module") if self.has_module(module) else None
        module = self._current_name(module)
        facts = self.source.facts(module)
        if depth > _DEPTH:
            return None
        if facts is not None:
            definition = self._in_module(facts, module, name, depth)
            if definition:
                return definition
        if self.has_module(f"{module}.{name}"):
            return Definition(f"{module}.{name}", "", "", "module")
        dynamic = {"*", name} & set((facts or {}).get("__getattr__", "").split())
        if not dynamic and self.package == "transformers" and _RENAMED_CLASS.fullmatch(name):
            dynamic = {name} if self.find(module, name.removesuffix("Fast"), depth + 1) else set()
        return Definition(module, name, "", "dynamic") if dynamic else None

    def _in_module(self, facts: Mapping[str, str], module: str, name: str, depth: int) -> Definition | None:  # noqa: PLR0911 - a line a kind of entry
        """Return the definition of a name in a module: by import, alias, own entry or star import; else None."""
        entry = facts.get(name, "").lstrip("?")
        if entry.startswith("import "):
            target, _, attribute = entry.removeprefix("import ").partition(":")
            if (target, attribute) != (module, name):
                return self._follow(target, attribute, depth)
            return None
        alias = entry.removeprefix("value = ")
        if alias != entry and alias in facts and alias != name:
            return self.find(module, alias, depth + 1)
        if entry:
            return Definition(module, name, entry, "defined")
        if depth == 0:
            self._searched.clear()
        sources = facts.get("*", "").removeprefix("import ").split(", ")
        for source in sources if (module, name) not in self._searched else ():
            self._searched.add((module, name))
            if source and self._is_inside(source):
                listed = (self.source.facts(source) or {}).get("__all__", "").split()[1:]
                definition = self.find(source, name, depth + 1) if not listed or name in listed else None
                if definition:
                    return definition
            elif source:
                return Definition(module, name, "", "dynamic")
        return None

    def _follow(self, module: str, name: str, depth: int) -> Definition | None:
        """Return the definition of an imported name (`outside` for another package); None if this package lacks it."""
        definition = self.find(module, name, depth + 1)
        if self._is_inside(module):
            unread = definition is None and self.source.facts(self._current_name(module)) is None
            return Definition(module, name, "", "dynamic") if unread else definition
        return definition or Definition(module, name, "", "outside")

    def _is_inside(self, module: str) -> bool:
        return module == self.package or module.startswith(f"{self.package}.")

    def _api_of(self, module: str) -> ReleaseApi:
        """Return the API of the companion that has a module, or this one."""
        return self if self._is_inside(module) else self.companions.get(module.partition(".")[0], self)

    def facts(self, module: str) -> Mapping[str, str]:
        """Return the names of a module of this package or of a companion; empty if there is none."""
        return self._api_of(module).source.facts(module) or {}

    def class_and_bases(
        self, definition: Definition, depth: int = 0, seen: dict[Definition, bool] | None = None
    ) -> Iterator[Definition | None]:
        """Yield a class and its base classes, each once; None for one that cannot be resolved or was not read.

        Bases without attributes, such as `object` and `ABC`, are left out.

        Args:
            definition: The class.
            depth: Number of inheritance steps from the first class to this one.
            seen: For each class so far, whether its bases are being read; meeting such a class again means a cycle.
        """
        seen = {} if seen is None else seen
        if not definition.is_class or depth > _DEPTH or definition.entry.endswith("@outline"):
            yield None
            return
        yield definition
        seen[definition] = True
        bases = definition.entry.removeprefix("class").partition("@")[0]
        for base in filter(None, (part.strip() for part in bases.split(","))):
            if base.rpartition(".")[2] in _EMPTY_BASES:
                continue
            parent = self.find(definition.module, base) if base.isidentifier() else None
            if parent is None or seen.get(parent):
                yield None
            elif parent not in seen:
                yield from self.class_and_bases(parent, depth + 1, seen)
        seen[definition] = False

    def members(self, definition: Definition) -> Members:
        """Return the attributes of a class and of its instances."""
        if definition not in self._members:
            classes = list(self.class_and_bases(definition))
            names = {name for item in classes if item for name in self.own_members(item)}
            complete = None not in classes and "__getattr__" not in names
            self._members[definition] = Members(frozenset(names), complete)
        return self._members[definition]

    def own_members(self, definition: Definition) -> Facts:
        """Return the members that a class itself defines, with their entries."""
        prefix, facts = f"{definition.name}.", self.facts(definition.module)
        names = facts.packed if isinstance(facts, UnpackedValues) else facts
        members = [name for name in names if name.startswith(prefix) and "." not in name[len(prefix) :]]
        entries = ((name.removeprefix(prefix), facts.get(name)) for name in members)
        return {name: entry for name, entry in entries if entry is not None}

    def attribute_types(
        self, definition: Definition, attribute: str, depth: int = 0
    ) -> list[tuple[Definition, bool]]:
        """Return the possible classes of an attribute, each with whether subclasses are excluded.

        `X()` creates exactly class X; class methods and annotations also allow subclasses.
        """
        types: list[tuple[Definition, bool]] = []
        for item in self.class_and_bases(definition):
            entry = self.facts(item.module).get(f"{item.name}.{attribute}", "") if item else ""
            for hint in _type_hints(entry):
                if hint.startswith("self."):
                    if depth < 3:
                        inner = self.attribute_types(definition, hint[5:], depth + 1)
                        types += [(target, False) for target, _exact in inner]
                elif item and (target := self.find(item.module, hint.rstrip("()"))) and target.is_class:
                    types.append((target, hint.endswith("()")))
        return types

    def method_signature(self, definition: Definition, method: str) -> Signature | None:
        """Return the parameters of a method; None if they are unknown."""
        for item in self.class_and_bases(definition):
            if item is None:
                return None
            entry = self.facts(item.module).get(f"{item.name}.{method}", "")
            if entry:
                return parse_signature(entry) if entry.startswith("def") else None
        return None

    def constructor(self, definition: Definition) -> Signature:
        """Return the parameters of the first `__init__` in a class and its bases, with the fields of classes before."""
        if definition not in self._constructors:
            self._constructors[definition] = self._read_constructor(definition)
        return self._constructors[definition]

    def _read_constructor(self, definition: Definition) -> Signature:
        """Return the fields of a class and its bases up to the first `__init__`, with its parameters."""
        names: set[str] = set()
        for item in self.class_and_bases(definition):
            if item is None:
                return Signature(frozenset(names), frozenset(), takes_others=True)
            members = self.own_members(item)
            if members.get("__init__", "").startswith("def"):
                signature = parse_signature(members["__init__"])
                return replace(signature, names=signature.names | names)
            names |= {name for name, entry in members.items() if entry.startswith("field")}
        return Signature(frozenset(names), frozenset(), takes_others=False)

    def has_route(self, route: str) -> bool:
        """Return whether a module below PACKAGE.entrypoints has a route."""
        start = f"{self.package}.entrypoints"
        modules = [name for name in sorted(self.source.modules()) if name.startswith(start)]
        modules.sort(key=lambda name: not any(part in name for part in _ROUTE_MODULES))
        return any(f"route:{route}" in (self.source.facts(name) or {}) for name in modules)

    def has_model_type(self, model_type: str) -> bool:
        """Return whether transformers itself, without remote code, has a model type."""
        modules = (f"transformers.models.auto.{name}" for name in _MODEL_TYPE_MODULES)
        return any(f"{MODEL_TYPES}.{model_type}" in (self.source.facts(module) or {}) for module in modules)

    def has_serve_option(self, option: str) -> bool:
        """Return whether `vllm serve` has an option, by the names in the modules that declare its options."""
        plain = option.removeprefix("--no-").removeprefix("--")
        spellings = {plain.replace("-", "_"), f"--{plain}"}
        modules = (name for name in sorted(self.source.modules()) if name.endswith(_OPTION_MODULES))
        names = (name for module in modules for name in self.source.facts(module) or ())
        return any(name.rpartition(".")[2] in spellings for name in names)


def parse_signature(entry: str) -> Signature:
    """Parse the parameters in a function's entry.

    >>> parse_signature("def (self, a, b=, *, c, **kwargs)")
    Signature(names=frozenset({...}), required=frozenset({...}), takes_others=True, positional=3)
    """
    parts = [part.strip() for part in entry[entry.find("(") + 1 : entry.rfind(")")].split(",")]
    plain = [part for part in parts if part and not part.startswith(("*", "/"))]
    names = frozenset(part.rstrip("=") for part in plain)
    required = frozenset(part for part in plain if not part.endswith("=")) - {"self", "cls"}
    before_star = list(itertools.takewhile(lambda part: not part.startswith("*"), parts))
    has_varargs = any(re.match(r"\*\w", part) for part in parts)
    positional = None if has_varargs else sum(part in plain for part in before_star)
    return Signature(names, required, any(part.startswith("**") for part in parts), positional)


def _type_hints(entry: str) -> list[str]:
    """Return the class names in an entry, `Engine()` for an exact class: those of assignments, then of annotations."""
    first, _, attribute = entry.lstrip("?").partition(" | attr ")
    if first.startswith("attr "):
        first, attribute = "", first.removeprefix("attr ")
    annotation = first.partition("->")[2]
    if first.startswith("field "):
        annotation = first.removeprefix("field ").split(" = ")[0]
    return [*attribute.split(), *re.findall(r"(?<![\w.])[A-Z]\w*", annotation)]
