"""Extract the names that one file defines; nothing is executed.

`extract` reads the syntax tree of a Python file, and `extract_yaml` reads YAML. `extract_outline` uses a regular
expression, for files of which the index has top-level names only (`IndexedPackage.is_outlined`). The result maps each
name to an entry, a short text:

    LLM                 class OfflineMixin, Base       (bases without `[…]`; `@dataclass` or `@outline` follows)
    LLM.generate        def (self, prompts, *, use_tqdm=, **kwargs)       (`=`: has a default)
    LLM.engine          attr LLMEngine() self.make     (set by a method; from which calls, see below)
    LLM.stats           property -> Stats              (a function with a named return has `-> Class`, too)
    Config.mode         field Literal['a', 'b'] = 'a'  (` | attr …` follows if a method sets it, too)
    RED                 value 'red'                    (a constant, a Literal, a list of constants)
    Alias               value = other.Name             (another name)
    __all__             value LLM Config
    Params              import vllm.sampling_params:SamplingParams
    *                   import vllm.outputs, other     (star imports)
    */                  import transformers.models     (all that the modules below it export)
    CONFIG_MAPPING_NAMES.bert   value              (a model type of transformers)
    __getattr__         dynamic a b                    (names that it compares or has in a table; `dynamic *`: any)
    --max-steps         option int choices [1, 3] = 3  (argparse)
    env:NAME            env                            (an environment variable that is read or set)
    route:/health       route
    group:model         field                          (a config group of Hydra)

A leading `?` marks a top-level name that the module defines once, inside an `if`. Members of a class and names in
`except` have no mark. The members of a class with `@outline` were not read. Defaults and single constants are cut at 80
characters, other values and types at 300.

An attribute has the class `LLMEngine` if it is set to `LLMEngine(…)`, with the entry `LLMEngine()`. The entry
`LLMEngine` stands for a call of a class method, such as `LLMEngine.from_args(…)`, which may return another class;
`self.make` for a call of this method.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import yaml

from diagnostics.api_index.source import (
    TOO_LONG,
    constant_texts,
    dotted_name,
    expression_text,
    parse_source,
    statements_in,
)  # fmt: skip
from diagnostics.output.redact import truncate

Facts = dict[str, str]

_MAX_TEXT = 300
_MAX_DEFAULT = 80
# Limits against source that is built to expand; real source has at most half of each.
_MOST_NESTED_CLASSES = 4
_MOST_CLASSES_OF_ATTRIBUTE = 40
_MOST_LOOP_VALUES = 100
_TYPE_CHECKING = {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
_ROUTE_METHODS = frozenset({"get", "post", "put", "delete", "head", "route", "api_route", "add_api_route"})
# The table of transformers' model types, in `models/auto/`.
MODEL_TYPES = "CONFIG_MAPPING_NAMES"
_CHOICE_TYPES = {"Literal", "Union", "Optional"}
_PROPERTIES = {"property", "cached_property", "functools.cached_property"}
_TOP_LEVEL = re.compile(r"^(?:async )?(class|def) (\w+)(?:\(([\w., ]*)\):)?", re.MULTILINE)
_ALL = re.compile(r"^__all__ = \[", re.MULTILINE)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def extract(text: str, module: str, *, is_package: bool = False) -> Facts:
    """Return the names that a module defines, and its options, environment variables and routes, with their entries.

    Raises:
        SyntaxError: The text cannot be parsed.
    """
    tree = parse_source(text)
    reader = _ModuleReader(module, is_package)
    reader.read_module(tree)
    if any(word in text for word in ("environ", "getenv", "add_argument", "envs", '"/', "'/")):
        reader.facts.update(_declarations(tree, module))
    return reader.facts


def extract_outline(text: str) -> Facts:
    r"""Return the top-level classes, functions and `__all__` of a file by regular expression; members are not read.

    >>> extract_outline("class A(B, c.D):\n    x = 1\ndef f(a): ...\n")
    {'A': 'class B, c.D @outline', 'f': 'def (*args, **kwargs)', '__getattr__': 'dynamic *'}
    """
    facts = {}
    for kind, name, bases in _TOP_LEVEL.findall(text):
        facts[name] = f"class {bases} @outline" if kind == "class" else "def (*args, **kwargs)"
    if match := _ALL.search(text):
        listed = text[match.end() :].partition("]")[0]
        facts["__all__"] = "value " + " ".join(re.findall(r"\w+", listed))
    return facts | {"__getattr__": "dynamic *"}


def extract_yaml(text: str) -> Facts:
    r"""Return the dotted keys of a YAML config file, with their values, and Hydra's config groups as `group:NAME`.

    The result is empty if the file is invalid, or has aliases.

    >>> extract_yaml("a:\n  b: 1\n")
    {'a': 'field', 'a.b': 'field = 1'}
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    def walk(value: object, prefix: str) -> Iterator[tuple[str, str]]:
        items = value.items() if isinstance(value, dict) else ()
        for key, inner in items:
            # The groups in Hydra's list of defaults can be chosen by name.
            if key == "defaults" and isinstance(inner, list):
                groups = (name for item in inner if isinstance(item, dict) for name in item)
                yield from ((f"group:{str(name).rpartition('@')[2]}", "field") for name in groups)
            plain = not isinstance(inner, dict)
            yield f"{prefix}{key}", f"field = {str(inner)[:_MAX_DEFAULT]}" if plain else "field"
            yield from walk(inner, f"{prefix}{key}.")

    try:
        if any(isinstance(item, yaml.AliasEvent) for item in yaml.parse(text, loader)):
            return {}
        return dict(walk(yaml.load(text, loader), ""))  # noqa: S506 - a safe loader
    except Exception:  # noqa: BLE001 - PyYAML raises a dozen kinds for values of a wrong form
        return {}


