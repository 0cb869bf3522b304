"""Patterns that are tried only where they can hold: a look for what each of them needs costs next to nothing.

Python's engine begins anew at every letter of a text, for each pattern. A search for a word, or for a pattern that
begins with a letter, is some twenty times as fast, and most texts hold nothing of what most patterns need.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from diagnostics.collect import late

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@lru_cache(maxsize=4)
def folded(text: str) -> str:
    """In small letters, each where it stood: what `re.IGNORECASE` takes for the same is the same."""
    return text.replace("\u0130", "i").lower().replace("\u0131", "i").replace("\u017f", "s")


@dataclass(frozen=True)
class Run:
    """Where so many of the same kind of letters, or more, begin: the engine would try it anew at each of them."""

    letters: str
    least: int

    def places(self, text: str) -> list[int]:
        """The first letter of each such run.

        >>> Run("ab", 3).places("ab aba abbb?")
        [3, 7]
        """
        marked = _marked(self.letters, text)
        places = []
        at = marked.find(b"-" * self.least)
        while at >= 0:
            places.append(at)
            end = marked.find(b" ", at)
            at = marked.find(b"-" * self.least, end) if end > 0 else -1
        return places


Starts = tuple[re.Pattern[str] | str | Run, ...]


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
    starts: Starts = ()
    """One of them matches where the pattern may begin, and takes no second beginning with it; the place is that of its
    group, if it has one. Fast are words, and patterns that begin with one of few letters: alternatives each with a
    letter, or all with the same set."""
    ends: tuple[re.Pattern[str], ...] = ()
    """The same read backwards: of the text in reverse, from something rare behind the beginning on, to the beginning.
    The place is where the match, or its group, ends."""

    def sub(self, by: str | Callable[[re.Match[str]], str], text: str) -> str:
        """The text with every match replaced.

        >>> Sought(re.compile("token=[0-9]+", re.IGNORECASE), (("token=",),)).sub("x", "TOKEN=12 or 3")
        'x or 3'
        """
        # Signs of a pattern for which letters of either kind are the same are small ones.
        seen = folded(text) if self.pattern.flags & re.IGNORECASE else text
        for one_of in self.signs:
            if not _stands(one_of, seen):
                return text
        if self.needs is not None and not _holds(self.needs, seen):
            return text
        if not (self.starts or self.ends):
            return self.pattern.sub(by, text)
        return self._from_starts(by, text, seen)

    def _places(self, seen: str) -> list[int]:
        """Where one of the beginnings stands, in the order of the text."""
        each = [_of(starts, seen) for starts in self.starts] + [_behind(ends, seen) for ends in self.ends]
        return sorted(itertools.chain(*each))

    def _from_starts(self, by: str | Callable[[re.Match[str]], str], text: str, seen: str) -> str:
        pieces: list[str] = []
        end = copied = 0
        match_at = self.pattern.match
        # In small letters it is known sooner that nothing stands there; what does is matched as it is written.
        holds = _small(self.pattern).match if seen is not text else match_at
        made = _written(by) if isinstance(by, str) else by
        for at in self._places(seen):
            if at >= end and holds(seen, at) and (match := match_at(text, at)):
                end = match.end()
                if (new := made(match)) != match[0]:
                    pieces += text[copied:at], new
                    copied = end
        return "".join([*pieces, text[copied:]]) if pieces else text


@lru_cache(maxsize=64)
def _small(pattern: re.Pattern[str]) -> re.Pattern[str]:
    r"""The same for a text in small letters, where the engine need not ask of each letter which others it may be.

    >>> _small(re.compile(r"(?P<rest>[A-F]+)\S", re.IGNORECASE)).pattern
    '(?P<rest>[a-f]+)\\S'
    """
    small = re.sub(
        r"\\.|\(\?P|[A-Z]",
        lambda found: found[0].lower() if len(found[0]) == 1 else found[0],
        pattern.pattern,
    )
    return late.compile(small, pattern.flags & re.MULTILINE)


@lru_cache(maxsize=64)
def _written(by: str) -> Callable[[re.Match[str]], str]:
    r"""What a template puts in the place of a match; `Match.expand` reads it anew for each.

    >>> _written(r"\1<secret>")(re.match("(a)b", "ab"))
    'a<secret>'
    """
    before, *pieces = re.split(r"\\(\d)", by)
    if not pieces:
        return lambda _: by
    groups = [(int(number), literal) for number, literal in zip(pieces[::2], pieces[1::2], strict=True)]
    return lambda match: before + "".join([(match[number] or "") + literal for number, literal in groups])


def first_letters(*patterns: str) -> tuple[re.Pattern[str], ...]:
    """Patterns for `starts` and `ends`, each with one letter first.

    The engine looks for one some ten times as fast as for one of several.

    >>> [each.pattern for each in first_letters("a(?=b)", "c")]
    ['a(?=b)', 'c']
    """
    return tuple(map(late.compile, patterns))


# Two patterns that have a look in common ask one after the other, and mostly of the same text.
@lru_cache(maxsize=8)
def _stands(one_of: tuple[str, ...], seen: str) -> bool:
    return any(sign in seen for sign in one_of)


@lru_cache(maxsize=2)
def _holds(needs: re.Pattern[str], seen: str) -> bool:
    return needs.search(seen) is not None


@lru_cache(maxsize=32)
def _of(starts: re.Pattern[str] | str | Run, seen: str) -> list[int]:
    if isinstance(starts, Run):
        return starts.places(seen)
    if isinstance(starts, str):
        return _each(starts, seen)
    return [found.start(found.lastindex or 0) for found in starts.finditer(seen)]


def _each(word: str, seen: str) -> list[int]:
    places = []
    at = seen.find(word)
    while at >= 0:
        places.append(at)
        at = seen.find(word, at + len(word))
    return places


@lru_cache(maxsize=4)
def _marked(letters: str, seen: str) -> bytes:
    """A byte for each letter: whether it is one of those, of which `?` is none."""
    marks = bytes(b"- "[chr(number) not in letters] for number in range(256))
    return seen.encode("latin-1", "replace").translate(marks)


def _behind(ends: re.Pattern[str], seen: str) -> list[int]:
    size = len(seen)
    return [size - found.end(found.lastindex or 0) for found in ends.finditer(_backwards(seen))][::-1]


@lru_cache(maxsize=2)
def _backwards(text: str) -> str:
    return text[::-1]


def settled(changes: Sequence[Callable[[str], str]], text: str) -> str:
    """The text changed until it stays: what is taken out can lay bare the beginning of what stood behind it.

    It stays once each of the changes has seen it as it is, whichever of them made it so; five rounds at most.

    >>> settled([lambda text: text.replace("aa", "a"), lambda text: text.replace("b", "")], "abababa")
    'a'
    """
    quiet = 0
    for change in itertools.chain.from_iterable(itertools.repeat(changes, 5)):
        changed = change(text)
        quiet = quiet + 1 if changed == text else 0
        text = changed
        if quiet == len(changes):
            break
    return text
