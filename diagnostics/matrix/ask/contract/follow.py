"""Looks one use of a trainer up in an engine: served, not served and why, or not to be told."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diagnostics.matrix.ask.contract import served
from diagnostics.matrix.ask.contract.uses import LAUNCHER

if TYPE_CHECKING:
    from diagnostics.matrix.ask.contract.surface import Definition, Surface
    from diagnostics.matrix.ask.contract.uses import Use
    from diagnostics.matrix.build.sources import Sources


def own_routes(trainer: Sources) -> frozenset[str]:
    """Returns the routes of a server that the trainer brings along: its client speaks to that one."""
    found: set[str] = set()
    for name in trainer.names():
        if name.endswith(LAUNCHER):
            found.update(served.routes(ast.parse(trainer.read(name))))
    return frozenset(found)


@dataclass
class Looked:
    """An engine, and what could not be followed in it."""

    engine: Surface
    own: frozenset[str] = frozenset()
    """Routes of the trainer's own server, if it has one."""
    unfollowed: list[tuple[Use, str]] = field(default_factory=list)
    """Uses on which source gives no answer, and how far they were followed."""

    def problem(self, use: Use) -> str:
        """Returns why the engine doesn't serve a use, '' if it does or if that can't be told."""
        if use.kind == "route":
            return self._route(use)
        if use.kind == "launch":
            known = self.own or served.has_option(self.engine, use.name)
            return "" if known else f"`vllm serve` takes no {use.name}"
        found = self.engine.find(use.module, use.name)
        if found is None:
            if use.kind not in {"name", "patched"}:
                return ""  # said once already, at its import
            return self._not_importable(use)
        if use.kind == "argument":
            return self._argument(use, found)
        return self._attribute(use, found) if use.path else ""

    def _route(self, use: Use) -> str:
        if self.own:
            return "" if use.name in self.own else f"TRL's own server has no route {use.name}"
        return "" if served.has_route(self.engine, use.name) else f"vLLM's server has no route {use.name}"

    def _not_importable(self, use: Use) -> str:
        if not self.engine.has_module(use.module):
            return f"no module {use.module}"
        return f"no {use.name} in {use.module}"

    def _argument(self, use: Use, found: Definition) -> str:
        if not isinstance(found.node, ast.ClassDef):
            return ""
        keyword = use.path[-1]
        if len(use.path) == 2:
            taken = self.engine.keywords(found, use.path[0])
            return (
                "" if taken is None or keyword in taken else f"{use.path[0]}() takes no argument {keyword!r}"
            )
        if len(use.path) > 2:
            return ""  # the path is looked up by itself
        names, others = self.engine.arguments(found)
        if others and use.name == "LLM":
            # LLM hands what it doesn't know on to EngineArgs, whose fields are the real signature.
            arguments = self.engine.find(f"{self.engine.package}.engine.arg_utils", "EngineArgs")
            if arguments is not None:
                more, others = self.engine.arguments(arguments)
                names |= more
        if keyword in names:
            return ""
        if others:
            self.unfollowed.append((use, f"{use.name} hands on arguments that it does not name"))
            return ""
        return f"{use.name} takes no argument {keyword!r}"

    def _attribute(self, use: Use, found: Definition) -> str:
        """Follows a path of attributes as far as source tells the types."""
        here, path = found, list(use.path)
        while here.how == "module" and path:
            inside = self.engine.find(here.module, path[0])
            if inside is None:
                return f"no {path[0]} in {here.module}"
            here, path = inside, path[1:]
        exact = True
        while path:
            if not isinstance(here.node, ast.ClassDef):
                return ""
            members = self.engine.members(here)
            there = path[0] in members.names
            if not there and exact and members.whole:
                return f"{here.node.name} has no {path[0]}"
            below = [it for it in self.engine.types_of(here, path[0]) if there] if len(path) > 1 else []
            if not below:
                if len(path) > 1 or not there:
                    reached = f"{here.node.name}.{path[0]}" if there else here.node.name
                    self.unfollowed.append((use, f"followed as far as {reached}"))
                return ""
            # Of several that it may be, one that has what comes next.
            has = [it for it in below if path[1] in self.engine.members(it[0]).names]
            (here, exact), path = (has or below)[0], path[1:]
            exact = exact and len(below) == 1
        return ""
