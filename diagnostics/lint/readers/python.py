"""Read a Python script without importing it: the config objects (GRPOConfig) that it creates, and its own options.

`read_configs` returns the arguments of each config object, later assignments to its attributes, the options of model
calls, and variables set in `os.environ`. `declared_options` yields fields of classes and arguments of a parser.

Names are followed through assignments of constants, lists, dicts and simple arithmetic, at the top of a module or
function. The result of a call is unknown. A name that is assigned twice, also by `+=`, in a branch or in another
function, is unknown, and so are the arguments that `**NAME` passes.
"""

import ast
import operator
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from diagnostics import safe_io
from diagnostics.api_index.packages import PACKAGES
from diagnostics.findings import NotChecked
from diagnostics.frameworks import FRAMEWORKS, top_level_package
from diagnostics.lint.dialects import DIALECTS, Dialect, framework_of_source
from diagnostics.lint.readers.structured import (
    MAX_DEPTH,
    InvalidSyntaxError,
    UnreadableError,
    check_run_count,
)
from diagnostics.lint.values import UNKNOWN, Place, Settings, Value
from diagnostics.output.redact import remember_secret, truncate

_CLASSES = {name for dialect in DIALECTS.values() for name in dialect.classes}
_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
# Training scripts are far below these limits. Python needs 2 s to parse 1 MB of short calls.
_MAX_SOURCE = 400_000
MAX_SYNTAX_NODES = 100_000
_LARGEST = 10**12
# Maximum number of items in a list or dict of a setting.
_MAX_ITEMS = 1000


def parse_python(text: str, file: str) -> ast.Module:
    """Parse source without warnings.

    Raises:
        UnreadableError: The text is not Python, too large or nested too deep.
    """
    if len(text) > _MAX_SOURCE:
        raise UnreadableError(f"{file}: larger than {_MAX_SOURCE // 1000} kB: no training script is")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return safe_io.parse_python(text)
    except ValueError as error:
        raise InvalidSyntaxError(f"{file}: not Python: {error}") from None


def read_configs(text: str, file: str) -> list[Settings]:
    """Return the settings of each config object that a Python file creates; none if it trains with no known framework.

    Raises:
        UnreadableError: See `parse_python`; or the file has too many nodes or config objects.
    """
    framework = framework_of_source(text)
    if not framework or not DIALECTS[framework].classes or not any(name in text for name in _CLASSES):
        return []
    try:
        return _ConfigFinder(file, DIALECTS[framework]).find(parse_python(text, file))
    except RecursionError:
        raise UnreadableError(f"{file}: nested too deep") from None


