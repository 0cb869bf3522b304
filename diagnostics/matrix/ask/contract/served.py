"""What an engine's server serves: its HTTP routes, and the options of the command that starts it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.matrix.ask.contract.surface import Surface

_METHODS = frozenset({"get", "post", "put", "delete", "head", "route", "api_route", "add_api_route"})
# Where routes usually stand, so that the other hundred files are read for what is in none of these only.
_LIKELY = ("router", "api_server", "health")
# The files whose fields and literals are the options of `vllm serve`.
_OPTIONS = ("/arg_utils.py", "/cli_args.py")


def routes(tree: ast.Module) -> Iterator[str]:
    """Yields the paths that one file registers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and str(first.value).startswith("/"):
                yield str(first.value)


def has_route(engine: Surface, route: str) -> bool:
    """Tells whether the engine's server has a route, whatever registers it."""
    inside = [
        name for name in sorted(engine.sources.names()) if name.startswith(f"{engine.package}/entrypoints/")
    ]
    likely = [name for name in inside if any(word in name for word in _LIKELY)]
    for name in (*likely, *(name for name in inside if name not in likely)):
        tree = engine.tree(_module(name))
        if tree is not None and route in routes(tree):
            return True
    return False


def has_option(engine: Surface, option: str) -> bool:
    """Tells whether the command that starts the engine's server takes an option."""
    plain = option.removeprefix("--no-").removeprefix("--")
    named = {plain, plain.replace("-", "_"), f"--{plain}"}
    for name in sorted(engine.sources.names()):
        tree = engine.tree(_module(name)) if name.endswith(_OPTIONS) else None
        for node in ast.walk(tree) if tree is not None else ():
            field = (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.target.id in named
            )
            if field or (isinstance(node, ast.Constant) and node.value in named):
                return True
    return False


def _module(member: str) -> str:
    return member.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
