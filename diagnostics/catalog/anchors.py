"""A fast first look: one linear pass of RE2 that finds the few places worth a second one.

Of each pattern the longest text that every match must contain is taken, and all of those are searched for at once. A
line without any of them cannot match; lines with one are looked at with the patterns themselves.
"""

from __future__ import annotations

import importlib
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

import re2

from diagnostics.catalog.loader import CatalogueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHORTEST = 6
_MEMORY = 32 << 20
# How Python reads a pattern; RE2's patterns are read alike where entries use them.
_parser: Any = importlib.import_module("re._parser")


def literals(pattern: str) -> tuple[str, ...]:
    r"""Texts of which every match of a pattern contains one; empty where there are none to be had.

    Example:
        >>> literals(r"actor (?:died|is gone): \d+")
        ('actor ',)
        >>> literals(r"(?i:killed) by signal \d+")
        (' by signal ',)
    """
    try:
        tree = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError):
        return ()
    if tree.state.flags & re.IGNORECASE:
        return ()
    return _best(_options(tree))


def _options(tree: Any) -> list[tuple[str, ...]]:
    """The required texts of a sequence: a run of letters, or the alternatives of a group."""
    found: list[tuple[str, ...]] = []
    run = ""
    for operation, argument in tree:
        name = str(operation)
        if name == "LITERAL":
            run += chr(argument)
            continue
        if run:
            found.append((run,))
            run = ""
        if name == "SUBPATTERN":
            # Of letters of either kind there is no one text.
            found += [] if argument[1] & re.IGNORECASE else _options(argument[-1])
        elif name == "BRANCH":
            sides = [_best(_options(side)) for side in argument[1]]
            if all(sides):
                found.append(tuple(text for side in sides for text in side))
        elif name in {"MAX_REPEAT", "MIN_REPEAT"} and argument[0] >= 1:
            found += _options(argument[2])
    return [*found, (run,)] if run else found


def _best(options: list[tuple[str, ...]]) -> tuple[str, ...]:
    return max(options, key=lambda texts: min(map(len, texts)), default=())


def required(code: str, pattern: str) -> tuple[str, ...]:
    """The texts that a first look searches for.

    Raises:
        CatalogueError: The pattern needs no text of SHORTEST letters, so that a first look could not find it.
    """
    texts = literals(pattern)
    if not texts or min(map(len, texts)) < SHORTEST:
        raise CatalogueError(
            f"{code}: signature: {pattern!r}: expected some text of {SHORTEST} letters or more that every"
            " match contains"
        )
    return texts


# What JSON and HTML write in another way.
_REWRITTEN = re.compile(r"[\"'<>&\\]|[^\x20-\x7e]")


def plainest(text: str) -> str:
    """The longest part of a text that looks alike in JSON and HTML; the text itself where that is too short.

    Example:
        >>> plainest("No module named 'vllm.")
        'No module named '
    """
    longest = max(_REWRITTEN.split(text), key=len)
    return longest if len(longest) >= SHORTEST else text


def union(parts: list[str]) -> Any:
    """One RE2 over bytes that finds any of the parts, which are RE2 patterns themselves."""
    options = re2.Options()
    options.max_mem = _MEMORY
    # Bytes that are no UTF-8 are looked through all the same.
    options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(b"|".join(part.encode() for part in parts), options)


# After so many lines asked with the few patterns that may match, all patterns are made one automaton.
_FEW = 300


class PatternSet:
    """Many patterns, asked of one line at once.

    One automaton of them all takes longer to make than most logs to read. So the first lines are asked with those
    patterns alone of which they have a text.
    """

    def __init__(self, patterns: Sequence[str], by_text: Mapping[str, Sequence[int]]) -> None:
        """Compiles nothing yet.

        Args:
            patterns: RE2 patterns.
            by_text: The indexes of those that may match where a text is; each match of a pattern has one of its texts.
        """
        self._patterns = patterns
        self._by_text = by_text
        self._asked = 0

    def match(self, text: str) -> list[int]:
        """The indexes of the patterns that match, in their order."""
        self._asked += 1
        if self._asked > _FEW:
            return sorted(self._set.Match(text) or ())
        near = {index for has, indexes in self._by_text.items() if has in text for index in indexes}
        return [index for index in sorted(near) if re2.search(self._patterns[index], text)]

    @cached_property
    def _set(self) -> Any:
        options = re2.Options()
        options.max_mem = _MEMORY
        made = re2.Set.SearchSet(options)
        for pattern in self._patterns:
            made.Add(pattern)
        made.Compile()
        return made
