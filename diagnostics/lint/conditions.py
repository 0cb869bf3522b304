"""Evaluate a condition in the source of a framework with known values; without a value it needs, it is unknown.

`condition_result` evaluates it. `names_in` returns the names in a condition; `unmarked` removes the marks of attributes
that the code sets before it.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from diagnostics.api_index.guards import CHANGED
from diagnostics.api_index.source import constant_texts, dotted_name

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
# A parser converts a whole number to a float.
_TYPES: dict[str, Any] = {item.__name__: item for item in (str, int, bool, list, dict, tuple)}
_TYPES["float"] = (int, float)
_MARK = re.compile(rf"\b{CHANGED}\(([\w.]+)\)")


class UnknownValueError(Exception):
    """The condition needs a value that is not known."""


Lookup = Callable[[str], Any]
"""Return the value of a dotted name such as `self.beta`; raise UnknownValueError."""


def condition_result(condition: str, lookup: Lookup) -> bool | None:
    """Return whether a condition is true; None if that is not known."""
    return _result(_parse(condition), lookup)


@cache
def _parse(condition: str) -> ast.expr:
    try:
        return ast.parse(condition, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Constant(...)


@cache
def names_in(condition: str) -> tuple[str, ...]:
    """Return the dotted names in a condition in their order, such as `self.beta`, also of functions."""

    def names_below(node: ast.AST) -> Iterator[str]:
        name = _attribute_read(node) if isinstance(node, ast.Call) else dotted_name(node)
        if name:
            yield name
        else:
            for child in ast.iter_child_nodes(node):
                yield from names_below(child)

    return tuple(dict.fromkeys(names_below(_parse(condition))))


def unmarked(condition: str) -> str:
    """Return a condition without the marks of changed attributes.

    >>> unmarked("changed(self.beta) > 1")
    'self.beta > 1'
    """
    return _MARK.sub(r"\1", condition)


def _result(node: ast.expr, lookup: Lookup) -> bool | None:
    """Return whether an expression is true; None if a value it needs is unknown. One part may decide `and` and `or`."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            result = _result(inner, lookup)
            return None if result is None else not result
        case ast.BoolOp(op=kind, values=parts):
            deciding, results = isinstance(kind, ast.Or), {_result(part, lookup) for part in parts}
            return deciding if deciding in results else None if None in results else not deciding
    try:
        return bool(_value(node, lookup))
    except UnknownValueError:
        return None


def _value(node: ast.expr, lookup: Lookup) -> Any:  # noqa: C901, PLR0911, PLR0912 - a case a kind of expression
    """Return the value of an expression; raise UnknownValueError."""
    match node:
        case ast.Constant(value=data) if data is not ...:
            return data
        case ast.Name() | ast.Attribute():
            return lookup(dotted_name(node) or "?")
        case ast.BoolOp(op=kind, values=parts):
            values = [_value(part, lookup) for part in parts]
            return next((value for value in values if bool(value) is isinstance(kind, ast.Or)), values[-1])
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return not _value(inner, lookup)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_number(_value(inner, lookup))
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _ARITHMETIC:
            numbers = _number(_value(left, lookup)), _number(_value(right, lookup))
            try:
                return _ARITHMETIC[type(kind)](*numbers)
            except (ZeroDivisionError, OverflowError):
                raise UnknownValueError from None
        case ast.Compare(left=left, ops=kinds, comparators=parts):
            sides = [_value(part, lookup) for part in (left, *parts)]
            return all(_compare(kind, *pair) for kind, *pair in zip(kinds, sides, sides[1:], strict=False))
        case ast.IfExp(test=test, body=body, orelse=other):
            if (result := _result(test, lookup)) is None:
                raise UnknownValueError
            return _value(body if result else other, lookup)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return [_value(part, lookup) for part in parts]
        case ast.Dict(keys=keys):
            return [_value(part, lookup) for part in keys if part]
        case ast.Subscript(value=owner, slice=ast.Constant(value=int(number))):
            items = _value(owner, lookup)
            if not isinstance(items, list | tuple) or number >= len(items):
                raise UnknownValueError
            return items[number]
        case ast.Call():
            name = _attribute_read(node)
            return lookup(name) if name else _call(dotted_name(node.func), node.args, lookup)
    raise UnknownValueError


def _number(data: Any) -> Any:
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise UnknownValueError
    return data


def _compare(kind: ast.cmpop, left: Any, right: Any) -> bool:
    """Compare; raise UnknownValueError for values of two types, because the framework may convert one."""
    if type(kind) in _ORDER:
        return _ORDER[type(kind)](_number(left), _number(right))
    if isinstance(kind, ast.In | ast.NotIn) and isinstance(right, list):
        known = not right or left is None or any(_same_type(left, item) for item in right)
    elif isinstance(kind, ast.In | ast.NotIn):
        known = isinstance(left, str) and isinstance(right, str)
    else:
        by_value = isinstance(kind, ast.Eq | ast.NotEq) or isinstance(left, bool)
        known = left is None or right is None or (by_value and _same_type(left, right))
    if not known:
        raise UnknownValueError
    result = left in right if isinstance(kind, ast.In | ast.NotIn) else left == right
    return result is isinstance(kind, ast.Eq | ast.Is | ast.In)


def _same_type(left: Any, right: Any) -> bool:
    """Return whether two values are of one type; whole and other numbers are, booleans and numbers are not."""
    kinds = {float if type(item) is int else type(item) for item in (left, right)}
    return len(kinds) == 1


def _call(name: str, arguments: list[ast.expr], lookup: Lookup) -> Any:
    """Return the result of a function that conditions of options use; raise UnknownValueError for others."""
    if name == "isinstance" and len(arguments) == 2:
        types = arguments[1].elts if isinstance(arguments[1], ast.Tuple) else [arguments[1]]
        names = [dotted_name(item) for item in types]
        if not _TYPES.keys() >= {*names}:
            raise UnknownValueError
        return isinstance(_value(arguments[0], lookup), tuple(map(_TYPES.__getitem__, names)))
    values = [_value(item, lookup) for item in arguments]
    match name, values:
        case "len", [list() | str() as data]:
            return len(data)
        case "int" | "float", [int() | float() as data]:
            return int(data) if name == "int" else data
        case "max" | "min", [_, _, *_]:
            return (max if name == "max" else min)(map(_number, values))
        case _, [str(text)] if name[:1].isupper():
            return text  # as the member of an Enum
    raise UnknownValueError


def _attribute_read(node: ast.Call) -> str:
    """Return the name of what `x.get("a")`, `getattr(x, "a")` or `get_world_size()` returns; empty for other calls."""
    name, constants = dotted_name(node.func), list(constant_texts(node.args))
    if name.endswith("get_world_size") and not node.args:
        return "self.world_size"
    owner = name.removesuffix(".get") if name.endswith(".get") else ""
    if name == "getattr" and node.args:
        owner = dotted_name(node.args[0])
    return f"{owner}.{constants[0]}" if owner and constants else ""
