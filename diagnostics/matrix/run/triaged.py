"""Looks for the catalogue's signatures in what a failed layer showed, so that its code stands in the table.

Looked for when it is shown and not when it is asked: an answer rests on nothing in the catalogue.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from diagnostics.matrix.plan.verdicts import Answer, EvidenceLevel, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.catalog.model import Issue

FAILED = frozenset({Outcome.FAIL, Outcome.UNRESOLVABLE, Outcome.TIMEOUT})
# How `contract` writes what is missing.
_NAME = re.compile(r"[\w.]+: no (?P<name>\w+) in (?P<module>vllm[\w.]*) \(")
_MODULE = re.compile(r"[\w.]+: no module (?P<module>vllm[\w.]*) \(")


def codes(answer: Answer) -> tuple[str, ...]:
    """Returns the codes of the known issues whose signature an answer bears today; none of a pass."""
    if answer.outcome not in FAILED:
        return ()
    raised = _raised(answer.signs) if answer.evidence is EvidenceLevel.STATIC else ()
    return _matching("\n".join((answer.summary, *answer.signs, *answer.details, answer.excerpt, *raised)))


def _raised(signs: Iterable[str]) -> list[str]:
    """Returns what Python says where a missing name is imported: what was read is known by what it leads to.

    >>> _raised(["vllm.a.B: no B in vllm.a (trl/x.py:1, at import)", "vllm.c.D: no module vllm.c (x.py:2, at import)"])
    ["ImportError: cannot import name 'B' from 'vllm.a'", "ModuleNotFoundError: No module named 'vllm.c'"]
    """
    found = []
    for sign in signs:
        name, module = _NAME.match(sign), _MODULE.match(sign)
        if name:
            found.append(f"ImportError: cannot import name '{name['name']}' from '{name['module']}'")
        elif module:
            found.append(f"ModuleNotFoundError: No module named '{module['module']}'")
    return found


def by_setting(code: str) -> bool:
    """Tells whether a known issue is one that a setting decides, and not the release."""
    return code in known() and known()[code].status != "active"


@cache
def _matching(text: str) -> tuple[str, ...]:
    from diagnostics.catalog.signatures import matches

    return tuple(
        code
        for code, issue in known().items()
        if issue.signature is not None and matches(issue.signature, text)
    )


@cache
def known() -> dict[str, Issue]:
    """Returns the catalogue, read once."""
    from diagnostics import catalog

    return catalog.load()
