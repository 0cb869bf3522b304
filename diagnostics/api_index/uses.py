"""Collect the uses of other packages in a source file: imports, attributes and arguments.

Targets of `mock.patch`, model types registered with transformers, the routes that TRL's client requests, and the
options with which TRL's launcher starts vLLM are uses, too. Each use has the conditions around it. Branches that their
conditions exclude for a run with vLLM on NVIDIA GPUs are left out. The arms of a `try` that handles ImportError,
AttributeError, Exception or any error are alternatives: one of them must work. Its handlers of other errors are not
read. If all references to a function are under a comparison of versions, its code has this comparison as a condition.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import astuple, dataclass, field, replace

from diagnostics.api_index.extract import MODEL_TYPES
from diagnostics.api_index.source import constant_texts, dotted_name, parse_source
from diagnostics.versions import parse_version

# The file of TRL's client of the server, and the one that starts the server.
TRL_CLIENT = "/vllm_client.py"
TRL_LAUNCHER = "/vllm_serve.py"
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "AttributeError"}
MODEL_CONFIGS = "transformers.models.auto.configuration_auto"
# Hardware other than NVIDIA GPUs.
_OTHER_HARDWARE = {"vllm_ascend", "torch_npu", "torch_xpu", "torch_mlu"}
# Calls that depend on installed packages, or on the attributes of an object.
_PROBES = {"hasattr", "getattr", "signature", "find_spec", "import_module", "version", "Version", "parse"}
_OPERATORS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}

# Limits against source that is built to expand; real source has at most a third of each.
_MOST_CONDITIONS = 16
_MOST_ATTRIBUTES = 20
_LONGEST_KEY = 200

# A condition that compares the version of a package.
_COMPARED = re.compile(r"\w+[<>=!]=?\d")

_Origin = tuple[str, str, tuple[str, ...]]
"""(module, name, attribute path) of an expression, as in `Use`."""
Branch = tuple[str, ...] | None
"""The conditions under which a branch is taken; None if the branch is never taken. A condition is one of

- `vllm` or `vllm>=0.28`: that package is installed, in such a release; `!vllm`: it is not
- `set:NAME`: the run sets an option
- `try:NUMBER`: inside an arm of that `try`, another arm of which may work
- `?`: something else about the installation
"""


@dataclass(frozen=True)
class Use:
    """One use of another package's name."""

    kind: str
    """`name` (imported), `patched` (a dotted path in a string), `attribute` (a path below a name), `argument` (a
    keyword of a call), `route` (requested by the client), `launch` (an option of the server's command), `rule` (a rule
    of rules.toml that a release breaks; no source has it),
    `registered` (a model type that is given to `AutoConfig.register`: transformers must not have it),
    `positional` (a call with a number of positional arguments), `without` (a call without an argument) or `model_type`
    (that transformers must have), these from error messages only, or `arm` (a handler of a `try`; it works if all
    uses in it do)."""
    module: str
    """The module that the name is imported from."""
    name: str
    """The imported name; empty for a module; a route or an option as written."""
    path: tuple[str, ...] = ()
    """Attributes below the name; an argument's keyword comes last."""
    file: str = ""
    line: int = 0
    late: bool = False
    """Whether the use is inside a function, so that it fails when the function is called, not at import."""
    choice: tuple[int, int] | None = None
    """(number of the `try … except ImportError`, arm) that contains the use; one working arm is enough."""
    conditions: tuple[str, ...] = ()
    """Conditions that all hold where the use is reached."""

    @property
    def text(self) -> str:
        """The use as source code would write it, or in words if code could not show it."""
        name = ".".join(part for part in (self.module, self.name) if part)
        if self.kind == "model_type":
            return f"the model type {self.path[0]}"
        if self.kind == "registered":
            return f'AutoConfig.register("{self.path[0]}")'
        *outer, last = self.path or [""]
        call = {
            "argument": f"({last}=)",
            "positional": f" with {last} positional arguments",
            "without": f" without the argument {last}",
        }.get(self.kind)
        if call:
            return ".".join((name, *outer)) + call
        return ".".join((name, *self.path))

    def option(self, off: Collection[str]) -> str:
        """Return the option in `off` (off by default) that a run must set to reach the use; empty if none."""
        names = (item.removeprefix("set:") for item in self.conditions if item.startswith("set:"))
        return next((name for name in names if name in off), "")

    def to_key(self) -> str:
        """Return the use without its file and line, as text."""
        return json.dumps(astuple(replace(self, file="", line=0)), separators=(",", ":"))

    @staticmethod
    def from_key(key: str, file: str, line: int) -> Use:
        """Return the use that `to_key` encoded."""
        kind, module, name, path, _file, _line, late, choice, conditions = json.loads(key)
        places = tuple(choice) if choice else None
        return Use(kind, module, name, tuple(path), file, line, late, places, tuple(conditions))


