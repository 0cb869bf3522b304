"""Evaluate the conditions around a trainer's use of the engine: true, false or unknown.

TRL guards its imports by `is_vllm_available()`, by `is_vllm_available(min_version="0.28.0")` and by comparisons of
`Version(vllm.__version__)`. For a cell these are known. An unknown condition (`None`) is of one of three kinds:

- It depends on the run's options and data (`self.vllm_mode == "server"`): some run takes that branch.
- It needs an option that is off by default: only runs with that option take the branch.
- It depends on what is installed: nothing can be said.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from packaging.version import InvalidVersion, Version

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Version, Version], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
# Hardware other than NVIDIA GPUs, for which the matrix is made.
_OTHER_HARDWARE = frozenset({"vllm_ascend", "torch_npu", "torch_xpu", "torch_mlu"})
# Calls that depend on installed packages, or on the attributes of an object.
_PROBES = frozenset(
    {"hasattr", "getattr", "signature", "find_spec", "import_module", "version", "Version", "parse"}
)


@dataclass
class Conditions:
    """The known values while a trainer's source is read."""

    engine: Version
    """The engine's version."""
    off: frozenset[str] = frozenset()
    """Options of the trainer that are off by default."""
    names: dict[str, bool | Version | None] = field(default_factory=dict)
    """Values of simple names assigned so far in the module."""

    def value(self, node: ast.expr) -> bool | Version | None:  # noqa: PLR0911 - one line a kind of expression
        """Return the value of an expression, None if it is unknown."""
        match node:
            case ast.Constant(value=bool(value)):
                return value
            case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
                return False
            case ast.Name(id="use_vllm") | ast.Attribute(attr="use_vllm"):
                return True  # the matrix is about runs that use vLLM
            case ast.Name(id=name):
                return self.names.get(name)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self.truth(operand)
                return None if inner is None else not inner
            case ast.BoolOp(op=op, values=values):
                return _combine([self.truth(value) for value in values], every=isinstance(op, ast.And))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                first, second, compare = self.value(left), self.value(right), _COMPARISONS.get(type(op))
                comparable = isinstance(first, Version) and isinstance(second, Version) and compare
                return compare(first, second) if comparable else None  # type: ignore[misc, arg-type]
            case ast.Call():
                return self._call(node)
        return None

    def truth(self, node: ast.expr) -> bool | None:
        """Return whether the condition holds, None if that is unknown."""
        value = self.value(node)
        return value if isinstance(value, bool) else None

    def option(self, node: ast.expr, *, taken: bool) -> str:
        """Return the option that must be set for a branch to be taken, '' if none must be."""
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

    def _call(self, node: ast.Call) -> bool | Version | None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if name == "is_vllm_available":
            minimum = _version(arguments[0]) if arguments else None
            return minimum is None or Version(self.engine.base_version) >= minimum
        if name.removeprefix("is_").removesuffix("_available") in _OTHER_HARDWARE:
            return False
        if name in {"Version", "parse"} and len(arguments) == 1:
            return self.engine if _is_engine_version(arguments[0]) else _version(arguments[0])
        return None


def _combine(values: list[bool | None], *, every: bool) -> bool | None:
    if (not every) in values:
        return not every
    return None if None in values else every


def _is_engine_version(node: ast.expr) -> bool:
    """Recognise `vllm.__version__` and `version("vllm")`."""
    match node:
        case ast.Attribute(value=ast.Name(id="vllm"), attr="__version__"):
            return True
        case ast.Call(
            func=ast.Name(id="version") | ast.Attribute(attr="version"), args=[ast.Constant(value="vllm")]
        ):
            return True
    return False


def _version(node: ast.expr) -> Version | None:
    try:
        return Version(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
    except InvalidVersion:
        return None


def depends_on_run_only(node: ast.expr) -> bool:
    """Return whether a condition depends only on the run's options and data, not on installed packages."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute):
            name = part.id if isinstance(part, ast.Name) else part.attr
            probes = name in _PROBES or (name.startswith("is_") and name.endswith("_available"))
            if probes or name.isupper():  # a constant of the module holds the result of a probe at import
                return False
    return True
