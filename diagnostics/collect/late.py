"""`re`, whose patterns are compiled when they are first used: most answers need few of the many that a module has.

Under its own name, `from diagnostics.collect import late as re`, since nothing else of what a module writes is different.
Compiling all of them took a third of what a short answer took.
"""

from __future__ import annotations

import re
from re import IGNORECASE, MULTILINE, Match, Pattern, escape, fullmatch, match, split
from typing import Any, cast

__all__ = ["IGNORECASE", "MULTILINE", "Match", "Pattern", "compile", "escape", "fullmatch", "match", "split"]


class _Late:
    """What stands for a pattern; it becomes one when something is asked of it but its flags."""

    def __init__(self, pattern: str, flags: int) -> None:
        self.pattern = pattern
        self.flags = flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self.pattern, self.flags)
        # From now on nothing stands between.
        for each in ("search", "match", "fullmatch", "sub", "finditer", "findall", "split", "subn", "groups"):
            setattr(self, each, getattr(compiled, each))
        return getattr(compiled, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (compile, (self.pattern, self.flags))


def compile(pattern: str, flags: int = 0) -> Pattern[str]:  # noqa: A001 - as in `re`
    """A pattern, compiled when it is first used; a wrong one is found then, so a test compiles all of them.

    >>> compile("[a-c]+").findall("abcd cd")
    ['abc', 'c']
    """
    return cast("Pattern[str]", _Late(pattern, flags))
