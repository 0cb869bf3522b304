"""Python source as its syntax tree: the config objects that it makes. Nothing is imported or executed."""

from __future__ import annotations

import ast
import warnings
from typing import Any

from diagnostics.lint.sources.tree import MAX_DEPTH, MAX_NODES, UnreadableError
from diagnostics.lint.values import UNKNOWN, Place, Settings, Value

_CONFIGS = {"GRPOConfig": "trl", "AsyncGRPOConfig": "trl"}


def read(text: str, file: str) -> list[Settings]:
    """The config objects of a Python file, one Settings each.

    Raises:
        UnreadableError: It is no Python, or nested deeper than code is.
    """
    if not any(name in text for name in _CONFIGS):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        return _Finder(file).find(tree)
    except SyntaxError as error:
        raise UnreadableError(f"{file}:{error.lineno or 1}: not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError(f"{file}: not Python, or nested too deep") from None


class _Finder:
    def __init__(self, file: str) -> None:
        self.file = file
        self.environ: dict[str, Value] = {}
        self.constants: dict[str, Any] = {}
        self.made: dict[str, Settings] = {}
        self.found: list[Settings] = []
        self.nodes = 0
        self.calls: set[int] = set()

    def find(self, tree: ast.Module) -> list[Settings]:
        """Goes over the statements in their order; each function sees the module's constants."""
        self._constants(tree.body)
        self._walk(tree)
        for made in self.found:
            made.environ = {**self.environ, **made.environ}
        return self.found

    def _constants(self, body: list[ast.stmt]) -> None:
        """Names that are assigned once, to something that can be read."""
        for statement in body:
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        known = target.id in self.constants
                        self.constants[target.id] = UNKNOWN if known else self._value(statement.value)

    def _walk(self, root: ast.AST) -> None:
        for node in ast.walk(root):
            self.nodes += 1
            if self.nodes > MAX_NODES * 5:
                raise UnreadableError(f"{self.file}: more than {MAX_NODES * 5} nodes: no script has them")
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._constants(node.body)
            elif isinstance(node, ast.Assign):
                self._assignment(node)
            elif isinstance(node, ast.Call):
                self._call(node, "")

    def _assignment(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Call):
            self._call(node.value, target.id)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            made = self.made.get(target.value.id)
            if made is not None:
                made.set(target.attr, Value(self._value(node.value), self._place(node)))
        elif isinstance(target, ast.Subscript) and ast.unparse(target.value) == "os.environ":
            key = self._value(target.slice)
            if isinstance(key, str):
                self.environ[key] = Value(self._value(node.value), self._place(node), key)

    def _call(self, node: ast.Call, name: str) -> None:
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if called not in _CONFIGS or id(node) in self.calls:
            return
        self.calls.add(id(node))
        made = Settings(_CONFIGS[called], self._place(node), about=called)
        for keyword in node.keywords:
            value = self._value(keyword.value)
            if keyword.arg is not None:
                made.set(keyword.arg, Value(value, self._place(keyword)))
            elif isinstance(value, dict):
                for key, item in value.items():
                    made.set(str(key), Value(item, self._place(keyword)))
            else:
                made.open = True
        made.open = made.open or bool(node.args)
        self.found.append(made)
        if name:
            self.made[name] = made

    def _place(self, node: Any) -> Place:
        return Place(self.file, node.lineno)

    def _value(self, node: ast.expr, depth: int = 0) -> Any:  # noqa: PLR0911 - one line a case
        if depth > MAX_DEPTH:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return _constant(node.value)
        if isinstance(node, ast.Name):
            return self.constants.get(node.id, UNKNOWN)
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(item, depth + 1) for item in node.elts]
        if isinstance(node, ast.Dict):
            return self._dict(node, depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand, depth + 1)
            return -value if isinstance(value, int | float) and not isinstance(value, bool) else UNKNOWN
        if isinstance(node, ast.BinOp):
            return self._sum(node, depth)
        return UNKNOWN

    def _dict(self, node: ast.Dict, depth: int) -> Any:
        keys = [self._value(key, depth + 1) if key else UNKNOWN for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            return UNKNOWN
        return dict(zip(keys, (self._value(value, depth + 1) for value in node.values), strict=True))

    def _sum(self, node: ast.BinOp, depth: int) -> Any:
        left, right = self._value(node.left, depth + 1), self._value(node.right, depth + 1)
        if not all(isinstance(v, int | float) and abs(v) < 10**12 for v in (left, right)):
            return UNKNOWN
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.FloorDiv) and right:
            return left // right
        return UNKNOWN


def _constant(value: Any) -> Any:
    """A literal that a setting can be; a number larger than any setting is not known."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 10**18 else UNKNOWN
    return value if isinstance(value, str | float | bool | None) else UNKNOWN
