"""Render a report as SARIF 2.1.0, for code scanning and editors.

Findings are results with a rule, level, locations and fingerprint. What was not checked is a notification of the
invocation. Texts and locations are redacted.
"""

import re
from typing import Any
from urllib.parse import quote

from diagnostics import version
from diagnostics.findings import Finding, Report, Severity
from diagnostics.fixes import Explain, command_of, fix_lines, one_line
from diagnostics.output.finding_filters import fingerprint
from diagnostics.output.json_output import dump
from diagnostics.output.locations import file_locations
from diagnostics.output.redact import redact

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {
    Severity.BLOCKER: "error", Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note",
}  # fmt: skip


def render(report: Report) -> str:
    """Return one SARIF log with one run."""
    findings = report.findings
    codes = sorted({finding.code for finding in findings})
    rules = [_rule(next(finding for finding in findings if finding.code == code)) for code in codes]
    run = {
        "tool": {"driver": {"name": "grpo-doctor", "semanticVersion": version(), "rules": rules}},
        "results": [_result(finding, codes.index(finding.code), report.tool) for finding in findings],
        "invocations": [_invocation(report)],
        "columnKind": "unicodeCodePoints",
    }
    return dump({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(finding: Finding) -> dict[str, Any]:
    texts = {"shortDescription": finding.title, "help": command_of(Explain(finding.code))}
    return {"id": finding.code} | {name: _message(text) for name, text in texts.items()}


def _result(finding: Finding, index: int, tool: str) -> dict[str, Any]:
    """Return a finding as a SARIF result; its first location is `locations`, others are related."""
    lines = fix_lines(finding.remedy) if finding.remedy else []
    fix = f" Fix: {lines[0]}" if lines else ""
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": _message(f"{one_line(finding.detail) or finding.title}{fix}"),
        "partialFingerprints": {"grpoDoctor/v1": fingerprint(finding.to_json(), tool)},
        "properties": {
            "severity": finding.severity.word,
            "certainty": finding.certainty,
            "knownBy": finding.known_by,
            "evidence": [redact(f"{item.text} [{item.place}]") for item in finding.evidence],
        },
    }
    places = [_location(location.file, location.line) for location in file_locations(finding)]
    fields = {"locations": places[:1], "relatedLocations": places[1:]}
    return result | {name: value for name, value in fields.items() if value}


def _location(file: str, line: int) -> dict[str, Any]:
    """Return a physical location; a relative file is relative to the checkout, and line 0 is left out."""
    base = {} if file.startswith("/") else {"uriBaseId": "%SRCROOT%"}
    region = {"region": {"startLine": line}} if line else {}
    return {"physicalLocation": {"artifactLocation": {"uri": quote(file), **base}, **region}}


def _invocation(report: Report) -> dict[str, Any]:
    """Return whether no check crashed, and what was not checked or stays unresolved as notifications."""
    crashed = [check for check in report.checks if check.outcome == "crashed"]
    notifications = []
    for check in report.checks:
        level = "error" if check in crashed else "warning" if check.incomplete else "note"
        notifications += [_notification(level, f"{check.check}: {line}") for line in check.not_checked_lines]
    if report.unresolved:
        notifications.append(_notification("warning", report.unresolved))
    return {"executionSuccessful": not crashed, "toolExecutionNotifications": notifications}


def _notification(level: str, text: str) -> dict[str, Any]:
    return {"level": level, "message": _message(text)}


def _message(text: str) -> dict[str, str]:
    """Return a redacted message; viewers show `[text](address)` as a link, so its closing bracket is escaped.

    Backslashes before the bracket are escaped, too: they would escape the escape.
    """
    return {"text": re.sub(r"(\\*)\](?=\()", r"\1\1\\]", redact(text))}
