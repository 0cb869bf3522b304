"""Matches signatures against text, in time linear in it (RE2), and checks entries' samples, each other's too."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import re2

from diagnostics.catalog.anchors import required
from diagnostics.catalog.loader import FOLDER, CatalogueError
from diagnostics.tables import TableSource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from diagnostics.catalog.model import Issue, Signature


@functools.cache
def _compiled(pattern: str) -> Any:
    return re2.compile(pattern)


def matches(signature: Signature, text: str) -> bool:
    """Tells whether a signature matches a text: some of `any`, all of `all`, none of `none`, line by line."""
    lines = text.splitlines()
    return (
        any(_found(pattern, lines) for pattern in signature.any)
        and all(_found(pattern, lines) for pattern in signature.all)
        and not any(_found(pattern, lines) for pattern in signature.none)
    )


def _found(pattern: str, lines: list[str]) -> bool:
    compiled = _compiled(pattern)
    return any(compiled.search(line) for line in lines)


def check(issue: Issue, folder: Path = FOLDER) -> None:
    """Checks that an entry's patterns are RE2, can be looked for, and that its samples match or don't, as they say.

    Raises:
        CatalogueError: naming file, line, the pattern or the sample, and what was expected; also where triage could
            not look for a pattern, since no text is in every match of it.
    """
    if issue.signature is None:
        return
    source = _source(issue, folder)
    for key in ("any", "all", "none"):
        for pattern in getattr(issue.signature, key):
            place = _place(issue.signature, key, pattern, source)
            try:
                re2.compile(pattern)
            except re2.error as error:
                raise CatalogueError(
                    f"{place}: signature.{key}: {pattern!r}: RE2 refuses it: {_text(error)}"
                ) from None
            required(place, pattern)
    for place, kind, about, text in _samples(issue, source):
        if matches(issue.signature, text) != (kind == "positive"):
            expected = "be matched" if kind == "positive" else "not be matched"
            raise CatalogueError(
                f"{place}: signature.{kind}: {about!r}: expected the sample to {expected} by {issue.code}"
            )


def claimed_twice(issues: Collection[Issue], folder: Path = FOLDER) -> list[str]:
    """A line for each sample of one entry that another's signature matches too: file and line of both."""
    told = []
    for issue in issues:
        for place, kind, about, text in _samples(issue, _source(issue, folder)):
            lines = text.splitlines()
            for other in issues if kind == "positive" else ():
                if other is issue or other.signature is None or not matches(other.signature, text):
                    continue
                pattern = next(each for each in other.signature.any if _found(each, lines))
                there = _place(other.signature, "any", pattern, _source(other, folder))
                told.append(
                    f"{place}: {issue.code}'s sample {about!r} is matched by {other.code}, too: {there}: {pattern!r}:"
                    " expected one code for one failure"
                )
    return told


def _samples(issue: Issue, source: TableSource) -> Iterator[tuple[str, str, str, str]]:
    """Yields of each sample file and line, its kind, what it is about, and its text."""
    counts = {"positive": 0, "negative": 0}
    for sample in issue.signature.samples if issue.signature else ():
        kind = "positive" if sample.matches else "negative"
        yield source.place(("signature", kind, counts[kind])), kind, sample.about, sample.text
        counts[kind] += 1


def _place(signature: Signature, key: str, pattern: str, source: TableSource) -> str:
    """File and line of a pattern; the broad and late ones are listed apart."""
    apart = "broad" if pattern in signature.broad else "late" if pattern in signature.late else key
    return source.place(("signature", apart if key == "any" else key), pattern)


def _source(issue: Issue, folder: Path) -> TableSource:
    path = folder / f"{issue.code}.toml"
    return TableSource(path, path.read_text(encoding="utf-8"))


def _text(error: Exception) -> str:
    first = error.args[0] if error.args else error
    return first.decode() if isinstance(first, bytes) else str(first)
