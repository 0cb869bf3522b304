"""A report as commands of GitHub's workflows, which become annotations in a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.output import wording
from diagnostics.output.findings import Severity
from diagnostics.output.personal import strip
from diagnostics.output.places import spots
from diagnostics.output.verdicts import unresolved

if TYPE_CHECKING:
    from diagnostics.output.findings import Finding, Report

_COMMANDS = {
    Severity.BLOCKER: "error",
    Severity.ERROR: "error",
    Severity.WARNING: "warning",
    Severity.INFO: "notice",
}


def render(report: Report) -> str:
    """One line a finding, and one for each check that did not come to its end."""
    lines = [_annotation(finding) for finding in report.findings]
    lines += [
        f"::error title={_property('not looked at')}::{_data(strip(f'{check.check}: {check.reason}'))}"
        for check in report.checks
        if check.outcome == "crashed"
    ]
    lines += [
        f"::warning title={_property('not judged')}::{_data(strip(f'{check.check}: {each.text}'))}"
        for check in report.checks
        for each in check.not_judged
        if each.decides
    ]
    if told := unresolved(report):
        lines.append(f"::warning title={_property(report.tool)}::{_data(strip(told))}")
    return "\n".join(lines)


def _annotation(finding: Finding) -> str:
    places = spots(finding)
    properties = {"title": strip(f"{finding.code} {finding.title}")}
    if places:
        properties |= {"file": places[0].file}
        properties |= {"line": str(places[0].line)} if places[0].line else {}
    told = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    text = wording.one_line(finding.detail) or finding.title
    values = "; ".join(f"{item.text} [{item.place}]" for item in finding.evidence)
    told_remedy = f"\nWhat to do: {wording.text_of(finding.remedy)}" if finding.remedy else ""
    body = _data(strip(f"{text}\n{values}{told_remedy}"))
    return f"::{_COMMANDS[finding.severity]} {told}::{body}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
