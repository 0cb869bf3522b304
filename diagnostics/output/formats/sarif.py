"""A report as SARIF 2.1.0, for code scanning and editors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from diagnostics import version
from diagnostics.output import wording
from diagnostics.output.filters import fingerprint
from diagnostics.output.findings import Severity
from diagnostics.output.personal import strip
from diagnostics.output.places import spots
from diagnostics.output.remedies import Explain
from diagnostics.output.verdicts import unresolved

if TYPE_CHECKING:
    from diagnostics.output.findings import Finding, Report

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {
    Severity.BLOCKER: "error",
    Severity.ERROR: "error",
    Severity.WARNING: "warning",
    Severity.INFO: "note",
}


def render(report: Report) -> str:
    """One SARIF log with one run."""
    findings = report.findings
    codes = sorted({finding.code for finding in findings})
    run = {
        "tool": {
            "driver": {
                "name": "grpo-doctor",
                "semanticVersion": version(),
                "rules": [
                    _rule(next(finding for finding in findings if finding.code == code)) for code in codes
                ],
            }
        },
        "results": [_result(finding, codes.index(finding.code), report.tool) for finding in findings],
        "invocations": [_invocation(report)],
        "columnKind": "unicodeCodePoints",
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=1, ensure_ascii=False)


def _rule(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.code,
        "shortDescription": {"text": strip(finding.title)},
        "help": {"text": wording.command_of(Explain(finding.code))},
    }


def _result(finding: Finding, index: int, tool: str) -> dict[str, Any]:
    told = wording.lines_of(finding.remedy) if finding.remedy else []
    remedy = f" What to do: {told[0]}" if told else ""
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": strip(f"{wording.one_line(finding.detail) or finding.title}{remedy}")},
        "partialFingerprints": {"grpoDoctor/v1": fingerprint(finding.to_json(), tool)},
        "properties": {
            "severity": finding.severity.word,
            "certainty": finding.certainty,
            "knownBy": finding.known_by,
            "evidence": [strip(f"{item.text} [{item.place}]") for item in finding.evidence],
        },
    }
    places = [_location(spot.file, spot.line) for spot in spots(finding)]
    if places:
        result["locations"] = places[:1]
    if places[1:]:
        result["relatedLocations"] = places[1:]
    return result


def _location(file: str, line: int) -> dict[str, Any]:
    artifact: dict[str, Any] = {"uri": quote(file)}
    if not file.startswith("/"):
        artifact["uriBaseId"] = "%SRCROOT%"
    physical: dict[str, Any] = {"artifactLocation": artifact}
    if line:
        physical["region"] = {"startLine": line}
    return {"physicalLocation": physical}


def _invocation(report: Report) -> dict[str, Any]:
    """Whether the tool came to its end, and what it could not look at."""
    notifications = [
        {
            "level": "error" if check.outcome == "crashed" else "warning" if check.incomplete else "note",
            "message": {"text": strip(f"{check.check}: {line}")},
        }
        for check in report.checks
        for line in check.unseen
    ]
    if told := unresolved(report):
        notifications.append({"level": "warning", "message": {"text": strip(told)}})
    return {
        "executionSuccessful": not any(check.outcome == "crashed" for check in report.checks),
        "toolExecutionNotifications": notifications,
    }
