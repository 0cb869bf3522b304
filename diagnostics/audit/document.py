"""The document `grpo-doctor.audit.v1`, from which all output formats are made; and the headline.

It imports only what a training environment has, because the callback writes this document there.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any

from diagnostics.audit.model import (
    CHECKS,
    CLEAN,
    FAULT,
    MASKED,
    NOT_ASKED,
    NOT_DECIDED,
    Audit,
    Result,
    is_open,
)
from diagnostics.catalog import loader
from diagnostics.catalog.mitigation_ranking import issue_summary
from diagnostics.catalog.model import Issue
from diagnostics.fixes import count_of

SCHEMA = "grpo-doctor.audit.v1"
WORDS = {FAULT: "fault", CLEAN: "passed", NOT_DECIDED: "not decided", MASKED: "hidden", NOT_ASKED: "skipped"}
_MAX_REASONS, _MAX_MESSAGES = 3, 2
_issues = cache(loader.load)


def make_document(audit: Audit) -> dict[str, Any]:
    """Return the audit as JSON."""
    return {
        "schema": SCHEMA,
        "source": audit.source,
        "subject": dict(audit.subject),
        "outcome": audit.outcome,
        "sentence": headline(audit),
        "answers": [_result_json(result) for result in audit.results],
        "not_asked": [result.family for result in audit.select(NOT_ASKED)],
        "tokens": audit.tokens,
        "requests": audit.requests,
        "seconds": round(audit.seconds, 2),
        "pictures": audit.pictures,
    }


def _result_json(result: Result) -> dict[str, Any]:
    fields = asdict(result)
    del fields["message"]
    fields |= {"facts": fields.pop("evidence"), "wanted": fields.pop("needed"), "by": fields.pop("masked_by")}
    is_fault = result.outcome == FAULT
    fields["code"] = code_of(result) if is_fault else ""
    fields["sentence"] = sentence(result)
    issue = issue_of(fields["code"])
    fields["helps"] = {} if issue is None else issue_summary(issue)
    return fields


def code_of(result: Result) -> str:
    """Return a fault's code: its own, or that of the known issue that names its family."""
    by_family = {family: code for code, issue in _issues().items() for family in issue.audit}
    return result.code or by_family.get(result.family, "")


def issue_of(code: str) -> Issue | None:
    """Return the known issue with a code."""
    return _issues().get(code)


def sentence(result: Result) -> str:
    """Return a result in one sentence."""
    if result.outcome == FAULT:
        return result.message
    if result.outcome == MASKED:
        cause = CHECKS[result.masked_by.partition("/")[0]].title
        return f"{result.title}: hidden by another fault ({cause}); fix that first"
    measured = ""
    if result.residual is not None and result.floor is not None:
        count = count_of(result.count, CHECKS[result.topic].unit)
        measured = f": off by {result.residual:.2g}, rounding makes {result.floor:.2g} ({count})"
    return f"{result.title}: {WORDS[result.outcome]}{measured}"


def headline(audit: Audit) -> str:
    """Return the audit in one sentence: faults or undecided checks, and the numbers of passed and skipped checks."""
    faults, counts = audit.select(FAULT), count_line(audit)
    if faults:
        messages = [result.message for result in faults[:_MAX_MESSAGES]]
        more = f"; and {len(faults) - _MAX_MESSAGES} more" if len(faults) > _MAX_MESSAGES else ""
        return f"{len(faults)} fault{'s' * (len(faults) > 1)}: {'; '.join(messages)}{more} ({counts})"
    incomplete = list(dict.fromkeys(result.title for result in audit.results if is_open(result)))
    if audit.outcome == CLEAN:
        return counts
    return f"incomplete, not checked: {', '.join(incomplete) or 'everything'}; {counts}"


def count_line(audit: Audit) -> str:
    """Return "N checks passed, M skipped (why)"."""
    passed, missing = len(audit.select(CLEAN)), audit.select(NOT_ASKED)
    reasons = list(dict.fromkeys(note.text for result in missing for note in result.needed[:1]))
    more = ["…"] if len(reasons) > _MAX_REASONS else []
    explanation = f" (they need: {'; '.join([*reasons[:_MAX_REASONS], *more])})" if reasons else ""
    return f"{passed} check{'s' * (passed != 1)} passed, {len(missing)} skipped{explanation}"
