"""Holds what a trainer uses against what an engine release offers."""

from __future__ import annotations

import ast
import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.matrix.ask.contract.uses import Use, collect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.version import Version

    from diagnostics.matrix.ask.contract.surface import Definition, Surface
    from diagnostics.matrix.build.sources import Sources

# The files of TRL that a GRPO run goes through. Other trainers (online DPO, RLOO …) are looked at too, but
# what they miss is a remark: it doesn't stop a GRPO run.
GRPO_FILES = (
    "trl/__init__.py",
    "trl/import_utils.py",
    "trl/trainer/grpo_*.py",
    "trl/trainer/utils.py",
    "trl/trainer/base_trainer.py",
    "trl/models/*.py",
    "trl/generation/*.py",
    "trl/extras/vllm_client.py",
    "trl/extras/profiling.py",
    "trl/scripts/vllm_serve.py",
    "trl/scripts/grpo.py",
    "trl/cli/commands/vllm_serve.py",
)


@dataclass(frozen=True)
class Missing:
    """A use that the engine release doesn't serve."""

    use: Use
    why: str

    @property
    def where(self) -> str:
        """file:line in the trainer's wheel."""
        return f"{self.use.file}:{self.use.line}"

    @property
    def on_the_way(self) -> bool:
        """Whether a GRPO run can meet it."""
        return any(fnmatch.fnmatch(self.use.file, pattern) for pattern in GRPO_FILES)


@dataclass(frozen=True)
class Contract:
    """The result of the comparison."""

    checked: int
    """Different uses looked up."""
    missing: tuple[Missing, ...]
    """Not served and not guarded."""
    guarded: tuple[Missing, ...]
    """Not served, but the trainer has an alternative or a condition around it."""
    unfollowed: tuple[str, ...]
    """Attribute paths that could only be followed in part, and to where."""


def compare(trainer: Sources, engine: Surface, version: Version) -> Contract:
    """Looks up every use of the engine in the trainer's source."""
    uses = [
        use
        for name in sorted(trainer.names())
        if engine.package in (text := trainer.read(name))
        for use in collect(text, name, engine.package, version)
    ]
    unfollowed: list[str] = []
    problems = {
        use: why
        for use in dict.fromkeys(uses)
        if use.kind != "arm" and (why := _problem(use, engine, unfollowed))
    }
    working = _working_choices(uses, problems)
    missing: list[Missing] = []
    guarded: list[Missing] = []
    for use, why in problems.items():
        excused = use.unsure or (use.choice is not None and (use.file, use.choice[0]) in working)
        (guarded if excused else missing).append(Missing(use, why))
    checked = len({use.text for use in uses if use.kind != "arm"})
    return Contract(checked, tuple(missing), tuple(guarded), tuple(dict.fromkeys(unfollowed)))


def _working_choices(uses: Iterable[Use], problems: dict[Use, str]) -> set[tuple[str, int]]:
    """Returns the `try` statements, as (file, number), of which at least one arm works wholly."""
    arms: dict[tuple[str, int], dict[int, bool]] = {}
    for use in uses:
        if use.choice is not None:
            number, arm = use.choice
            state = arms.setdefault((use.file, number), {})
            state[arm] = state.get(arm, True) and use not in problems
    return {key for key, state in arms.items() if any(state.values())}


def _problem(use: Use, engine: Surface, unfollowed: list[str]) -> str:
    """Returns why the engine doesn't serve a use, '' if it does or if that can't be told."""
    found = engine.find(use.module, use.name)
    if found is None:
        if use.kind != "name":
            return ""  # said once already, at its import
        return _why_not_importable(use, engine)
    if use.kind == "argument":
        return _argument_problem(use, found, engine)
    if use.kind == "attribute" and use.path:
        return _attribute_problem(use, found, engine, unfollowed)
    return ""


def _why_not_importable(use: Use, engine: Surface) -> str:
    if not engine.has_module(use.module):
        return f"no module {use.module}"
    return f"no {use.name} in {use.module}"


def _argument_problem(use: Use, found: Definition, engine: Surface) -> str:
    if not isinstance(found.node, ast.ClassDef):
        return ""
    names, others = engine.arguments(found)
    if others and use.name == "LLM":
        # LLM hands what it doesn't know on to EngineArgs, whose fields are the real signature.
        arguments = engine.find(f"{engine.package}.engine.arg_utils", "EngineArgs")
        if arguments is not None:
            more, others = engine.arguments(arguments)
            names |= more
    return "" if others or use.path[0] in names else f"{use.name} takes no argument {use.path[0]!r}"


def _attribute_problem(use: Use, found: Definition, engine: Surface, unfollowed: list[str]) -> str:
    """Follows a path of attributes as far as source tells the types."""
    here, path = found, list(use.path)
    while here.how == "module" and path:
        inside = engine.find(here.module, path[0])
        if inside is None:
            return f"no {path[0]} in {here.module}"
        here, path = inside, path[1:]
    exact = True
    while path:
        if not isinstance(here.node, ast.ClassDef):
            return ""
        members = engine.members(here)
        if path[0] not in members.names and exact:
            return f"{here.node.name} has no {path[0]}" if members.whole else ""
        below = engine.type_of(here, path[0])
        if below is None or path[0] not in members.names:
            if len(path) > 1 or path[0] not in members.names:
                reached = f"{here.node.name}.{path[0]}" if path[0] in members.names else here.node.name
                unfollowed.append(f"{use.text}: followed as far as {reached}")
            return ""
        (here, exact), path = below, path[1:]
    return ""
