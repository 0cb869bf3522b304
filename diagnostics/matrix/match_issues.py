"""Name the known issues whose signature matches a failed answer.

This happens when answers are shown, so that stored answers do not depend on the catalog.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from diagnostics import catalog
from diagnostics.catalog.model import Issue
from diagnostics.catalog.signatures import matches
from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Outcome

_FAILED = frozenset({Outcome.FAIL, Outcome.UNRESOLVABLE, Outcome.TIMEOUT})
# The form of the signs of the layer `contract`.
_MISSING_NAME = re.compile(r"[\w.]+: no (?P<name>\w+) in (?P<module>vllm[\w.]*) \(")
_MISSING_MODULE = re.compile(r"[\w.]+: no module (?P<module>vllm[\w.]*) \(")


def matching_codes(answer: Answer) -> tuple[str, ...]:
    """Return the codes of the known issues whose signature matches an answer; none for a pass."""
    if answer.outcome not in _FAILED:
        return ()
    errors = import_errors(answer.signs) if answer.evidence is EvidenceLevel.STATIC else []
    texts = (answer.summary, *answer.signs, *answer.details, answer.excerpt, *errors)
    return _codes_in("\n".join(texts))


def import_errors(signs: Iterable[str]) -> list[str]:
    """Return Python's message for each missing name, as signatures expect it.

    >>> import_errors(["vllm.a.B: no B in vllm.a (trl/x.py:1, at import)"])
    ["ImportError: cannot import name 'B' from 'vllm.a'"]
    """
    errors = []
    for sign in signs:
        name, module = _MISSING_NAME.match(sign), _MISSING_MODULE.match(sign)
        if name:
            errors.append(f"ImportError: cannot import name '{name['name']}' from '{name['module']}'")
        elif module:
            errors.append(f"ModuleNotFoundError: No module named '{module['module']}'")
    return errors


def depends_on_setting(code: str) -> bool:
    """Return whether a setting decides this known issue, and not the release."""
    issue = _issues().get(code)
    return issue is not None and issue.status != "active"


@cache
def _codes_in(text: str) -> tuple[str, ...]:
    signed = ((code, issue.signature) for code, issue in _issues().items())
    return tuple(code for code, signature in signed if signature is not None and matches(signature, text))


@cache
def _issues() -> dict[str, Issue]:
    return catalog.load()
