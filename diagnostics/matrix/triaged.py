"""Looks for the catalogue's signatures in what a failed layer showed, so that its code stands in the table."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from diagnostics.matrix.verdicts import Answer, Outcome

if TYPE_CHECKING:
    from diagnostics.catalogue.model import Issue

FAILED = frozenset({Outcome.FAIL, Outcome.UNRESOLVABLE, Outcome.TIMEOUT})


def triaged(answer: Answer) -> Answer:
    """Returns the answer with the codes of the known issues whose signature it bears; a pass as it is."""
    if answer.outcome not in FAILED:
        return answer
    from diagnostics.catalogue.signatures import matches

    text = "\n".join((answer.summary, *answer.signs, *answer.details, answer.excerpt))
    found = [
        code
        for code, issue in _known().items()
        if issue.signature is not None and matches(issue.signature, text)
    ]
    return replace(answer, triaged=tuple(found))


@cache
def _known() -> dict[str, Issue]:
    from diagnostics import catalogue

    return catalogue.load()