def declared_options(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the options that a script declares (fields of classes, arguments of a parser), with the default or None."""
    for node in islice(nodes, MAX_SYNTAX_NODES):
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield statement.target.id, statement.value
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("--"):
                    yield str(argument.value).lstrip("-").replace("-", "_"), _keyword(node, "default")


class _ConfigFinder:
    """Finds the config objects of a script and their arguments; names are followed through assignments."""

    def __init__(self, file: str, dialect: Dialect) -> None:
        self.file = file
        self.dialect = dialect
        # The config classes by the name that the script uses.
        self.classes = set(dialect.classes)
        # Those of another module, which may have other options.
        self.foreign_classes: set[str] = set()
        self.constants: dict[str, Any] = {}
        self.functions: set[str] = set()
        self.env: dict[str, Value] = {}
        self.parser_defaults: dict[str, Value] = {}
        self.by_name: dict[str, Settings] = {}
        self.configs: list[Settings] = []
        self.model_options: dict[str, Value] = {}
        self.visited_calls: set[int] = set()

    def find(self, tree: ast.Module) -> list[Settings]:
        """Return the settings of all config objects; constants of the module and of functions share one namespace."""
        nodes = list(islice(ast.walk(tree), MAX_SYNTAX_NODES + 1))
        if len(nodes) > MAX_SYNTAX_NODES:
            raise UnreadableError(f"{self.file}: more than {MAX_SYNTAX_NODES} nodes: no script has so many")
        self._collect_aliases(nodes)
        stores = Counter(it.id for it in nodes if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store))
        self.constants = dict.fromkeys((name for name, count in stores.items() if count > 1), UNKNOWN)
        self.functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        # A method such as `append` changes a list.
        changed = (
            node.value.func.value
            for node in nodes
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Attribute)
        )
        self.constants |= {it.id: UNKNOWN for it in changed if isinstance(it, ast.Name)}
        self._collect_constants(tree.body)
        self._collect_parser_defaults(nodes)
        for node in nodes:
            self._visit(node)
        for node in nodes:
            if isinstance(node, ast.Call) and _keyword(node, "reward_funcs"):
                self._add_reward_functions(node)
        for config in self.configs:
            check_run_count(self.configs, self.file, self.env)
            config.env = self.env
            config.options = {**self.model_options, **config.options}
            config.script_options = config.script_options.union(self.model_options)
        return self.configs

    def _collect_aliases(self, nodes: list[ast.AST]) -> None:
        """Collect the names under which the script imports config classes."""
        for node in nodes:
            for name in node.names if isinstance(node, ast.ImportFrom) else ():
                if isinstance(node, ast.ImportFrom) and name.name in self.dialect.classes:
                    self.classes.add(name.asname or name.name)
                    names = filter(None, (self.dialect.framework, self.dialect.extends))
                    owners = {top_level_package(item) for each in names for item in FRAMEWORKS[each].modules}
                    if (node.module or "").split(".")[0] not in owners or node.level > 0:
                        self.foreign_classes.add(name.asname or name.name)

    def _collect_constants(self, body: list[ast.stmt]) -> None:
        """Collect the values of names that these statements assign; names assigned more than once are UNKNOWN."""
        for statement in body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
                    if isinstance(target, ast.Name):
                        self.constants.setdefault(target.id, self._evaluate(statement.value))
                        remember_secret(target.id, self._evaluate(statement.value))

    def _collect_parser_defaults(self, nodes: list[ast.AST]) -> None:
        """Collect the defaults of the script's own options; a run may set other values."""
        for name, expression in declared_options(nodes):
            default = _keyword(expression, "default") if isinstance(expression, ast.Call) else expression
            if default is not None:
                data = UNKNOWN if name in self.parser_defaults else self._evaluate(default)
                place = self._location_of(default)
                self.parser_defaults[name] = Value(data, place, name, soft=True, outside=True)

    def _visit(self, node: ast.AST) -> None:
        """Process a node of the syntax tree: assignments, and calls that create a config object."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._collect_constants(node.body)
        elif isinstance(node, ast.Assign):
            self._assign(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
            self._visit_call(node.value, getattr(node.target, "id", ""))
        elif isinstance(node, ast.Call):
            self._visit_call(node)

    def _assign(self, node: ast.Assign) -> None:
        """Process an assignment: of a config object, to its attribute, or to `os.environ[NAME]`."""
        target = node.targets[0]
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Call):
            self._visit_call(node.value, target.id)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            config = self.by_name.get(target.value.id)
            if config is not None:
                config.set(target.attr, Value(self._evaluate(node.value), self._location_of(node)))
        elif isinstance(target, ast.Subscript) and _dotted_name(target.value) == "os.environ":
            key = self._evaluate(target.slice)
            if isinstance(key, str):
                self.env[key] = Value(self._evaluate(node.value), self._location_of(node), key)

    def _visit_call(self, node: ast.Call, name: str = "") -> None:
        """Add the config object that a call creates; collect the arguments of a model call."""
        name_called = _dotted_name(node.func)
        called = name_called.rpartition(".")[2]
        if name_called in self.dialect.model_calls:
            for keyword in node.keywords:
                if keyword.arg is not None:
                    value = Value(self._evaluate(keyword.value), self._location_of(keyword), keyword.arg)
                    self.model_options.setdefault(keyword.arg, value)
        if called not in self.classes or id(node) in self.visited_calls:
            return
        self.visited_calls.add(id(node))
        check_run_count(self.configs, self.file)
        config = Settings(self.dialect.framework, self._location_of(node), target=called)
        config.framework_parser = called not in self.foreign_classes
        package = PACKAGES.get(self.dialect.framework)
        config.command = called if package and called in package.commands else ""
        for keyword in node.keywords:
            self._add_keyword(keyword, config)
        config.has_unread_options = config.has_unread_options or bool(node.args)
        self.configs.append(config)
        if name:
            self.by_name[name] = config

    def _add_reward_functions(self, call: ast.Call) -> None:
        """Add the reward functions, rollout function and adapter that a trainer gets, as text, to its config object."""
        config, functions = _keyword(call, "args"), _keyword(call, "reward_funcs")
        settings = self.by_name.get(_dotted_name(config)) if config else None
        if isinstance(config, ast.Call):
            settings = next((it for it in self.configs if it.place == self._location_of(config)), None)
        is_trainer = _dotted_name(call.func).rpartition(".")[2].replace("Trainer", "Config") in self.classes
        data = [""] if getattr(functions, "id", "") in self.functions else self._evaluate(functions)
        if is_trainer and settings is not None and isinstance(data, list):
            names = [_dotted_name(item) for item in getattr(functions, "elts", ())] or ["..."] * len(data)
            settings.set("reward_funcs", Value(names, self._location_of(call)))
            settings.script_options |= {"reward_funcs", "rollout_func", "peft_config"}
            for name in ("rollout_func", "peft_config"):
                argument = _keyword(call, name)
                if argument and getattr(argument, "value", argument) is not None:
                    text = _dotted_name(getattr(argument, "func", argument)) or "..."
                    settings.set(name, Value(text, self._location_of(call)))

    def _add_keyword(self, keyword: ast.keyword, config: Settings) -> None:
        """Add one argument of a config object, or the items of a literal `**{...}`; note a `**NAME` as unknown."""
        place = self._location_of(keyword)
        data = self._evaluate(keyword.value)
        if keyword.arg is not None:
            config.set(keyword.arg, self._default_of_option(keyword, config) or Value(data, place))
            return
        if isinstance(keyword.value, ast.Dict) and isinstance(data, dict):
            for key, value in data.items():
                config.set(key, Value(value, place))
            return
        config.has_unread_options = True
        node = keyword.value
        called = getattr(node, "func", None)
        name = f"{_dotted_name(called)}(...)" if called else _dotted_name(node) or "..."
        what = f"**{truncate(name, 40)}"
        config.not_checked.append(NotChecked(what, "its content is decided at run time", "", str(place)))

    def _default_of_option(self, keyword: ast.keyword, config: Settings) -> Value | None:
        """Return the default of the script's own option whose value a keyword gets, as `y` in `x=args.y`; else None."""
        node = keyword.value
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name) or keyword.arg is None:
            return None
        config.forwarded[keyword.arg] = Value(_dotted_name(node), self._location_of(keyword), keyword.arg)
        return self.parser_defaults.get(node.attr)

    def _location_of(self, node: Any) -> Place:
        return Place(self.file, node.lineno)

    def _evaluate(self, node: ast.expr | None, depth: int = 0) -> Any:  # noqa: PLR0911 - one line per kind
        """Evaluate constants, names, lists and dicts of limited size, and arithmetic; anything else is UNKNOWN."""
        if depth > MAX_DEPTH:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return _constant(node.value)
        if isinstance(node, ast.Name):
            value = self.constants.get(node.id, UNKNOWN)
            # Lists of names of lists could double with each line.
            return UNKNOWN if depth and isinstance(value, list | dict) else value
        if isinstance(node, ast.List | ast.Tuple) and len(node.elts) <= _MAX_ITEMS:
            if any(isinstance(item, ast.Starred) for item in node.elts):
                return UNKNOWN
            return [self._evaluate(item, depth + 1) for item in node.elts]
        if isinstance(node, ast.Dict) and len(node.keys) <= _MAX_ITEMS:
            keys = [self._evaluate(key, depth + 1) if key else UNKNOWN for key in node.keys]
            values = [self._evaluate(value, depth + 1) for value in node.values]
            are_texts = all(isinstance(key, str) for key in keys)
            return dict(zip(keys, values, strict=True)) if are_texts else UNKNOWN
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._evaluate(node.operand, depth + 1)
            return -value if isinstance(value, int | float) and not isinstance(value, bool) else UNKNOWN
        if isinstance(node, ast.BinOp):
            left, right = self._evaluate(node.left, depth + 1), self._evaluate(node.right, depth + 1)
            return _calculate(node.op, left, right)
        return UNKNOWN


def _dotted_name(node: ast.expr) -> str:
    """Return `a.b` for a name or an attribute of a name, and only the last part for any other attribute."""
    if isinstance(node, ast.Attribute):
        return f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _keyword(node: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a call's keyword argument; None if the call does not have it."""
    return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)


def _calculate(node: ast.operator, left: Any, right: Any) -> Any:
    """Return the result of an operator for two numbers of limited size; else UNKNOWN."""
    function = _OPERATORS.get(type(node))
    numbers = all(isinstance(number, int | float) and abs(number) < _LARGEST for number in (left, right))
    if function is None or not numbers or (function is operator.floordiv and not right):
        return UNKNOWN
    return function(left, right)


def _constant(value: Any) -> Any:
    """Return a constant of a simple type; UNKNOWN for others and for integers of more than 18 digits."""
    is_large = isinstance(value, int) and abs(value) >= 10**18
    return value if isinstance(value, str | int | float | None) and not is_large else UNKNOWN
