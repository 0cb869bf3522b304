"""Match signatures against texts with RE2 (in linear time), find literal texts that matches contain, and check entries.

If a pattern has `literals`, a line without any of them cannot match it. `compile_any`, `compile_set` and `PatternSet`
match many patterns at once. `check` raises an error if an entry's patterns are invalid, or do not match its own samples
as declared; `ambiguous_samples` lists samples that the signature of another entry matches, too.
"""

import functools
import importlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import re2

from diagnostics.catalog import FOLDER, CatalogError
from diagnostics.catalog.model import Issue, Signature
from diagnostics.toml_source import TomlSource

SHORTEST = 6
"""Least number of characters of a text that a log is searched for."""
_MEMORY = 32 << 20
# Python's parser of patterns reads RE2's syntax, as far as entries use it.
_parser: Any = importlib.import_module("re._parser")


def literals(pattern: str) -> tuple[str, ...]:
    r"""Return texts such that each match of the pattern contains one of them; empty if none are known.

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
    texts = _longest_group(_text_groups(tree))
    return texts if texts and min(map(len, texts)) >= SHORTEST else ()


def _text_groups(tree: Any) -> list[tuple[str, ...]]:
    """Return groups of alternative texts in a syntax tree; a match contains at least one text of each group."""
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
            result += [] if argument[1] & re.IGNORECASE else _text_groups(argument[-1])
        elif name == "BRANCH":
            sides = [_longest_group(_text_groups(side)) for side in argument[1]]
            if all(sides):
                result.append(tuple(text for side in sides for text in side))
        elif name in {"MAX_REPEAT", "MIN_REPEAT"} and argument[0] >= 1:
            result += _text_groups(argument[2])
    return [*result, (run,)] if run else result


def _longest_group(groups: list[tuple[str, ...]]) -> tuple[str, ...]:
    return max(groups, key=lambda texts: min(map(len, texts)), default=())


def required_literals(location: str, pattern: str) -> tuple[str, ...]:
    """Return `literals` of a pattern; `location` is for the error message.

    Raises:
        CatalogError: There are none.
    """
    texts = literals(pattern)
    if not texts:
        expected = f"expected a text of {SHORTEST} or more characters in every match"
        raise CatalogError(f"{location}: signature: {pattern!r}: {expected}")
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

    @functools.cached_property
    def _set(self) -> Any:
        return compile_set(self._patterns)


_compiled = functools.cache(re2.compile)


def matches(signature: Signature, text: str) -> bool:
    """Return whether lines of a text match some pattern of `any`, all of `all` and none of `none`."""
    lines, patterns = text.splitlines(), (*signature.any, *signature.all, *signature.none)
    return is_satisfied(signature, {item for item in patterns if any(map(_compiled(item).search, lines))})


def is_satisfied(signature: Signature, found: set[str]) -> bool:
    """Return whether the patterns that lines of a text match include one of `any`, all of `all` and none of `none`."""
    return (
        found.isdisjoint(signature.none)
        and found.issuperset(signature.all)
        and not found.isdisjoint(signature.any)
    )


def check(issue: Issue, folder: Path = FOLDER) -> None:
    """Check that an entry's patterns are valid RE2 with a literal text, and that its samples match as declared.

    Raises:
        CatalogError: A pattern or a sample is wrong; the message has its file and line and what was expected.
    """
    if issue.signature is None:
        return
    source = _source(issue, folder)
    for key in ("any", "all", "none"):
        for pattern in getattr(issue.signature, key):
            place = _pattern_place(issue.signature, key, pattern, source)
            try:
                re2.compile(pattern)
            except re2.error as error:
                problem = f"not RE2: {_message(error)}"
                raise CatalogError(f"{place}: signature.{key}: {pattern!r}: {problem}") from None
            required_literals(place, pattern)
    for place, kind, about, text in _samples(issue, source):
        if matches(issue.signature, text) != (kind == "positive"):
            result = "be matched" if kind == "positive" else "not be matched"
            expected = f"expected the sample to {result} by {issue.code}"
            raise CatalogError(f"{place}: signature.{kind}: {about!r}: {expected}")


def ambiguous_samples(issues: Collection[Issue]) -> list[str]:
    """Return one line for each positive sample and each other entry that matches it, with both locations."""
    owners = [(pattern, issue) for issue in issues if issue.signature for pattern in issue.signature.any]
    any_patterns = compile_set([pattern for pattern, _ in owners])
    problems = []
    for issue in issues:
        for place, kind, about, text in _samples(issue, _source(issue, FOLDER)):
            lines = text.splitlines() if kind == "positive" else []
            indexes = sorted({index for line in lines for index in any_patterns.Match(line) or ()})
            candidates = {owners[index][1].code: owners[index] for index in reversed(indexes)}
            for pattern, second in candidates.values():
                if second is issue or second.signature is None or not matches(second.signature, text):
                    continue
                other_place = _pattern_place(second.signature, "any", pattern, _source(second, FOLDER))
                problems.append(
                    f"{place}: {issue.code}'s sample {about!r} is matched by {second.code} too: {other_place}:"
                    f" {pattern!r}: expected one code for one failure"
                )
    return problems


def _samples(issue: Issue, source: TomlSource) -> Iterator[tuple[str, str, str, str]]:
    """Yield file and line, kind, description and text of each sample."""
    counts = {"positive": 0, "negative": 0}
    for sample in issue.signature.samples if issue.signature else ():
        kind = "positive" if sample.matches else "negative"
        yield source.location(("signature", kind, counts[kind])), kind, sample.about, sample.text
        counts[kind] += 1


def _pattern_place(signature: Signature, key: str, pattern: str, source: TomlSource) -> str:
    listed = "broad" if pattern in signature.broad else "late" if pattern in signature.late else key
    return source.location(("signature", listed if key == "any" else key), pattern)


def _source(issue: Issue, folder: Path) -> TomlSource:
    path = folder / f"{issue.code}.toml"
    return TomlSource(path, path.read_text(encoding="utf-8"))


def _message(error: Exception) -> str:
    first = error.args[0] if error.args else error
    return first.decode() if isinstance(first, bytes) else str(first)