def collect_uses(text: str, file: str, packages: Collection[str]) -> list[Use]:
    """Return the uses of some packages, given by module name, in the text of one file.

    Raises:
        SyntaxError: The file cannot be parsed, or has too many uses.
    """
    tree = parse_source(text)
    walk = _Walk(file, packages)
    # The first pass binds names: an instance created in `__init__` may be used in a method above it.
    walk.binding_only = True
    walk.block(tree.body, Use("", "", ""))
    walk.uses, walk.choices, walk.binding_only = [], 0, False
    walk.block(tree.body, Use("", "", ""))
    return list(dict.fromkeys(walk.uses))


@dataclass
class _Conditions:
    """Evaluates the parts of `if` conditions that depend on installed releases."""

    names: dict[str, tuple[Branch, Branch] | str] = field(default_factory=dict)
    """For each simple name: its branches (if true, if false), or the package whose version it has."""

    def branches(self, node: ast.expr) -> tuple[Branch, Branch]:  # noqa: C901, PLR0911 - one line a kind of expression
        """Return the conditions under which an expression is true, and those under which it is false."""
        match node:
            case ast.Constant(value=bool(value)):
                return _certain(value)
            case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
                return _certain(False)
            case ast.Name(id="use_vllm") | ast.Attribute(attr="use_vllm"):
                return _certain(True)  # the index is about runs that use vLLM
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.branches(operand)[::-1]
            case ast.BoolOp(op=ast.And(), values=values):
                pairs = [self.branches(value) for value in values]
                return _all_of([pair[0] for pair in pairs]), _any_of([pair[1] for pair in pairs])
            case ast.BoolOp(values=values):
                pairs = [self.branches(value) for value in values]
                return _any_of([pair[0] for pair in pairs]), _all_of([pair[1] for pair in pairs])
            case ast.Compare(
                left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]
            ):
                is_set = self.branches(left)
                return is_set if isinstance(op, ast.IsNot) else is_set[::-1]
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                requirement = self._comparison(left, _OPERATORS[type(op)], right)
                if requirement:
                    return requirement
            case ast.Call() if (requirement := self._availability(node)) is not None:
                return requirement
            case ast.Name(id=name) if isinstance(self.names.get(name), tuple):
                return self.names[name]  # type: ignore[return-value]
            case ast.Name(id=name) | ast.Attribute(attr=name) if not name.isupper():
                return (f"set:{name}",), ()
        return ((), ()) if _depends_on_run_only(node) else (("?",), ("?",))

    def _comparison(self, left: ast.expr, operator: str, right: ast.expr) -> tuple[Branch, Branch] | None:
        """Return the branches of a comparison with a package's version on either side; None for others."""
        package, version = self.package_of(left), _version(right)
        if package is None:
            package, version = self.package_of(right), _version(left)
            operator = _MIRRORED.get(operator, operator)
        if package is None or version is None:
            return None
        return (f"{package}{operator}{version}",), (f"{package}{_OPPOSITE[operator]}{version}",)

    def package_of(self, node: ast.expr) -> str | None:
        """Return the package whose version an expression gives, such as `vllm.__version__`; None if there is none."""
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr="__version__"):
                return name
            case ast.Name(id=name) if isinstance(self.names.get(name), str):
                return str(self.names[name])
            case ast.Call(args=[ast.Constant(value=str(name))]) if name.isidentifier() and _calls_any(
                node, "version"
            ):
                return name
            case ast.Call(args=[argument]) if _calls_any(node, "parse", "Version"):
                return self.package_of(argument)
            case ast.Attribute(attr="base_version" | "release", value=value):
                return self.package_of(value)
        return None

    def _availability(self, node: ast.Call) -> tuple[Branch, Branch] | None:
        """Return the branches of `is_PACKAGE_available(MINIMUM)`; None for another call."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        match = re.fullmatch(r"_?is_(\w+)_available", name)
        if not match:
            return None
        if match[1] in _OTHER_HARDWARE:
            return _certain(False)
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        minimum = _version(arguments[0]) if arguments else None
        if minimum is not None:
            return (f"{match[1]}>={minimum}",), (f"{match[1]}<{minimum}",)
        return (match[1],), (f"!{match[1]}",)


def _certain(value: bool) -> tuple[Branch, Branch]:
    return ((), None) if value else (None, ())


def _all_of(parts: list[Branch]) -> Branch:
    """Return the conditions of all parts together; None if one part is never taken."""
    if None in parts:
        return None
    return _bounded(item for part in parts for item in part or ())


def _under(guards: Use, conditions: Iterable[str]) -> Use:
    """Return a template with further conditions."""
    return replace(guards, conditions=_bounded((*guards.conditions, *conditions)))


def _bounded(conditions: Iterable[str]) -> tuple[str, ...]:
    """Return conditions without duplicates; only `?` if there are very many, because every use repeats them."""
    unique = tuple(dict.fromkeys(conditions))
    return unique if len(unique) <= _MOST_CONDITIONS else ("?",)


def _any_of(parts: list[Branch]) -> Branch:
    """Return the conditions under which any of the branches is taken.

    If several are possible: none if options alone lead to one of them, `?` if installed packages decide.
    """
    possible = [part for part in dict.fromkeys(parts) if part is not None]
    if len(possible) <= 1:
        return possible[0] if possible else None
    by_run = any(all(item.startswith("set:") for item in part) for part in possible)
    return () if by_run else ("?",)


def _calls_any(node: ast.Call, *names: str) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return any(name == known or name.endswith(f"_{known}") for known in names)


def _version(node: ast.expr) -> str | None:
    """Return the version in "0.8", Version("0.8") or version.parse("0.8"); None for any other expression."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and _calls_any(node, "Version", "parse"):
        node = node.args[0]
    release = parse_version(next(constant_texts([node]), None) or "")
    return str(release) if release else None


