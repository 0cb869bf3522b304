"""Render a report as JUnit XML: one test case for each check, and one for a failure that stays unresolved.

`render` returns the document. A finding at or above `--fail-on` fails its case; other findings are its output. A
crashed check is an error. So is a check that lacks a deciding input, unless a finding fails its case. A case is skipped
if its check was skipped, lost all its findings to filters, or has no finding and lacks an input that does not decide.
Texts are redacted, and characters that XML cannot contain are replaced.
"""

import re
from xml.etree import ElementTree as ET

from diagnostics.findings import CheckResult, Finding, Report, Severity
from diagnostics.fixes import fix_lines, one_line
from diagnostics.output.redact import redact

# Characters that XML 1.0 cannot contain, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report, fail_on: Severity) -> str:
    """Return one JUnit document; `fail_on` is the lowest severity that fails a case."""
    cases = [_case(report, check, fail_on) for check in report.checks]
    if report.unresolved:
        # No known cause was found, so this test did not pass.
        case = ET.Element("testcase", {"classname": f"grpo-doctor.{report.tool}", "name": "verdict"})
        ET.SubElement(case, "error", {"message": xml_text(report.unresolved), "type": "unresolved"})
        cases.append(case)
    counts = {"tests": str(len(cases))}
    for kind, tag in (("failures", "failure"), ("errors", "error")):
        counts[kind] = str(sum(case.find(tag) is not None for case in cases))
    skipped = str(sum(case.find("skipped") is not None for case in cases))
    # Jenkins' schema has no `skipped` here, and a skipped case has its reason as text.
    root = ET.Element("testsuites", {"name": "grpo-doctor", **counts})
    ET.SubElement(root, "testsuite", {"name": report.tool, **counts, "skipped": skipped}).extend(cases)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def _case(report: Report, check: CheckResult, fail_on: Severity) -> ET.Element:
    """Return the test case of a check."""
    case = ET.Element("testcase", {"classname": f"grpo-doctor.{report.tool}", "name": xml_text(check.check)})
    if check.outcome == "crashed":
        ET.SubElement(case, "error", {"message": xml_text(check.reason), "type": "crashed"})
        return case
    if check.outcome in {"skipped", "ignored"}:
        ET.SubElement(case, "skipped").text = xml_text(check.reason)
        return case
    bad = [finding for finding in check.findings if finding.severity >= fail_on]
    rest = [finding for finding in check.findings if finding.severity < fail_on]
    if bad:
        codes = ", ".join(dict.fromkeys(finding.code for finding in bad))
        message = xml_text(f"{codes}: {bad[0].title}")
        failure = ET.SubElement(case, "failure", {"message": message, "type": codes})
        failure.text = xml_text("\n\n".join(map(_finding_text, bad)))
    not_checked = xml_text("; ".join(check.not_checked_lines))
    if check.incomplete and not bad:
        # A fault may be in what was not checked, so this test did not pass.
        ET.SubElement(case, "error", {"message": not_checked, "type": "not checked"})
    elif check.outcome == "not_judged":
        ET.SubElement(case, "skipped").text = not_checked
    if rest:
        ET.SubElement(case, "system-out").text = xml_text("\n\n".join(map(_finding_text, rest)))
    return case


def _finding_text(finding: Finding) -> str:
    lines = [f"{finding.severity.word} {finding.code} {finding.title}", one_line(finding.detail)]
    lines += [f"- {item.text} [{item.place}]" for item in finding.evidence]
    lines += [f"* {line}" for line in fix_lines(finding.remedy)] if finding.remedy else []
    return "\n".join(lines)


def xml_text(text: str) -> str:
    """Redact a text, and replace characters that XML cannot contain."""
    return _NOT_XML.sub("?", redact(text))
