"""Extract literal texts from the patterns of signatures, so that lines without them are skipped, and combine patterns.

For a pattern, `literals` returns alternative texts, or none if it finds none. A line that contains none of the returned
texts cannot match. `compile_any`, `compile_set` and `PatternSet` match many patterns at once with RE2.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import re2

from diagnostics.catalog import CatalogError

SHORTEST = 6
"""Least number of characters of a text that a log is searched for."""
_MEMORY = 32 << 20
# Python's parser of patterns reads RE2's syntax, as far as entries use it.
_parser: Any = importlib.import_module("re._parser")


def literals(pattern: str) -> tuple[str, ...]:
    r"""Return alternative texts, of which every match of the pattern contains at least one; empty if none are known.

    Texts with fewer than SHORTEST characters do not count.

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
    texts = _best(_options(tree))
    return texts if texts and min(map(len, texts)) >= SHORTEST else ()


def _options(tree: Any) -> list[tuple[str, ...]]:
    """Return the possible results for a syntax tree; every match contains at least one text of each tuple."""
    result: list[tuple[str, ...]] = []
    run = ""
    for operation, argument in tree:
        name = str(operation)
        if name == "LITERAL":
            run += chr(argument)
            continue
        if run:
            result.append((run,))
            run = ""
        if name == "SUBPATTERN":
            # A part that ignores case has no fixed text.
            result += [] if argument[1] & re.IGNORECASE else _options(argument[-1])
        elif name == "BRANCH":
            sides = [_best(_options(side)) for side in argument[1]]
            if all(sides):
                result.append(tuple(text for side in sides for text in side))
        elif name in {"MAX_REPEAT", "MIN_REPEAT"} and argument[0] >= 1:
            result += _options(argument[2])
    return [*result, (run,)] if run else result


def _best(options: list[tuple[str, ...]]) -> tuple[str, ...]:
    return max(options, key=lambda texts: min(map(len, texts)), default=())


def required_literals(code: str, pattern: str) -> tuple[str, ...]:
    """Return `literals` of a pattern; `code` is for the error message.

    Raises:
        CatalogError: There are none.
    """
    texts = literals(pattern)
    if not texts:
        raise CatalogError(
            f"{code}: signature: {pattern!r}: expected a text of {SHORTEST} or more characters in every match"
        )
    return texts


# Characters that JSON and HTML escape.
_ESCAPED = re.compile(r"[\"'<>&\\]|[^\x20-\x7e]")


def longest_plain_part(text: str) -> str:
    """Return the longest part of a text without characters that JSON or HTML escapes, because logs may be escaped.

    If the part is shorter than SHORTEST, return the whole text.

    Example:
        >>> longest_plain_part("No module named 'vllm.")
        'No module named '
    """
    longest = max(_ESCAPED.split(text), key=len)
    return longest if len(longest) >= SHORTEST else text


def compile_any(patterns: list[str]) -> Any:
    """Return one RE2 pattern over bytes that matches if any of the given patterns matches."""
    options = re2.Options()
    options.max_mem = _MEMORY
    # Invalid UTF-8 is searched too.
    options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(b"|".join(pattern.encode() for pattern in patterns), options)


def compile_set(patterns: Sequence[str]) -> Any:
    """Return one RE2 set that finds which of the given patterns match a text."""
    options = re2.Options()
    options.max_mem = _MEMORY
    pattern_set = re2.Set.SearchSet(options)
    for pattern in patterns:
        pattern_set.Add(pattern)
    pattern_set.Compile()
    return pattern_set


# Number of lines from which on it pays to compile one set of all patterns.
_LINES_BEFORE_SET = 300


class PatternSet:
    """Many patterns, matched against one line at a time.

    Compiling all patterns into one RE2 set takes longer than reading most logs. So the first lines are matched one
    pattern at a time, and only against patterns whose literal text they contain.
    """

    def __init__(self, patterns: Sequence[str], by_text: Mapping[str, Sequence[int]]) -> None:
        """Store the patterns; they are compiled when needed.

        Args:
            patterns: RE2 patterns.
            by_text: Literal text -> the indexes of the patterns that can match a line with this text.
        """
        self._patterns = patterns
        self._by_text = by_text
        self._lines = 0

    def match(self, text: str) -> list[int]:
        """Return the indexes of the patterns that match, in their order."""
        self._lines += 1
        if self._lines > _LINES_BEFORE_SET:
            return sorted(self._set.Match(text) or ())
        candidates = {index for part, indexes in self._by_text.items() if part in text for index in indexes}
        return [index for index in sorted(candidates) if re2.search(self._patterns[index], text)]

    @cached_property
    def _set(self) -> Any:
        return compile_set(self._patterns)