def _depends_on_run_only(node: ast.expr) -> bool:
    """Return whether a condition depends only on the run's options and data, not on installed packages."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute):
            name = part.id if isinstance(part, ast.Name) else part.attr
            available = name.startswith("is_") and name.endswith("_available")
            probes = name in _PROBES or available or "version" in name.lower()
            if probes or name.isupper():  # a constant of the module holds the result of a probe at import
                return False
    return True


@dataclass
class _Walk:
    """The walk over one file's statements. A `Use` without a name is a template with the current conditions."""

    file: str
    packages: Collection[str]
    conditions: _Conditions = field(default_factory=_Conditions)
    uses: list[Use] = field(default_factory=list)
    choices: int = 0
    binding_only: bool = False
    value_errors_caught: bool = False
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Local name -> (module, name)."""
    instances: dict[str, tuple[str, str]] = field(default_factory=dict)
    """'self.llm' -> the class that created it."""
    references: dict[str, frozenset[str]] = field(default_factory=dict)
    """Name -> the comparisons of versions around each reference to it in the file."""
    literals: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    """Name of a dictionary literal -> its keys and their conditions, for calls with `**name`."""

    def block(self, body: list[ast.stmt], guards: Use) -> None:
        """Walk statements; the ones after `if CONDITION: return` (`continue`, `break`) get the opposite condition."""
        for statement in body:
            self.statement(statement, guards)
            # Statements after `if …: return` are reached only if the condition does not hold.
            match statement:
                case ast.If(test=test, body=[*_, ast.Return() | ast.Continue() | ast.Break()], orelse=[]):
                    branch = self.conditions.branches(test)[1]
                    if branch is None:
                        return
                    guards = _under(guards, branch)

    def statement(self, node: ast.stmt, guards: Use) -> None:
        """Walk one statement; a function's body gets the conditions around its references."""
        match node:
            case ast.Import() | ast.ImportFrom():
                self.import_statement(node, guards)
            case ast.If():
                # Branches that are never taken are left out.
                self.expression(node.test, guards)
                branches = self.conditions.branches(node.test)
                for body, branch in zip((node.body, node.orelse), branches, strict=True):
                    if branch is not None:
                        self.block(body, _under(guards, branch))
            case ast.Try():
                self.try_statement(node, guards)
            case ast.With():
                outer_caught = self.value_errors_caught
                self.value_errors_caught |= any("ValueError" in ast.dump(item) for item in node.items)
                self.children(node, guards)
                self.value_errors_caught = outer_caught
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                outer, self.literals = self.literals, {}
                reached = () if guards.late else self.references.get(node.name, frozenset())
                self.block(node.body, replace(_under(guards, sorted(reached)), late=True))
                self.literals = outer
            case _:
                self.assignment(node, guards)
                self.children(node, guards)

    def children(self, node: ast.AST, guards: Use) -> None:
        """Walk any other compound statement or expression: classes, loops, `with`, `match`."""
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.stmt):
                self.statement(part, guards)
            elif isinstance(part, ast.expr):
                self.expression(part, guards)
            else:
                self.children(part, guards)

    def try_statement(self, node: ast.Try, guards: Use) -> None:
        """Walk a `try`; if it handles a failed import, its arms are alternatives."""
        handlers = [item for item in node.handlers if item.type is None or _catches(item, _IMPORT_ERRORS)]
        if not handlers:
            outer_caught = self.value_errors_caught
            self.value_errors_caught |= any(_catches(item, {"ValueError"}) for item in node.handlers)
            self.block(node.body, guards)
            self.value_errors_caught = outer_caught
            for handler in node.handlers:
                self.block(handler.body, replace(guards, conditions=(*guards.conditions, "?")))
        else:
            self.choices += 1
            number = self.choices
            if guards.choice is not None:
                outer = f"try:{guards.choice[0]}"
                guards = replace(guards, conditions=(*guards.conditions, outer))
            self.block(node.body, replace(guards, choice=(number, 0)))
            for arm, handler in enumerate(handlers, start=1):
                # A handler that only raises is no alternative.
                choice = number, arm
                if not isinstance(handler.body[-1], ast.Raise):
                    self.uses.append(Use("arm", "", "", file=self.file, line=handler.lineno, choice=choice))
                self.block(handler.body, replace(guards, choice=choice))
        self.block(node.orelse, guards)
        self.block(node.finalbody, guards)

    def import_statement(self, node: ast.Import | ast.ImportFrom, guards: Use) -> None:
        """Add the names that are imported from the packages; relative imports are left out."""
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for alias in node.names if not node.level and self.is_of_package(module) else ():
                self.imported[alias.asname or alias.name] = (module, alias.name)
                if alias.name != "*":
                    self.add(guards, node, "name", (module, alias.name, ()))
            return
        for alias in node.names:
            if self.is_of_package(alias.name):
                self.add(guards, node, "name", (alias.name, "", ()))
                bound = alias.name if alias.asname else alias.name.partition(".")[0]
                self.imported[alias.asname or bound] = (bound, "")

    def is_of_package(self, module: str) -> bool:
        return module.partition(".")[0] in self.packages

    def add(self, guards: Use, node: ast.stmt | ast.expr, kind: str, origin: _Origin) -> None:
        """Add a use with the current conditions."""
        use = Use(kind, *origin, self.file, node.lineno, guards.late, guards.choice, guards.conditions)
        self.uses.append(use)

    def assignment(self, node: ast.stmt, guards: Use) -> None:
        """Record assigned conditions, instances of imported classes, and dictionary literals."""
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            return
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Subscript):
            for key in _keys([target.slice]):
                self.literals.setdefault(dotted_name(target.value), {})[key] = guards.conditions
            return
        name = dotted_name(target)
        if not name:
            return
        if isinstance(target, ast.Name):
            self.remember_condition(name, value)
        if isinstance(value, ast.Call) and getattr(value.func, "id", "") in self.imported:
            self.instances[name] = self.imported[value.func.id]  # type: ignore[attr-defined]
        elif isinstance(value, ast.Dict):
            self.literals[name] = dict.fromkeys(_keys(value.keys), ())

    def remember_condition(self, name: str, value: ast.expr) -> None:
        """Store that a name has a package's version or a condition's value."""
        package = self.conditions.package_of(value)
        if package is not None:
            self.conditions.names[name] = package
        elif isinstance(value, ast.Compare | ast.BoolOp | ast.Call | ast.UnaryOp):
            branches = self.conditions.branches(value)
            if branches != ((), ()):
                self.conditions.names[name] = branches

    def expression(self, node: ast.expr, guards: Use) -> None:  # noqa: C901 - a branch a kind of use
        """Collect the uses inside an expression; the first pass collects the conditions around references."""
        if self.binding_only:
            compared = frozenset(item for item in guards.conditions if _COMPARED.match(item))
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                    self.references[part.id] = self.references.get(part.id, compared) & compared
            return
        for attribute in _outermost_attributes(node):
            # The target of an assignment need not exist before.
            origin = self.origin(dotted_name(attribute)) if isinstance(attribute.ctx, ast.Load) else None
            if origin is not None:
                self.add(guards, attribute, "attribute", origin)
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                self.call(part, guards)
            elif isinstance(part, ast.JoinedStr) and self.file.endswith(TRL_CLIENT):
                if route := _route(part):
                    self.add(guards, part, "route", ("", route, ()))
            elif isinstance(part, ast.List) and self.file.endswith(TRL_LAUNCHER):
                for option in constant_texts(part.elts):
                    if option.startswith("--"):
                        self.add(guards, part, "launch", ("", option, ()))

    def origin(self, dotted: str) -> _Origin | None:
        """Return (module, name, attribute path) of an expression that comes from one of the packages, else None."""
        parts = dotted.split(".")[:_MOST_ATTRIBUTES]
        for length in range(len(parts) - 1, 0, -1):  # the longest known prefix: self.llm before self
            prefix, path = ".".join(parts[:length]), tuple(parts[length:])
            stem = self.instances.get(prefix) or self.imported.get(prefix)
            if stem:
                return (*stem, path)
        return None

    def call(self, node: ast.Call, guards: Use) -> None:
        """Add the keywords of a call, registered model types, and targets of `patch`."""
        dotted = dotted_name(node.func)
        origin = (*self.imported[dotted], ()) if dotted in self.imported else self.origin(dotted)
        if origin is not None:
            module, name, path = origin
            for keyword in node.keywords:
                keys = {keyword.arg: ()} if keyword.arg else self.literals.get(dotted_name(keyword.value), {})
                for key, conditions in sorted(keys.items()):
                    self.add(_under(guards, conditions), node, "argument", (module, name, (*path, key)))
            # A call with `exist_ok` allows that transformers has the model type.
            if (name, path) == ("AutoConfig", ("register",)) and len(node.args) == 2 and not node.keywords:
                for model_type in constant_texts(node.args[:1]) if not self.value_errors_caught else ():
                    self.add(guards, node, "registered", (MODEL_CONFIGS, MODEL_TYPES, (model_type,)))
        if dotted.rpartition(".")[2] == "patch":
            for target in constant_texts(node.args[:1]):
                self.patch(target, node, guards)

    def patch(self, target: str, node: ast.Call, guards: Use) -> None:
        """Add the target of `unittest.mock.patch("vllm.worker.worker.Worker._x")`, which must exist."""
        if self.is_of_package(target):
            module, _, attribute = target.rpartition(".")
            owner_module, _, owner = module.rpartition(".")
            of_class = owner[:1].isupper()
            origin = (owner_module, owner, (attribute,)) if of_class else (module, attribute, ())
            self.add(guards, node, "patched", origin)


def _outermost_attributes(node: ast.AST) -> Iterator[ast.Attribute]:
    """Yield each attribute chain once: a.b.c, but not the a.b inside it."""
    if isinstance(node, ast.Attribute) and dotted_name(node):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _outermost_attributes(child)


def _keys(nodes: Iterable[ast.expr | None]) -> Iterator[str]:
    """Yield the constant keys of a dictionary, without very long ones."""
    return (text for text in constant_texts(nodes) if len(text) <= _LONGEST_KEY)


def _catches(handler: ast.ExceptHandler, errors: Collection[str]) -> bool:
    """Return whether a handler names one of these exceptions."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(dotted_name(kind).rpartition(".")[2] in errors for kind in kinds if kind)


def _route(node: ast.JoinedStr) -> str:
    """Return the URL path of a string, '/health/' of f"{self.base_url}/health/"; empty if it has none."""
    last = node.values[-1]
    if len(node.values) > 1 and isinstance(last, ast.Constant) and str(last.value).startswith("/"):
        return str(last.value).partition("?")[0]
    return ""
