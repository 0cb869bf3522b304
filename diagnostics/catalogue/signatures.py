"""Matches signatures against text, in time linear in it (RE2), and checks an entry's own samples."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import re2

from diagnostics.catalogue.anchors import required
from diagnostics.catalogue.loader import CatalogueError

if TYPE_CHECKING:
    from diagnostics.catalogue.model import Issue, Signature


@functools.cache
def _compiled(pattern: str) -> Any:
    return re2.compile(pattern)


def matches(signature: Signature, text: str) -> bool:
    """Tells whether a signature matches a text: some of `any`, all of `all`, none of `none`, line by line."""
    lines = text.splitlines()

    def found(pattern: str) -> bool:
        compiled = _compiled(pattern)
        return any(compiled.search(line) for line in lines)

    return (
        any(found(pattern) for pattern in signature.any)
        and all(found(pattern) for pattern in signature.all)
        and not any(found(pattern) for pattern in signature.none)
    )


def check(issue: Issue) -> None:
    """Checks that an entry's patterns are RE2, can be looked for, and that its samples match or don't, as they say.

    Raises:
        CatalogueError: naming the entry, the pattern or the sample, and what was expected; also where triage could
            not look for a pattern, since no text is in every match of it.
    """
    if issue.signature is None:
        return
    for key in ("any", "all", "none"):
        for pattern in getattr(issue.signature, key):
            try:
                re2.compile(pattern)
            except re2.error as error:
                raise CatalogueError(
                    f"{issue.code}: signature.{key}: {pattern!r}: RE2 refuses it: {_text(error)}"
                ) from None
            required(issue.code, pattern)
    for sample in issue.signature.samples:
        if matches(issue.signature, sample.text) != sample.matches:
            kind, expected = ("positive", "be matched") if sample.matches else ("negative", "not be matched")
            raise CatalogueError(
                f"{issue.code}: signature.{kind}: {sample.about!r}: expected the sample to {expected}"
            )


def _text(error: Exception) -> str:
    first = error.args[0] if error.args else error
    return first.decode() if isinstance(first, bytes) else str(first)
