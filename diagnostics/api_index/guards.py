"""Extract the guards of a source file: `raise` and `assert` with the message and the conditions that lead to it.

`lint` evaluates the conditions with a run's options. Nothing is executed. In a condition, local variables and constants
of the module are replaced by their values where these are known, and attributes by the values that are set before.
`changed(self.x)` stands for an attribute that was set to an unknown value. The guards of a nested function count where
a statement calls it. A `raise` without an exception, of a variable, or of an attribute (`raise errors.X`) is no guard.

Two more kinds of entry have the same form: CALL, a call of a method of `self`, `super()` or a class, or a pydantic
validator; and SET, an attribute of `self` that is set. An entry inside a loop, a `match` or a `try` with handlers, or
under another condition that cannot be expressed, is left out; SET keeps it, with `...` for the condition.
`api_index.build` adds the entries REGISTERED.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from diagnostics.api_index.source import TOO_LONG, dotted_name, expression_text, parse_source, statements_in

# The mark of an attribute that the function sets before the guard, to a value that is not known.
CHANGED = "changed"
# Entries for what lint needs besides: a call of another method, an attribute that is set, and a name in a registry.
CALL, SET, REGISTERED = "call", "set", "registered"
_UNKNOWN = "..."
_MOST_CONDITIONS, _LONGEST_CONDITION, _LONGEST_MESSAGE = 16, 900, 400
_DEEPEST, _MOST_PARTS, _MOST_VALUE_PARTS = 3, 40, 60
_PURE = (
    ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.BoolOp, ast.Compare, ast.UnaryOp, ast.IfExp, ast.List,
    ast.Tuple, ast.Set, ast.Dict, ast.Subscript, ast.operator, ast.boolop, ast.cmpop, ast.unaryop, ast.expr_context,
)  # fmt: skip
_CONVERSIONS = {"int", "float", "str", "bool"}
_PURE_CALLS = {
    *_CONVERSIONS, "get", "keys", "len", "max", "min", "lower", "getattr", "set", "tuple", "list", "get_world_size",
}  # fmt: skip
_VALIDATORS = {"model_validator", "field_validator", "validator", "root_validator"}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_Leaves = ast.Return | ast.Continue | ast.Break
_FORMAT = re.compile(r"%[-#0 +]*[\d.]*[a-zA-Z]")
_FIELD = re.compile(r"\{[^{}]*\}")


class Guard(Struct, frozen=True, array_like=True):
    """A `raise` or a failing `assert`; or an entry CALL, SET or REGISTERED.

    Attributes:
        function: Name of the function, such as `GRPOConfig.__post_init__`; empty for code that runs at import. For
            REGISTERED, the function that registers, the table or the Enum.
        exception: Name of the exception, CALL, SET or REGISTERED.
        message: The message, with `{}` for inserted values; for CALL and SET the method or attribute, as `self.check`;
            for REGISTERED the name.
        conditions: Expressions that are all true if the code gets there.
    """

    function: str
    exception: str
    message: str
    conditions: tuple[str, ...]

    def to_key(self) -> str:
        """Return the guard as one text, the form in the index file."""
        return "\n".join((self.function, self.exception, self.message, *self.conditions))

    @classmethod
    def from_key(cls, key: str) -> Guard:
        """Return the guard that a text of `to_key` stands for."""
        function, exception, message, *conditions = key.split("\n")
        return cls(function, exception, message, tuple(conditions))


def extract_guards(text: str) -> list[Guard]:
    """Return the guards of a Python file, and its entries CALL and SET, in their order and each one once.

    Raises:
        SyntaxError: The text cannot be parsed.
    """
    tree = parse_source(text)
    constants = {name: value for name, value in _assigned_once(tree.body).items() if not _has_names(value)}
    guards = dict.fromkeys(_Scope("", constants).read(tree.body, ()))
    return [item for item in guards if item.exception == SET or _UNKNOWN not in item.conditions]


class _Scope:
    """Reads the statements of one function, or of a module or class outside of functions."""

    def __init__(self, name: str, values: Mapping[str, ast.expr], *, is_function: bool = False) -> None:
        self._name, self._values, self._is_function = name, values, is_function
        # Attributes that were set, with their value.
        self._attributes: dict[str, ast.expr] = {}
        # The functions inside this function, until they are called.
        self._functions: dict[str, ast.FunctionDef] = {}

    def read(self, body: Sequence[ast.stmt], conditions: tuple[str, ...]) -> Iterator[Guard]:
        """Yield the guards of statements that run if the conditions are true."""
        for node in body:
            following = self._conditions_after(node, conditions)
            yield from self._guards_of(node, conditions)
            conditions = following
            self._record_attributes(node)

    def _guards_of(self, node: ast.stmt, conditions: tuple[str, ...]) -> Iterator[Guard]:  # noqa: C901 - a case a kind
        match node:
            case ast.ClassDef():
                yield from _Scope(self._inner_name(node.name), self._values).read(node.body, ())
            case ast.FunctionDef(name=name) if self._is_function:
                self._functions[name] = node
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from self._guards_of_function(node)
            case ast.Expr(value=ast.Call(func=ast.Name(id=name)) as call) if name in self._functions:
                yield from self._guards_of_call(self._functions[name], call, conditions)
            case ast.Raise(exc=ast.Call() as call):
                yield self._guard(dotted_name(call.func), _message(*call.args), conditions)
            case ast.Raise(exc=ast.Name(id=name)) if name[:1].isupper():
                yield self._guard(name, "", conditions)
            case ast.Assert(test=test, msg=message):
                failing = (*conditions, self._condition(test, negate=True))
                yield self._guard("AssertionError", _message(message), failing)
            case ast.Expr(value=ast.Call(func=ast.Attribute() as method)) if called := _called_method(method):
                yield Guard(self._name, CALL, called, conditions)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                for target, value in _assignments(node):
                    name = dotted_name(target)
                    if re.fullmatch(r"self\.\w+", name) and not (value and _is_conversion(value, name)):
                        yield self._guard(SET, name, conditions)
            case _:
                yield from self._guards_of_branches(node, conditions)

    def _guards_of_branches(self, node: ast.stmt, conditions: tuple[str, ...]) -> Iterator[Guard]:
        """Yield the guards inside a statement; an attribute that its branches set gets a conditional value."""
        before = self._attributes
        test = self._replace(node.test) if isinstance(node, ast.If) else None
        states: list[Mapping[str, ast.expr]] = []
        left: list[bool] = []
        for body, condition in list(self._branches(node)):
            self._attributes = dict(before)
            yield from self.read(body, (*conditions, *condition))
            states.append(self._attributes)
            left.append(bool(body) and isinstance(body[-1], ast.Raise | ast.Return))
        self._attributes = dict(before)
        for name in dict.fromkeys(name for state in states for name in state):
            if any(state.get(name) is not before.get(name) for state in states):
                # A branch that leaves the function has no state afterwards.
                values = [
                    state.get(name, _parse(name))
                    for state, leaves in zip(states, left, strict=True)
                    if not leaves
                ]
                self._attributes[name] = _joined(test, values) or _parse(f"{CHANGED}({name})")

    def _branches(self, node: ast.stmt) -> Iterator[tuple[list[ast.stmt], tuple[str, ...]]]:
        """Yield the lists of statements inside a statement, each with the conditions under which it runs."""
        match node:
            case ast.If():
                yield node.body, (self._condition(node.test),)
                yield node.orelse, (self._condition(node.test, negate=True),)
            case ast.With() | ast.AsyncWith():
                yield node.body, ()
            case ast.For() | ast.AsyncFor() | ast.While():
                yield [*node.body, *node.orelse], (_UNKNOWN,)
            case ast.Match():
                yield [statement for case in node.cases for statement in case.body], (_UNKNOWN,)
            case ast.Try() | ast.TryStar():
                handlers = [statement for handler in node.handlers for statement in handler.body]
                inner = [*node.body, *handlers, *node.orelse, *node.finalbody]
                yield inner, (_UNKNOWN,) if node.handlers else ()

    def _guards_of_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Guard]:
        decorators = (dotted_name(getattr(item, "func", item)) for item in node.decorator_list)
        if any(item.rpartition(".")[2] in _VALIDATORS for item in decorators):
            yield Guard(self._name, CALL, f"self.{node.name}", ())
        yield from self._scope_of(node, self._inner_name(node.name), {}).read(node.body, ())

    def _guards_of_call(
        self, node: ast.FunctionDef, call: ast.Call, conditions: tuple[str, ...]
    ) -> Iterator[Guard]:
        """Yield the guards of a function inside this one, with the arguments of its call."""
        arguments = dict(zip((item.arg for item in node.args.args), call.args, strict=False))
        arguments |= {item.arg: item.value for item in call.keywords if item.arg}
        scope = self._scope_of(node, self._name, arguments)
        scope._attributes = self._attributes  # noqa: SLF001 - the same class
        yield from scope.read(node.body, conditions)
        self._attributes = scope._attributes  # noqa: SLF001

    def _scope_of(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, arguments: Mapping[str, ast.expr]
    ) -> _Scope:
        """Return the scope of a function, with the values of the names that it does not set itself."""
        parameters = {item.arg for item in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        statements = statements_in(node.body, _DEFINITIONS)
        own = {dotted_name(target) for statement in statements for target, _value in _assignments(statement)}
        passed = {key: self._replace(value) for key, value in arguments.items() if _is_plain(value)}
        values = {key: value for key, value in self._values.items() if key not in parameters} | passed
        values = {key: value for key, value in values.items() if key not in own}
        return _Scope(name, values | _assigned_once(node.body, parameters), is_function=True)

    def _inner_name(self, name: str) -> str:
        return f"{self._name}.{name}" if self._name else name

    def _guard(self, exception: str, message: str, conditions: tuple[str, ...]) -> Guard:
        unique = tuple(dict.fromkeys(conditions))
        if len(unique) > _MOST_CONDITIONS:
            unique = (*unique[: _MOST_CONDITIONS - 1], _UNKNOWN)
        return Guard(self._name, exception.rpartition(".")[2] or "Exception", message, unique)

    def _conditions_after(self, node: ast.stmt, conditions: tuple[str, ...]) -> tuple[str, ...]:
        """Return the conditions of what follows a statement, which may have left the function or the loop."""
        inner = statements_in([node], _DEFINITIONS)
        if len(conditions) > _MOST_CONDITIONS or not any(isinstance(part, _Leaves) for part in inner):
            return conditions
        if isinstance(node, ast.If) and isinstance(node.body[-1], _Leaves) and not node.orelse:
            return (*conditions, self._condition(node.test, negate=True))
        return (*conditions, _UNKNOWN)

    def _record_attributes(self, node: ast.stmt) -> None:
        """Record the attributes that a statement itself sets, with a value that a condition can contain, or CHANGED."""
        for target, value in _assignments(node):
            if isinstance(target, ast.Attribute) and (name := dotted_name(target)):
                if value and _is_conversion(value, name):
                    continue
                replaced = self._replace(value) if value and _is_plain(value) else None
                known = replaced if replaced and _is_plain(replaced) else None
                self._attributes[name] = known or _parse(f"{CHANGED}({name})")

    def _condition(self, node: ast.expr, *, negate: bool = False) -> str:
        """Return a condition as text, with variables replaced by their values; `...` if it is too long."""
        replaced = self._replace(node)
        if negate and isinstance(replaced, ast.UnaryOp) and isinstance(replaced.op, ast.Not):
            replaced = replaced.operand
        elif negate:
            replaced = ast.UnaryOp(ast.Not(), replaced)
        text = expression_text(replaced)
        return _UNKNOWN if text == TOO_LONG or len(text) > _LONGEST_CONDITION else " ".join(text.split())

    def _replace(self, node: Any, depth: int = 0) -> Any:
        """Return a copy of an expression with the values of variables and attributes that were set, or their marks."""
        if isinstance(node, list):
            return [self._replace(item, depth) for item in node]
        if not isinstance(node, ast.AST):
            return node
        if isinstance(node, ast.Name) and depth < _DEEPEST and (value := self._values.get(node.id)):
            return self._replace(value, depth + 1)
        if isinstance(node, ast.Attribute) and (known := self._attributes.get(dotted_name(node))):
            return known
        return type(node)(**{name: self._replace(value, depth) for name, value in ast.iter_fields(node)})


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield the targets of an assignment, a loop or a `with`, each with its value if it gets one as a whole."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                yield from ((part, value if part is target else None) for part in parts)
        case ast.AnnAssign(target=target, value=value) if value:
            yield target, value
        case ast.AugAssign(target=target) | ast.For(target=target) | ast.AsyncFor(target=target):
            yield from ((part, None) for part in ast.walk(target) if isinstance(part, ast.expr))
        case ast.With(items=items) | ast.AsyncWith(items=items):
            yield from ((item.optional_vars, None) for item in items if item.optional_vars)


def _assigned_once(body: Iterable[ast.stmt], parameters: Iterable[str] = ()) -> dict[str, ast.expr]:
    """Return the local variables that get one value, a plain expression."""
    values: dict[str, ast.expr | None] = dict.fromkeys(parameters)
    for node in statements_in(body, _DEFINITIONS):
        for target, value in _assignments(node):
            if isinstance(target, ast.Name):
                values[target.id] = value if target.id not in values else None
    return {name: value for name, value in values.items() if value is not None and _is_plain(value)}


def _is_plain(node: ast.expr) -> bool:
    """Return whether an expression is short and has no side effects; an empty list is not, because it is filled."""
    parts = list(itertools.islice(ast.walk(node), _MOST_PARTS))
    return (
        len(parts) < _MOST_PARTS
        and all(
            isinstance(part, _PURE) or (isinstance(part, ast.Call) and _is_pure_call(part)) for part in parts
        )
        and not (isinstance(node, ast.List | ast.Dict) and len(parts) < 3)
    )


def _is_pure_call(node: ast.Call) -> bool:
    """Return whether a call computes a value from its arguments, such as that of an Enum's class."""
    name = dotted_name(node.func).rpartition(".")[2]
    return name in _PURE_CALLS or (len(node.args) == 1 and name[:1].isupper() and not node.keywords)


