"""Which findings of a report are shown: by code, and by whether they were there before."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.output.wording import number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from diagnostics.output.findings import Finding, Report


_ENTRIES = Path(__file__).parent.parent / "catalog"
# How much memory is left differs from one look to the next.
_AMOUNT = re.compile(r"\b[0-9]{1,9}(?:\.[0-9]{1,9})?(?= GB\b)")


class BaselineError(ValueError):
    """Raised when a baseline is no report of this tool; the message is one line for the user."""


class UnknownCodeError(ValueError):
    """Raised for a code or family that no entry has; the message is one line for the user, with near ones."""


def codes(text: str) -> list[str]:
    """Codes or families, several with commas between them, as findings have them.

    >>> codes("sch002,env")
    ['SCH002', 'ENV']

    Raises:
        UnknownCodeError: No entry's code begins with one of them: nothing would ever be selected by it.
    """
    # Names alone: no entry is read for it, and a report knows nothing of the catalogue.
    there = {path.stem for path in _ENTRIES.glob("*/*.toml")}
    asked = [word.strip().upper() for word in text.split(",") if word.strip()]
    for word in asked or [""]:
        if not word or not any(code.startswith(word) for code in there):
            raise UnknownCodeError(f"there is no code or family {word or text!r}; {_near(word, there)}")
    return asked


def _near(word: str, there: Iterable[str]) -> str:
    import difflib

    families = {code.rstrip("0123456789") for code in there}
    near = difflib.get_close_matches(word, {*there, *families}, n=3, cutoff=0.5)
    return f"near: {', '.join(near)}" if near else f"families: {', '.join(sorted(families))}"


def select(report: Report, selected: Iterable[str], ignored: Iterable[str]) -> Report:
    """Keeps the findings whose code begins with one of `selected` and with none of `ignored`."""
    selected, ignored = tuple(map(str.upper, selected)), tuple(map(str.upper, ignored))

    def kept(finding: Finding) -> bool:
        wanted = not selected or finding.code.startswith(selected)
        return wanted and not (ignored and finding.code.startswith(ignored))

    return _keep(report, kept, "left out by --select or --ignore")


def without_known(report: Report, baseline: Path) -> Report:
    """Leaves out the findings that an earlier report had.

    Raises:
        BaselineError: The file is no report of this command.
    """
    known = _fingerprints(baseline, report.tool)
    return _keep(
        report, lambda finding: fingerprint(finding.to_json(), report.tool) not in known, "in the baseline"
    )


def fingerprint(finding: dict[str, Any], tool: str = "lint") -> str:
    """What makes two findings of two days the same: code, files, keys and values, but no line numbers, no sizes.

    >>> one, other = ({"code": "ENV905", "evidence": [{"text": f"{n} GB are free", "place": ""}]} for n in (1.5, 2))
    >>> fingerprint(one) == fingerprint(other)
    True

    Args:
        finding: As it stands in a report's JSON.
        tool: Of a triage the code alone counts: a log's lines have times, ranks and numbers of processes in them.
    """
    # Not at the top: a run without a baseline needs none of it.
    import hashlib

    if tool == "triage":
        return hashlib.sha256(json.dumps([finding["code"]]).encode()).hexdigest()[:32]
    from diagnostics.output.personal import strip

    # A report has nothing personal in it, and what is compared to it has.
    evidence = sorted(
        (_AMOUNT.sub("#", strip(item["text"])), _file(item["place"])) for item in finding["evidence"]
    )
    return hashlib.sha256(json.dumps([finding["code"], evidence]).encode()).hexdigest()[:32]


def _file(place: str) -> str:
    head, colon, tail = place.rpartition(":")
    return (head if colon and tail.isdecimal() else place).rpartition("/")[2]


def _fingerprints(baseline: Path, tool: str) -> set[str]:
    try:
        document = given.parsed(given.read(baseline, given.LIST, pipes=True))
        known = {fingerprint(finding, tool) for finding in document["findings"]}
        made_by = document["tool"]
    except OSError as error:
        raise BaselineError(f"{baseline}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BaselineError(f"{baseline}: expected a report, as --format json writes it") from None
    if made_by != tool:
        raise BaselineError(f"{baseline}: a report of {str(made_by)[:40]}, expected one of {tool}")
    return known


def _keep(report: Report, kept: Callable[[Finding], bool], why: str) -> Report:
    checks = []
    for check in report.checks:
        findings = tuple(finding for finding in check.findings if kept(finding))
        left_out = len(check.findings) - len(findings)
        outcome = "ignored" if left_out and not findings else check.outcome
        reason = f"{number(left_out, 'finding')} {why}" if left_out else check.reason
        checks.append(replace(check, outcome=outcome, reason=reason, findings=findings))
    return replace(report, checks=tuple(checks))
