"""Match a signature against a text with RE2 (in linear time), and check the patterns and samples of entries.

`check` raises an error if an entry's patterns do not match its own samples as declared; `ambiguous_samples` lists
samples that the signature of another entry matches, too.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from pathlib import Path

import re2

from diagnostics.catalog import FOLDER, CatalogError
from diagnostics.catalog.literal_prefilter import compile_set, required_literals
from diagnostics.catalog.model import Issue, Signature
from diagnostics.toml_source import TomlSource

_compiled = functools.cache(re2.compile)


def matches(signature: Signature, text: str) -> bool:
    """Return whether lines of a text match some pattern of `any`, all of `all` and none of `none`."""
    lines = text.splitlines()

    def occurs(pattern: str) -> bool:
        compiled = _compiled(pattern)
        return any(compiled.search(line) for line in lines)

    return (
        any(map(occurs, signature.any))
        and all(map(occurs, signature.all))
        and not any(map(occurs, signature.none))
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
                raise CatalogError(
                    f"{place}: signature.{key}: {pattern!r}: not RE2: {_message(error)}"
                ) from None
            required_literals(place, pattern)
    for place, kind, about, text in _samples(issue, source):
        if matches(issue.signature, text) != (kind == "positive"):
            expected = "be matched" if kind == "positive" else "not be matched"
            raise CatalogError(
                f"{place}: signature.{kind}: {about!r}: expected the sample to {expected} by {issue.code}"
            )


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
