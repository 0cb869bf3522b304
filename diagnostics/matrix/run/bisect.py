"""Finds the first release of vLLM at which a layer's verdict changes, by halving the range of releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True)
class BisectVerdict:
    """What a layer came to at one release, as far as bisecting needs it."""

    word: str
    """The outcome and the codes beside it; two verdicts are the same if this is."""
    summary: str
    answered: bool
    """False where the machine kept it from being answered."""


@dataclass(frozen=True)
class Bisected:
    """How the search ended."""

    asked: tuple[tuple[str, BisectVerdict], ...]
    """(release, verdict) in the order of asking."""
    first: str | None
    """The first release whose verdict differs from the one at the start; None if there is none to name."""
    problem: str
    """Why none can be named; '' if one is."""


class OpenError(RuntimeError):
    """Raised when a release could not be answered for."""


def bisect(releases: Sequence[str], ask: Callable[[str], BisectVerdict]) -> Bisected:
    """Asks both ends, then the middle of what is left, until two neighbours differ.

    Args:
        releases: at least one, in the order of versions.
        ask: gives the verdict of a release.
    """
    asked: dict[str, BisectVerdict] = {}

    def known(release: str) -> BisectVerdict:
        if release not in asked:
            asked[release] = ask(release)
        if not asked[release].answered:
            raise OpenError(f"{release}: {asked[release].word}: {asked[release].summary}")
        return asked[release]

    first, last = 0, len(releases) - 1
    try:
        start, end = known(releases[first]), known(releases[last])
        if start.word == end.word:
            problem = f"the same at both ends ({start.word}): a change between them, and back, is not seen by halving"
            return Bisected(tuple(asked.items()), None, problem)
        while last - first > 1:
            middle = (first + last) // 2
            if known(releases[middle]).word == start.word:
                first = middle
            else:
                last = middle
    except OpenError as error:
        return Bisected(tuple(asked.items()), None, f"not answered: {error}")
    return Bisected(tuple(asked.items()), releases[last], "")


def contradictions(found: Bisected, seen: Mapping[str, str]) -> list[str]:
    """Returns the releases whose known verdict shows that the change is not the only one.

    Args:
        found: a search that named a release.
        seen: the word of every release in the range that the store knows.
    """
    if found.first is None:
        return []
    start = found.asked[0][1].word
    turn = Version(found.first)
    return [
        f"{release}: {word}"
        for release, word in sorted(seen.items(), key=lambda item: Version(item[0]))
        if (word == start) is (Version(release) >= turn)
    ]
