"""Decides the conditions under which a trainer takes something from the engine: true, false or unknown.

TRL guards its imports by `is_vllm_available()`, by `is_vllm_available(min_version="0.28.0")` and by
comparisons of `Version(vllm.__version__)`. For a cell these are known. What isn't known is `None`, and is of three
kinds: it speaks of the run's own options and data (`self.vllm_mode == "server"`), then some run goes there and what is
missing there is a break; it asks for an option that is off unless somebody sets it, then only that option breaks; or
it asks what is installed, then nothing can be said.
"""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Version, Version], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


# Other hardware than the NVIDIA GPUs that a pair is asked about.
_OTHER_HARDWARE = frozenset({"vllm_ascend", "torch_npu", "torch_xpu", "torch_mlu"})
# What a condition calls that asks what is installed, or what an object happens to have.
_PROBES = frozenset(
    {"hasattr", "getattr", "signature", "find_spec", "import_module", "version", "Version", "parse"}
)


@dataclass
class Conditions:
    """What is known about a cell while its trainer's source is read."""

    engine: Version
    """The engine's version."""
    off: frozenset[str] = frozenset()
    """Options of the trainer that are off unless somebody sets them."""
    names: dict[str, bool | Version | None] = field(default_factory=dict)
    """Values of simple names assigned so far in the module."""

    def value(self, node: ast.expr) -> bool | Version | None:  # noqa: PLR0911 - one line a kind of expression
        """Returns what the expression comes to, None if that can't be told."""
        match node:
            case ast.Constant(value=bool(value)):
                return value
            case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
                return False
            case ast.Name(id="use_vllm") | ast.Attribute(attr="use_vllm"):
                return True  # that is what the pair is asked about
            case ast.Name(id=name):
                return self.names.get(name)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inside = self.truth(operand)
                return None if inside is None else not inside
            case ast.BoolOp(op=op, values=values):
                return self._joined([self.truth(value) for value in values], every=isinstance(op, ast.And))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compared(left, op, right)
            case ast.Call():
                return self._called(node)
        return None

    def truth(self, node: ast.expr) -> bool | None:
        """Returns whether the condition holds, None if that can't be told."""
        value = self.value(node)
        return value if isinstance(value, bool) else None

    def option(self, node: ast.expr, *, taken: bool) -> str:
        """Names the option that has to be set for a branch to be taken, '' if none has to be."""
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name if taken and name in self.off else ""
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.option(operand, taken=not taken)
            case ast.Compare(left=left, ops=[op], comparators=[ast.Constant(value=None)]):
                return self.option(left, taken=True) if taken is isinstance(op, ast.IsNot) else ""
            case ast.BoolOp(op=op, values=values) if taken is isinstance(op, ast.And):
                return next((name for value in values if (name := self.option(value, taken=taken))), "")
        return ""

    def _joined(self, parts: list[bool | None], *, every: bool) -> bool | None:
        if (not every) in parts:
            return not every
        return None if None in parts else every

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> bool | None:
        one, other = self.value(left), self.value(right)
        compare = _COMPARISONS.get(type(op))
        if isinstance(one, Version) and isinstance(other, Version) and compare:
            return compare(one, other)
        return None

    def _called(self, node: ast.Call) -> bool | Version | None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if name == "is_vllm_available":
            asked = _version(arguments[0]) if arguments else None
            return asked is None or Version(self.engine.base_version) >= asked
        if name.removeprefix("is_").removesuffix("_available") in _OTHER_HARDWARE:
            return False
        if name in {"Version", "parse"} and len(arguments) == 1:
            return self.engine if _is_engine_version(arguments[0]) else _version(arguments[0])
        return None


def _is_engine_version(node: ast.expr) -> bool:
    """Recognises `vllm.__version__` and `version("vllm")`."""
    match node:
        case ast.Attribute(value=ast.Name(id="vllm"), attr="__version__"):
            return True
        case ast.Call(
            func=ast.Name(id="version") | ast.Attribute(attr="version"), args=[ast.Constant(value="vllm")]
        ):
            return True
    return False


def _version(node: ast.expr) -> Version | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return Version(node.value)
        except InvalidVersion:
            return None
    return None


def of_the_run(node: ast.expr) -> bool:
    """Tells whether a condition speaks of the run's options and data alone, and not of what is installed."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute):
            name = part.id if isinstance(part, ast.Name) else part.attr
            asks = name in _PROBES or (name.startswith("is_") and name.endswith("_available"))
            if asks or name.isupper():  # a constant of the module holds what was found out at its import
                return False
    return True
