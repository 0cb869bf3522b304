"""A report as JUnit XML: a test case a check, which fails by its findings from `--fail-on` upwards."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from diagnostics.output import wording
from diagnostics.output.personal import strip
from diagnostics.output.verdicts import unresolved

if TYPE_CHECKING:
    from diagnostics.output.findings import CheckResult, Finding, Report, Severity

# What XML 1.0 cannot hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report, fail_on: Severity) -> str:
    """One JUnit document."""
    cases = [_case(report, check, fail_on) for check in report.checks]
    if told := unresolved(report):
        # Nothing known was found: that is no test that passed.
        case = ET.Element("testcase", {"classname": f"grpo-doctor.{report.tool}", "name": "verdict"})
        ET.SubElement(case, "error", {"message": _clean(told), "type": "unresolved"})
        cases.append(case)
    counts = {
        "tests": len(cases),
        "failures": sum(case.find("failure") is not None for case in cases),
        "errors": sum(case.find("error") is not None for case in cases),
        "skipped": sum(case.find("skipped") is not None for case in cases),
    }
    attributes = {name: str(count) for name, count in counts.items()}
    # As Jenkins' schema has it: no `skipped` up here, and the reason of a skipped case is its text.
    whole = {name: count for name, count in attributes.items() if name != "skipped"}
    root = ET.Element("testsuites", {"name": "grpo-doctor", **whole})
    suite = ET.SubElement(root, "testsuite", {"name": report.tool, **attributes})
    suite.extend(cases)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def _case(report: Report, check: CheckResult, fail_on: Severity) -> ET.Element:
    case = ET.Element("testcase", {"classname": f"grpo-doctor.{report.tool}", "name": _clean(check.check)})
    if check.outcome == "crashed":
        ET.SubElement(case, "error", {"message": _clean(check.reason), "type": "crashed"})
        return case
    if check.outcome in {"skipped", "ignored"}:
        ET.SubElement(case, "skipped").text = _clean(check.reason)
        return case
    bad = [finding for finding in check.findings if finding.severity >= fail_on]
    rest = [finding for finding in check.findings if finding.severity < fail_on]
    if bad:
        codes = ", ".join(dict.fromkeys(finding.code for finding in bad))
        failure = ET.SubElement(
            case, "failure", {"message": _clean(f"{codes}: {bad[0].title}"), "type": codes}
        )
        failure.text = _clean("\n\n".join(map(_told, bad)))
    if check.incomplete and not bad:
        # What may hide a fault is no test that passed.
        ET.SubElement(case, "error", {"message": _clean("; ".join(check.unseen)), "type": "not judged"})
    elif check.outcome == "not_judged":
        ET.SubElement(case, "skipped").text = _clean("; ".join(check.unseen))
    if rest:
        ET.SubElement(case, "system-out").text = _clean("\n\n".join(map(_told, rest)))
    return case


def _told(finding: Finding) -> str:
    lines = [f"{finding.severity.word} {finding.code} {finding.title}", wording.one_line(finding.detail)]
    lines += [f"- {item.text} [{item.place}]" for item in finding.evidence]
    lines += [f"* {line}" for line in wording.lines_of(finding.remedy)] if finding.remedy else []
    return "\n".join(lines)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", strip(text))