@dataclass
class _ModuleReader:
    """Reads the statements that run when a module is imported, and collects the names that they bind."""

    module: str
    is_package: bool
    facts: Facts = field(default_factory=dict)
    type_checking: Facts = field(default_factory=dict)
    """Names that only type checkers import; they exist if the module is loaded lazily."""
    stars: dict[str, None] = field(default_factory=dict)
    """Modules of which all names are imported."""
    lazy_stars: dict[str, None] = field(default_factory=dict)
    """Modules of which only type checkers import all names."""
    lazy: bool = False
    sets_globals: bool = False
    """Whether it creates names that its source does not show."""

    def read_module(self, tree: ast.Module) -> None:
        """Collect the names that the module binds: at import, under a condition, by star imports and lazily."""
        conditional: set[str] = set()
        for node, state in _import_time_statements(tree.body):
            bound = dict(self.bindings(node))
            target = self.type_checking if state == "types" else self.facts
            for name, entry in bound.items():
                if state == "if" and name not in target:
                    conditional.add(name)
                elif name in target:
                    conditional.discard(name)
                # `X = None` in a handler or an else does not hide the real X.
                if not (entry.startswith("value") and target.get(name, "value")[:5] != "value"):
                    target[name] = entry
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                (self.lazy_stars if state == "types" else self.stars)[self.absolute(node)] = None
        if folders := list(self._lazy_folders(tree)):
            self.facts["*/"] = "import " + ", ".join(folders)
        self._add_lazy_names(tree)
        self.facts.update({name: f"?{self.facts[name]}" for name in conditional if "." not in name})
        if self.stars:
            self.facts["*"] = "import " + ", ".join(self.stars)

    def _lazy_folders(self, tree: ast.Module) -> Iterator[str]:
        """Yield the modules below which transformers' `define_import_structure` collects names at import."""
        for node, _state in _import_time_statements(tree.body):
            for call in ast.walk(node) if isinstance(node, ast.Assign | ast.Expr) else ():
                if isinstance(call, ast.Call) and dotted_name(call.func) == "define_import_structure":
                    prefix = next((item.value for item in call.keywords if item.arg == "prefix"), None)
                    below = getattr(prefix, "value", "")
                    yield f"{self.module}.{below}" if below else self.module

    def absolute(self, node: ast.ImportFrom) -> str:
        """Return the absolute module of an import statement."""
        if not node.level:
            return node.module or ""
        parts = self.module.split(".")
        parents = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*parents, *([node.module] if node.module else [])])

    def bindings(self, node: ast.stmt) -> Iterator[tuple[str, str]]:  # noqa: C901, PLR0912 - a case a kind of statement
        """Yield the names that a statement binds, with their entries."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, _function_entry(node)
            case ast.ClassDef():
                yield from _class_entries(node)
            case ast.Assign():
                entry = _value_entry(node.value)
                names = dict.fromkeys(_target_names(node))
                # `__getattr__, __dir__, __all__ = attach(…)` of huggingface_hub, whose table has the names.
                if "__getattr__" in names:
                    del names["__getattr__"]
                    self.lazy = True
                for name in names:
                    yield name, _list_entry(node.value) if name == "__all__" else entry
                    if name == MODEL_TYPES:
                        yield from ((f"{name}.{key}", "value") for key in _pair_keys(node.value))
                for target in node.targets:
                    self._note_lazy_module(target)
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, _value_entry(node.value) if node.value else "value"
            case ast.Import():
                for alias in node.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    yield bound, f"import {alias.name if alias.asname else bound}"
            case ast.ImportFrom():
                source = self.absolute(node)
                for alias in node.names:
                    if alias.name != "*":
                        yield alias.asname or alias.name, f"import {source}:{alias.name}"
            case ast.For() | ast.With():
                yield from ((bound, "value") for bound in _target_names(node))

    def _note_lazy_module(self, target: ast.expr) -> None:
        """Note whether an assignment replaces the module in `sys.modules`, or sets a key of `globals()`."""
        while isinstance(target, ast.Subscript | ast.Attribute):
            if isinstance(target, ast.Subscript):
                self.lazy |= dotted_name(target.value) == "sys.modules"
                self.sets_globals |= _is_globals(target.value)
            target = target.value

    def _add_lazy_names(self, tree: ast.Module) -> None:
        """Add names that appear on access: those of `__getattr__`, lazy import tables and TYPE_CHECKING blocks."""
        getter = next((node for node in tree.body if _is_function(node, "__getattr__")), None)
        for node, _state in _import_time_statements(tree.body):
            if _is_function(node, "__getattr__"):
                getter = node
            self.sets_globals |= isinstance(node, ast.Expr) and _sets_any_global(node.value)
        if self.sets_globals:
            self.facts["__getattr__"] = "dynamic *"
        if getter is None and not self.lazy:
            return
        names = self.type_checking | dict(_lazy_tables(tree, self.module))
        self.stars |= self.lazy_stars
        if getter is not None:
            texts = constant_texts(ast.walk(getter))
            compared = dict.fromkeys(text for text in texts if text.isidentifier())
            any_name = ["*"] if self.sets_globals or not (compared or names) else []
            self.facts["__getattr__"] = " ".join(["dynamic", *compared, *any_name])
        elif not names and not self.lazy_stars and "*/" not in self.facts:
            self.facts["__getattr__"] = "dynamic *"
        for name, entry in names.items():
            if not self.facts.get(name, "").startswith(("class", "def")):
                self.facts[name] = entry


def _import_time_statements(body: Iterable[ast.stmt], state: str = "") -> Iterator[tuple[ast.stmt, str]]:
    """Yield the statements that run at import, with `if` for those in an `if` and `types` for TYPE_CHECKING."""
    for node in body:
        yield node, state
        match node:
            case ast.If():
                types = dotted_name(node.test) in _TYPE_CHECKING
                yield from _import_time_statements(node.body, "types" if types else state or "if")
                yield from _import_time_statements(node.orelse, state if types else state or "if")
            case ast.For() | ast.While() | ast.With():
                yield from _import_time_statements(node.body, state)
            case ast.Try():
                handlers = (handler.body for handler in node.handlers)
                for part in (node.body, node.orelse, node.finalbody, *handlers):
                    yield from _import_time_statements(part, state)


def _pair_keys(node: ast.expr) -> Iterator[str]:
    """Yield the first texts of all pairs of texts in a table."""
    for part in ast.walk(node):
        if isinstance(part, ast.Tuple) and len(part.elts) == 2:
            yield from constant_texts(part.elts[:1])


def _is_globals(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and dotted_name(node.func) == "globals"


def _sets_any_global(node: ast.expr) -> bool:
    """Return whether an expression is `globals().update(…)` or `setattr(sys.modules[…], …)`."""
    if not isinstance(node, ast.Call):
        return False
    updates = (
        isinstance(node.func, ast.Attribute) and node.func.attr == "update" and _is_globals(node.func.value)
    )
    target = node.args[0] if node.args and dotted_name(node.func) == "setattr" else None
    return updates or (isinstance(target, ast.Subscript) and dotted_name(target.value) == "sys.modules")


def _lazy_tables(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """Yield names of lazy import tables: vLLM's ('LLM': '.entrypoints.llm:LLM'), transformers' `_import_structure`."""
    for node in ast.walk(tree):
        match node:
            case ast.Dict():
                pairs: list[tuple[ast.expr | None, ast.expr]] = list(zip(node.keys, node.values, strict=True))
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant() as key)], value=value):
                pairs = [(key, value)]
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Subscript(slice=ast.Constant() as key), attr="extend" | "append"
                ),
                args=[value],
            ):
                pairs = [(key, value if isinstance(value, ast.List) else ast.List([value]))]
            case _:
                continue
        for key_node, entry in pairs:
            name = next(constant_texts([key_node]), None)
            if name is None or len(name) > _MAX_TEXT:
                continue
            if isinstance(entry, ast.List):
                yield from ((text, f"import {module}.{name}:{text}") for text in constant_texts(entry.elts))
            elif name.isidentifier():
                text = next(constant_texts([entry]), None)
                target, _, attribute = (text or "").partition(":")
                start = module if target.startswith(".") else ""
                yield name, "value" if text is None else f"import {start}{target}:{attribute or name}"


def _class_entries(node: ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the entry of a class, and those of its members as `Class.member`."""
    name = f"{prefix}{node.name}"
    bases = [expression_text(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases]
    is_dataclass = any("dataclass" in expression_text(item) for item in node.decorator_list)
    dataclass_mark = " @dataclass" if is_dataclass else ""
    yield name, f"class {', '.join(bases)}{dataclass_mark}".rstrip()
    members = _class_body(node, name)
    for attribute, hints in _instance_attributes(node).items():
        known = members.get(f"{name}.{attribute}", "")
        if not known or (known.startswith(("field", "value")) and hints):
            text = f"attr {' '.join(hints)}".rstrip()
            members[f"{name}.{attribute}"] = text if not known else f"{known} | {text}"
    yield from members.items()


def _class_body(node: ast.ClassDef, name: str) -> Facts:
    """Return the names that the body of a class binds, each after the name of the class."""
    members: Facts = {}
    signatures: dict[str, list[str]] = {}
    for item, _state in _import_time_statements(node.body):
        match item:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                entry, method = _function_entry(item), f"{name}.{item.name}"
                if entry.startswith("def"):
                    signatures.setdefault(method, []).append(entry)
                if not members.get(method, "").startswith("property"):
                    members[method] = entry
            case ast.ClassDef() if name.count(".") < _MOST_NESTED_CLASSES:
                members.update(_class_entries(item, f"{name}."))
            case ast.Assign():
                entry = _value_entry(item.value)
                members.update(dict.fromkeys((f"{name}.{bound}" for bound in _target_names(item)), entry))
            case ast.AnnAssign(target=ast.Name(id=bound)):
                members[f"{name}.{bound}"] = _field_entry(item)
    for method, entries in signatures.items():
        if len(entries) > 1 and members[method].startswith("def"):
            members[method] = _merge_overloads(*entries)
    return members


def _merge_overloads(*entries: str) -> str:
    """Merge overloads into one signature that has all their parameters, all optional except `self` and `cls`.

    >>> _merge_overloads("def (self, a)", "def (self, b=, **kwargs)")
    'def (self, a=, b=, **kwargs)'
    """
    parts = [
        part.strip() for entry in entries for part in entry[entry.find("(") + 1 : entry.rfind(")")].split(",")
    ]
    names = dict.fromkeys(part.rstrip("=") for part in parts if part not in {"", "/", "*"})
    plain = [name if name in {"self", "cls"} else f"{name}=" for name in names if not name.startswith("*")]
    return f"def ({', '.join([*plain, *(name for name in names if name.startswith('*'))])})"


def _function_entry(node: _Function) -> str:
    """Return the entry of a function: its parameters and, if named, the returned class; or of a property."""
    decorators = [dotted_name(item) for item in node.decorator_list]
    returns = f" -> {expression_text(node.returns)[:_MAX_DEFAULT]}" if node.returns else ""
    if any(item in _PROPERTIES for item in decorators):
        return f"property{returns}"
    parts = _parameters(node.args)
    for item in node.decorator_list:
        # transformers' deprecate_kwarg("old", …) accepts the old name, too.
        if isinstance(item, ast.Call) and "deprecate_kwarg" in dotted_name(item.func) and item.args:
            parts.insert(len(parts) - (node.args.kwarg is not None), f"{getattr(item.args[0], 'value', '')}=")
    named = re.fullmatch(r" -> ['\"\w.\[\] |]*", returns) and re.search(r"[A-Z]\w*[a-z]", returns)
    if not named or (returns.startswith(" -> None") and "classmethod" not in decorators):
        returns = ""
    return f"def ({', '.join(parts)}){returns}"


def _parameters(arguments: ast.arguments) -> list[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    first_default = len(positional) - len(arguments.defaults)
    parts = [f"{item.arg}{'=' * (at >= first_default)}" for at, item in enumerate(positional)]
    if arguments.posonlyargs:
        parts.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg:
        parts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parts.append("*")
    for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parts.append(f"{item.arg}{'=' * (default is not None)}")
    if arguments.kwarg:
        parts.append(f"**{arguments.kwarg.arg}")
    return parts


def _field_entry(node: ast.AnnAssign) -> str:
    """Return the type, choices, aliases, deprecation and default of an annotated attribute as an entry."""
    text = f"field {_shorten(expression_text(node.annotation), _MAX_TEXT)}"
    value = node.value
    if isinstance(value, ast.Call):
        keywords = {item.arg: item.value for item in value.keywords}
        value = keywords.get("default", value.args[0] if value.args else None)
        if "default_factory" in keywords:
            value = ast.Name("factory")
        metadata = keywords.get("metadata")
        more = zip(metadata.keys, metadata.values, strict=True) if isinstance(metadata, ast.Dict) else ()
        by_key = {getattr(key, "value", ""): item for key, item in more} | keywords
        for key in ("choices", "aliases", "alias", "validation_alias", "deprecated"):
            if isinstance(item := by_key.get(key), ast.Constant | ast.List | ast.Tuple | ast.Call):
                text += f" {key} {_shorten(expression_text(item), _MAX_TEXT)}"
    if value is not None:
        text += f" = {_shorten(expression_text(value), _MAX_DEFAULT)}"
    return text


def _value_entry(node: ast.expr) -> str:
    """Return the entry of a constant, a Literal, a list of constants or another name; `value` for anything else."""
    if isinstance(node, ast.Constant):
        return f"value {_shorten(repr(node.value), _MAX_DEFAULT)}"
    if isinstance(node, ast.Subscript) and dotted_name(node.value).rpartition(".")[2] in _CHOICE_TYPES:
        return f"value {_shorten(expression_text(node), _MAX_TEXT)}"
    if isinstance(node, ast.List | ast.Tuple) and all(isinstance(item, ast.Constant) for item in node.elts):
        text = expression_text(node)
        return f"value {text}" if text != TOO_LONG and len(text) <= _MAX_TEXT else "value"
    if isinstance(node, ast.Name | ast.Attribute):
        return f"value = {expression_text(node)}"[:_MAX_DEFAULT]
    return "value"


def _list_entry(node: ast.expr) -> str:
    """Return the entry of `__all__`: all its names."""
    if not isinstance(node, ast.List | ast.Tuple):
        return _value_entry(node)
    return " ".join(["value", *(str(item.value) for item in node.elts if isinstance(item, ast.Constant))])


def _instance_attributes(node: ast.ClassDef) -> dict[str, dict[str, None]]:  # noqa: C901 - a case a kind of statement
    """Return the attributes that methods set on `self`, with their possible classes in source order."""
    attributes: dict[str, dict[str, None]] = {}
    for method in node.body:
        if not isinstance(method, _Function):
            continue
        annotations = {
            item.arg: _annotation_names(item.annotation)
            for item in (*method.args.args, *method.args.kwonlyargs)
            if item.annotation
        }
        for statement in statements_in(method.body):
            for target in _targets(statement):
                if isinstance(target, ast.Attribute) and _is_self(target.value):
                    hints = attributes.setdefault(target.attr, {})
                    if len(hints) >= _MOST_CLASSES_OF_ATTRIBUTE:
                        continue
                    value = getattr(statement, "value", None)
                    if isinstance(value, ast.Call):
                        hints.update(dict.fromkeys(_created_types(value)))
                    if isinstance(value, ast.Name):
                        hints.update(annotations.get(value.id, {}))
                    if isinstance(statement, ast.AnnAssign):
                        hints.update(_annotation_names(statement.annotation))
            if isinstance(statement, ast.Expr) and _sets_any_attribute(statement.value):
                attributes["__getattr__"] = {}
    return attributes


def _sets_any_attribute(node: ast.expr) -> bool:
    """Return whether a node is `setattr(self, name, value)` or `self.__dict__.update(…)`."""
    if not isinstance(node, ast.Call):
        return False
    by_name = getattr(node.func, "id", "") == "setattr" and bool(node.args) and _is_self(node.args[0])
    return by_name or dotted_name(node.func) == "self.__dict__.update"


def _created_types(value: ast.Call) -> Iterator[str]:
    """Yield `Engine()` for Engine(…), `Engine` for Engine.from_args(…), `self.make` for self.make().from_args(…)."""
    root: ast.expr = value
    while isinstance(root, ast.Call) or (isinstance(root, ast.Attribute) and not _is_self(root.value)):
        root = root.func if isinstance(root, ast.Call) else root.value
    if isinstance(root, ast.Name) and root.id.lstrip("_")[:1].isupper():
        # A class method may return another class: vLLM 0.8 to 0.10 choose between two engines there.
        yield f"{root.id}()" if root is value.func else root.id
    elif isinstance(root, ast.Attribute) and _is_self(root.value):
        yield f"self.{root.attr}"


def _annotation_names(node: ast.expr) -> dict[str, None]:
    """Return the class names of an annotation: `Optional["Executor"]` gives Executor."""
    parts = (
        part.id if isinstance(part, ast.Name) else getattr(part, "value", None) for part in ast.walk(node)
    )
    names = (name for name in parts if isinstance(name, str) and name.isidentifier() and name[:1].isupper())
    classes = (name for name in names if name not in {"Optional", "Union", "Any", "Callable"})
    return dict.fromkeys(islice(classes, _MOST_CLASSES_OF_ATTRIBUTE))


def _declarations(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """Yield environment variables, argparse options and routes anywhere in a file."""
    loops = {
        node.target.id: [str(item.value) for item in node.iter.elts if isinstance(item, ast.Constant)]
        for node in ast.walk(tree)
        if isinstance(node, ast.For)
        and isinstance(node.target, ast.Name)
        and isinstance(node.iter, ast.Tuple | ast.List)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=value, slice=ast.Constant(value=str(name))) if _is_environ(value):
                yield f"env:{name}", "env"
            case ast.Compare(left=ast.Constant(value=str(name)), comparators=[value]) if _is_environ(value):
                yield f"env:{name}", "env"
            case ast.Call(func=ast.Attribute(attr="add_argument" | "add_arg")):
                yield from _argparse_options(node, loops)
            case ast.Call(
                func=ast.Attribute(value=value, attr=attr), args=[ast.Constant(value=str(name)), *_]
            ):
                if (attr == "get" and _is_environ(value)) or attr == "getenv":
                    yield f"env:{name}", "env"
                elif attr in _ROUTE_METHODS and name.startswith("/"):
                    yield f"route:{name}", "route"
            case ast.Call(func=ast.Name(id="getenv"), args=[ast.Constant(value=str(name)), *_]):
                yield f"env:{name}", "env"
            case ast.Dict() if module.endswith(".envs"):
                yield from ((f"env:{text}", "env") for text in constant_texts(node.keys) if text.isupper())


def _argparse_options(node: ast.Call, loops: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield (option, entry) of an `add_argument` call: action or type, choices and default."""
    keywords = {item.arg: item.value for item in node.keywords}
    kind = keywords.get("type")
    action = expression_text(keywords["action"]).strip("'\"") if "action" in keywords else ""
    parsed = expression_text(kind)[:40] if kind else "str"
    text = f"option {'flag' if action.startswith('store_') else action or parsed}"
    for key, mark in (("choices", " choices "), ("default", " = ")):
        if key in keywords:
            text += mark + _shorten(expression_text(keywords[key]), _MAX_TEXT)
    for argument in node.args:
        for name in _possible_texts(argument, loops):
            if name.startswith("--"):
                yield name, text


def _possible_texts(node: ast.expr, loops: dict[str, list[str]]) -> list[str]:
    """Return the possible values of a string or f-string, by the constants that loops iterate over; else nothing."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if not isinstance(node, ast.JoinedStr):
        return []
    texts = [""]
    for part in node.values:
        name = dotted_name(part.value) if isinstance(part, ast.FormattedValue) else ""
        ends = [str(part.value)] if isinstance(part, ast.Constant) else loops.get(name, [])
        combined = (text + end for text in texts for end in ends[:_MOST_LOOP_VALUES])
        texts = [text for text in islice(combined, _MOST_LOOP_VALUES) if len(text) <= _MAX_TEXT]
    return texts


def _is_environ(node: ast.expr) -> bool:
    return getattr(node, "attr", getattr(node, "id", "")) in {"environ", "envs"}


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the targets of a statement, those in a tuple one by one."""
    match node:
        case ast.Assign(targets=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
            yield from (target for part in parts for target in _targets(part))
        case ast.AnnAssign(target=part) | ast.AugAssign(target=part) | ast.For(target=part):
            yield from _targets(part)
        case ast.expr():
            yield node


def _target_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.With):
        return [item.optional_vars.id for item in node.items if isinstance(item.optional_vars, ast.Name)]
    return [target.id for target in _targets(node) if isinstance(target, ast.Name)]


def _is_function(node: ast.AST, name: str) -> bool:
    return isinstance(node, _Function) and node.name == name


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else f"{truncate(text, length)}…"