def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _joined(test: ast.expr | None, values: list[ast.expr]) -> ast.expr | None:
    """Return the value of an attribute after an `if`; None if it is too long, or after another statement."""
    if test is None or not values:
        return None
    joined = ast.IfExp(test, *values) if len(values) > 1 else values[0]
    return joined if sum(1 for _part in ast.walk(joined)) < _MOST_VALUE_PARTS else None


def _is_conversion(node: ast.expr, name: str) -> bool:
    """Return whether an expression is the same value in another type, such as `int(x)`, `Enum(x)` or `x.value`."""
    match node:
        case ast.Attribute(value=inner, attr="value"):
            return dotted_name(inner) == name
        case ast.Call(func=ast.Name(id=function), args=[inner], keywords=[]):
            return dotted_name(inner) == name and (function in _CONVERSIONS or function[:1].isupper())
    return False


def _has_names(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Name | ast.Attribute) for part in ast.walk(node))


def _called_method(method: ast.Attribute) -> str:
    """Return the method of `self`, `super()` or a class that is called, as `self.check`; empty for another one."""
    if isinstance(method.value, ast.Call) and dotted_name(method.value.func) == "super":
        return f"super.{method.attr}"
    owner = dotted_name(method.value)
    return f"{owner}.{method.attr}" if owner == "self" or owner[:1].isupper() else ""


def _message(*arguments: ast.expr | None) -> str:
    """Return the text of an exception's first argument, with `{}` for inserted values; empty if it has none."""
    text = _template(arguments[0]) if arguments and arguments[0] else ""
    return " ".join(text.split())[:_LONGEST_MESSAGE]


def _template(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text.replace("{}", "{ }")
        case ast.JoinedStr(values=parts):
            return "".join(_template(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _template(left) + _template(right)
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return _FORMAT.sub("{}", text)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return _FIELD.sub("{}", text)
    return "{}"
