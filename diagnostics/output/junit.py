"""A report as JUnit XML: one test case for each check, failed by findings at or above `--fail-on`."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from diagnostics.findings import CheckResult, Finding, Report, Severity
from diagnostics.fixes import fix_lines, one_line
from diagnostics.output.redact import redact

# Characters that XML 1.0 cannot contain, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report, fail_on: Severity) -> str:
    """Return one JUnit document."""
    cases = [_case(report, check, fail_on) for check in report.checks]
    if report.unresolved:
        # No known cause was found, so this test did not pass.
        case = ET.Element("testcase", {"classname": f"grpo-doctor.{report.tool}", "name": "verdict"})
        ET.SubElement(case, "error", {"message": _xml_text(report.unresolved), "type": "unresolved"})
        cases.append(case)
    counts = {
        "tests": len(cases),
        "failures": sum(case.find("failure") is not None for case in cases),
        "errors": sum(case.find("error") is not None for case in cases),
        "skipped": sum(case.find("skipped") is not None for case in cases),
    }
    attributes = {name: str(count) for name, count in counts.items()}
    # Jenkins' schema has no `skipped` here, and a skipped case has its reason as text.
    full = {name: count for name, count in attributes.items() if name != "skipped"}
    root = ET.Element("testsuites", {"name": "grpo-doctor", **full})
    suite = ET.SubElement(root, "testsuite", {"name": report.tool, **attributes})
    suite.extend(cases)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def _case(report: Report, check: CheckResult, fail_on: Severity) -> ET.Element:
    case = ET.Element("testcase", {"classname": f"grpo-doctor.{report.tool}", "name": _xml_text(check.check)})
    if check.outcome == "crashed":
        ET.SubElement(case, "error", {"message": _xml_text(check.reason), "type": "crashed"})
        return case
    if check.outcome in {"skipped", "ignored"}:
        ET.SubElement(case, "skipped").text = _xml_text(check.reason)
        return case
    bad = [finding for finding in check.findings if finding.severity >= fail_on]
    rest = [finding for finding in check.findings if finding.severity < fail_on]
    if bad:
        codes = ", ".join(dict.fromkeys(finding.code for finding in bad))
        failure = ET.SubElement(
            case, "failure", {"message": _xml_text(f"{codes}: {bad[0].title}"), "type": codes}
        )
        failure.text = _xml_text("\n\n".join(map(_finding_text, bad)))
    if check.incomplete and not bad:
        # A fault may be in what was not checked, so this test did not pass.
        ET.SubElement(case, "error", {"message": _xml_text("; ".join(check.unseen)), "type": "not checked"})
    elif check.outcome == "not_judged":
        ET.SubElement(case, "skipped").text = _xml_text("; ".join(check.unseen))
    if rest:
        ET.SubElement(case, "system-out").text = _xml_text("\n\n".join(map(_finding_text, rest)))
    return case


def _finding_text(finding: Finding) -> str:
    lines = [f"{finding.severity.word} {finding.code} {finding.title}", one_line(finding.detail)]
    lines += [f"- {item.text} [{item.place}]" for item in finding.evidence]
    lines += [f"* {line}" for line in fix_lines(finding.remedy)] if finding.remedy else []
    return "\n".join(lines)


def _xml_text(text: str) -> str:
    return _NOT_XML.sub("?", redact(text))
