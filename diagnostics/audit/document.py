"""The document `grpo-doctor.audit.v1`: what every other form of output is made from."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from diagnostics.audit.model import CLEAN, FAULT, NOT_ASKED
from diagnostics.catalog import loader as catalog
from diagnostics.output import clean
from diagnostics.output.audits import terminal, wording
from diagnostics.output.findings import FINDINGS, FINE, INCOMPLETE

if TYPE_CHECKING:
    from diagnostics.audit.model import Audit, ProbeAnswer
    from diagnostics.catalog.model import Issue
    from diagnostics.output.findings import Finding

SCHEMA = "grpo-doctor.audit.v1"
_load = cache(catalog.load)


def document(audit: Audit) -> dict[str, Any]:
    """All that came of it, as JSON; nothing of the caller's person stands in it."""
    found = {
        "schema": SCHEMA,
        "source": audit.source,
        "subject": dict(audit.subject),
        "outcome": audit.outcome,
        "sentence": "",
        "answers": [_answer(each) for each in audit.answers],
        "not_asked": [each.family for each in audit.of(NOT_ASKED)],
        "tokens": audit.tokens,
        "requests": audit.requests,
        "seconds": round(audit.seconds, 2),
        "pictures": audit.pictures,
    }
    found["sentence"] = wording.summary(found)
    cleaned: dict[str, Any] = clean.shareable(clean.own(found))
    return cleaned


def lines(made: dict[str, Any]) -> list[dict[str, Any]]:
    """The same as lines: the audit without its answers, then each answer; each has a `type`."""
    head = {"type": "audit", **{key: value for key, value in made.items() if key != "answers"}}
    return [head, *({"type": "answer", **each} for each in made["answers"])]


def exit_code(outcome: str) -> int:
    """0 clean as far as asked, 1 a fault, 3 it is not known."""
    return {FAULT: FINDINGS, CLEAN: FINE}.get(outcome, INCOMPLETE)


def findings(made: dict[str, Any]) -> dict[str, Finding]:
    """Of each family whose fault is a known issue: the finding, with what to do first."""
    from diagnostics.catalog import offers

    return {
        each["family"]: offers.as_finding(
            _load()[each["code"]],
            "established",
            [(line, each["probe"]) for line in terminal.details(each)],
            each["sentence"],
        )
        for each in made["answers"]
        if each["outcome"] == FAULT and each["code"] in _load()
    }


def _answer(answer: ProbeAnswer) -> dict[str, Any]:
    told = asdict(answer)
    if answer.outcome == FAULT and not answer.code:
        told["code"] = _codes().get(answer.family, "")
    told["sentence"] = wording.sentence(told)
    for key in ("facts", "wanted"):
        told[key] = [fact | {"text": wording.fact(fact)} for fact in told[key]]
    told["helps"] = _helps(told["code"]) if answer.outcome == FAULT else {}
    return told


@cache
def _codes() -> dict[str, str]:
    """The code of each family that an entry names; a probe that knows better names another."""
    return {family: code for code, issue in _load().items() for family in issue.audit}


def _helps(code: str) -> dict[str, Any]:
    """What the catalogue says of a code; empty of one that it does not have."""
    # Here and not above: a training environment that runs the callback need not have what ranges are read with.
    from diagnostics.catalog import offers

    issue: Issue | None = _load().get(code)
    return {} if issue is None else offers.told(issue)
