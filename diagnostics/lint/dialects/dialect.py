"""What a dialect is: how a framework is recognised in commands and files, and how its words become a run plan."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.values import Settings
    from diagnostics.lint.versions import Versions

_FLAG = re.compile(r"--?([A-Za-z][A-Za-z0-9_.-]*)(?:=|$)")


@dataclass
class Recognised:
    """A command of one of the frameworks.

    Attributes:
        framework: As in Settings.
        role: `train` or `serve`.
        start: The index of the first word that is an argument.
        style: `flags` or `overrides`.
        launcher: Index range of the launcher's own options.
        exact: The framework's own parser reads them, not a script of somebody's.
    """

    framework: str
    role: str
    start: int
    style: str = "flags"
    launcher: tuple[int, int] = (0, 0)
    about: str = ""
    exact: bool = False
    extra: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Started:
    """A program, a module or a Python file in a command line: one of the three, the others are empty.

    Attributes:
        verb: The word after a program.
        rest: The words after what is started.
        start: The index of the first of them; after a program that of the word behind the verb.
    """

    program: str = ""
    verb: str = ""
    module: str = ""
    script: str = ""
    rest: tuple[str, ...] = ()
    start: int = 0

    def overrides(self, *names: str) -> bool:
        """Whether some word sets a key that begins with one of these names, as Hydra takes it."""
        return any(word.lstrip("+~").startswith(names) for word in self.rest)

    @property
    def flags(self) -> set[str]:
        """The options among the words."""
        return {match[1].replace("-", "_") for word in self.rest if (match := _FLAG.match(word))}


@dataclass(frozen=True)
class ConfigDialect:
    """How a framework speaks.

    Attributes:
        framework: Its name in `diagnostics.frameworks`, or `own`.
        plan: From its words to the run plan.
        launched: Tells whether a command is its own.
        written: Tells whether a structured file is its own.
        programs: The programs that `launched` knows.
        commands: A pattern for texts in which a command of its own may stand.
        rank: In which order they are asked of a command: 0 is known by its own name, others by what their options are.
        general: How little the keys of its files say; 0 where no other file has them, a launcher's neither.
        underscores: Whether keys of its files may have dashes for underscores.
        includes: Whether a command may name a file with more of its settings.
        interpolates: Whether values may refer to others.
        counts: Tells whether settings are of a run of GRPO.
    """

    framework: str
    plan: Callable[[Settings, Versions], RunPlan]
    launched: Callable[[Started], Recognised | None] = lambda _: None
    written: Callable[[dict[str, Any]], bool] = lambda _: False
    programs: frozenset[str] = frozenset()
    commands: str = ""
    rank: int = 0
    general: int = 0
    underscores: bool = False
    includes: bool = False
    interpolates: bool = False
    counts: Callable[[Settings], bool] = lambda _: True


def keys_of(tree: dict[str, Any]) -> set[str]:
    """The keys at the top of a file, with underscores."""
    return {str(key).replace("-", "_") for key in tree}
