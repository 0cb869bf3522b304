"""Evaluate a condition in the source of a framework with known values; a value that is not known makes it unknown."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import cache
from typing import Any

from diagnostics.api_index.guards import CHANGED, COMPLETED
from diagnostics.api_index.source import constant_texts, dotted_name

_MAX_LENGTH = 10_000
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_TYPES: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "list": list,
    "dict": dict,
    "tuple": tuple,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": len,
    "max": max,
    "min": min,
    "set": list,
    "list": list,
    "tuple": list,
}


class UnknownValueError(Exception):
    """The condition needs a value that is not known."""


Lookup = Callable[[str], Any]
"""Return the value of a dotted name such as `self.beta`; raise UnknownValueError."""


def holds(condition: str, lookup: Lookup) -> bool | None:
    """Return whether a condition is true; None if that depends on a value that is not known."""
    try:
        return bool(_value(_parse(condition), lookup))
    except UnknownValueError:
        return None


@cache
def _parse(condition: str) -> ast.expr:
    try:
        return ast.parse(condition, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Constant(...)


def names_in(condition: str) -> list[str]:
    """Return the dotted names in a condition, longest first for each chain, in their order."""
    names: dict[str, None] = {}

    def walk(node: ast.AST) -> None:
        name = _looked_up(node) if isinstance(node, ast.Call) else dotted_name(node)
        if name:
            names[name.rpartition(":")[2]] = None
        else:
            for child in ast.iter_child_nodes(node):
                walk(child)

    walk(_parse(condition))
    return list(names)


def _value(node: ast.expr, lookup: Lookup) -> Any:  # noqa: C901, PLR0911 - a case a kind of expression
    """Return the value of an expression; raise UnknownValueError."""
    match node:
        case ast.Constant(value=data) if data is not ...:
            return data
        case ast.Name() | ast.Attribute():
            return lookup(dotted_name(node) or "?")
        case ast.BoolOp(op=kind, values=parts):
            return _combine(parts, lookup, stops_at=isinstance(kind, ast.Or))
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
            return _value(body if _value(test, lookup) else other, lookup)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return [_value(part, lookup) for part in parts]
        case ast.Dict(keys=keys):
            return [_value(part, lookup) for part in keys if part]
        case ast.Call():
            return _call(node, lookup)
    raise UnknownValueError


def _combine(parts: list[ast.expr], lookup: Lookup, *, stops_at: bool) -> Any:
    """Return the value of `and` or `or`; it is known if one part decides, even if others are unknown."""
    unknown, data = False, None
    for part in parts:
        try:
            data = _value(part, lookup)
        except UnknownValueError:
            unknown = True
            continue
        if bool(data) is stops_at:
            return data
    if unknown:
        raise UnknownValueError
    return data


def _number(data: Any) -> Any:
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise UnknownValueError
    return data


def _compare(kind: ast.cmpop, left: Any, right: Any) -> bool:
    """Return the result of a comparison; unknown for values of two types, because the framework may convert one."""
    if (
        isinstance(kind, ast.Is | ast.IsNot)
        or left is None
        or (right is None and not isinstance(kind, ast.In | ast.NotIn))
    ):
        if type(kind) in _ORDER:
            raise UnknownValueError
        same = left is right or left == right
        return same is isinstance(kind, ast.Is | ast.Eq)
    if isinstance(kind, ast.In | ast.NotIn):
        if not isinstance(right, list | str) or (isinstance(right, str) and not isinstance(left, str)):
            raise UnknownValueError
        if isinstance(right, list) and right and not any(_alike(left, item) for item in right):
            raise UnknownValueError
        return (left in right) is isinstance(kind, ast.In)
    if not _alike(left, right):
        raise UnknownValueError
    if isinstance(kind, ast.Eq | ast.NotEq):
        return (left == right) is isinstance(kind, ast.Eq)
    return _ORDER[type(kind)](left, right)


def _alike(left: Any, right: Any) -> bool:
    """Return whether two values are of one type; whole and other numbers are, booleans and numbers are not."""
    kinds = [float if type(item) is int else type(item) for item in (left, right)]
    return kinds[0] is kinds[1]


def _call(node: ast.Call, lookup: Lookup) -> Any:
    """Return the result of one of the functions and methods that conditions of options use."""
    if name := _looked_up(node):
        return lookup(name)
    name = dotted_name(node.func)
    if name == "isinstance" and len(node.args) == 2:
        kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
        types = [_TYPES.get(dotted_name(kind)) for kind in kinds]
        if None not in types:
            return any(isinstance(_value(node.args[0], lookup), one) for one in types if one)
    if isinstance(node.func, ast.Attribute) and node.func.attr == "lower":
        return str(_value(node.func.value, lookup)).lower()
    data = [_value(item, lookup) for item in node.args]
    if name in {"max", "min"} and len(data) > 1:
        return _FUNCTIONS[name](map(_number, data))
    if (
        name in _FUNCTIONS
        and len(data) == 1
        and isinstance(data[0], list | str)
        and len(data[0]) < _MAX_LENGTH
    ):
        return _FUNCTIONS[name](data[0])
    if name[:1].isupper() and len(data) == 1 and isinstance(data[0], str):
        return data[0]  # a text as the member of an Enum
    raise UnknownValueError


def _looked_up(node: ast.Call) -> str:
    """Return the name of the value that `x.get("a")`, `getattr(x, "a")` or a mark returns; empty for other calls."""
    name, constants = dotted_name(node.func), list(constant_texts(node.args))
    if name in {CHANGED, COMPLETED} and node.args:
        return f"{name}:{dotted_name(node.args[0])}"
    owner = name.removesuffix(".get") if name.endswith(".get") else ""
    if name == "getattr" and node.args:
        owner = dotted_name(node.args[0])
    return f"{owner}.{constants[0]}" if owner and constants else ""
