"""Patterns that are tried only where they can hold: a look for what each of them needs costs next to nothing.

Python's engine begins anew at every letter of a text, for each pattern. A search for a word, or for a pattern that
begins with a letter, is some twenty times as fast, and most texts hold nothing of what most patterns need.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@lru_cache(maxsize=4)
def folded(text: str) -> str:
    """In small letters, each where it stood: what `re.IGNORECASE` takes for the same is the same."""
    return text.replace("\u0130", "i").lower().replace("\u0131", "i").replace("\u017f", "s")


@dataclass(frozen=True)
class Sought:
    """A pattern, and what has to stand in a text for it.

    `sub` does what the pattern's own does: signs, needs and starts say where it need not be tried.
    """

    pattern: re.Pattern[str]
    signs: tuple[tuple[str, ...], ...] = ()
    """Of each of these, one stands in every text in which the pattern matches."""
    needs: re.Pattern[str] | None = None
    """Matches in each such text."""
    starts: re.Pattern[str] | None = None
    """Matches where the pattern may, and takes no second beginning with it."""

    def sub(self, by: str | Callable[[re.Match[str]], str], text: str) -> str:
        """The text with every match replaced.

        >>> Sought(re.compile("token=[0-9]+", re.IGNORECASE), (("token=",),)).sub("x", "TOKEN=12 or 3")
        'x or 3'
        """
        # Signs of a pattern for which letters of either kind are the same are small ones.
        seen = folded(text) if self.pattern.flags & re.IGNORECASE else text
        for one_of in self.signs:
            if not any(sign in seen for sign in one_of):
                return text
        if self.needs is not None and not self.needs.search(seen):
            return text
        if self.starts is None:
            return self.pattern.sub(by, text)
        return self._from_starts(by, text, self.starts.finditer(seen))

    def _from_starts(
        self, by: str | Callable[[re.Match[str]], str], text: str, starts: Iterator[re.Match[str]]
    ) -> str:
        pieces: list[str] = []
        end = 0
        for start in starts:
            at = start.start()
            if at >= end and (match := self.pattern.match(text, at)):
                pieces += text[end:at], match.expand(by) if isinstance(by, str) else by(match)
                end = match.end()
        return "".join([*pieces, text[end:]])
