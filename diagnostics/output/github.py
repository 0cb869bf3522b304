"""Render a report as GitHub workflow commands, which GitHub shows as annotations of a pull request.

Texts are redacted and escaped. A command names the first file that the finding's evidence names.
"""

from diagnostics.findings import Finding, Report, Severity
from diagnostics.fixes import fix_text, one_line
from diagnostics.output.locations import file_locations
from diagnostics.output.redact import redact

_COMMANDS = {
    Severity.BLOCKER: "error", Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice",
}  # fmt: skip


def render(report: Report) -> str:
    """Return one line for each finding, crashed check, missing input that decides a check, and unresolved failure."""
    lines = [_annotation(finding) for finding in report.findings]
    crashed = (check for check in report.checks if check.outcome == "crashed")
    lines += [_command("error", "check crashed", f"{check.check}: {check.reason}") for check in crashed]
    missing = ((entry, ", ".join(names)) for entry, names in report.not_checked.items() if entry.decides)
    lines += [_command("warning", "not checked", f"{names}: {entry.text}") for entry, names in missing]
    if report.unresolved:
        lines.append(_command("warning", report.tool, report.unresolved))
    return "\n".join(lines)


def _annotation(finding: Finding) -> str:
    """Return the command of a finding, with its evidence and fix."""
    text = one_line(finding.detail) or finding.title
    values = "; ".join(f"{item.text} [{item.place}]" for item in finding.evidence)
    fix = f"\nFix: {fix_text(finding.remedy)}" if finding.remedy else ""
    location = next(iter(file_locations(finding)), None)
    where = {"file": location.file, "line": str(location.line or "")} if location else {}
    title = f"{finding.code} {finding.title}"
    return _command(_COMMANDS[finding.severity], title, f"{text}\n{values}{fix}", **where)


def _command(name: str, title: str, text: str, **where: str) -> str:
    """Return one workflow command; empty fields are left out."""
    fields = {"title": redact(title), **where}
    escaped = {key: _escape(value).replace(":", "%3A").replace(",", "%2C") for key, value in fields.items()}
    listed = ",".join(f"{key}={value}" for key, value in escaped.items() if value)
    return f"::{name} {listed}::{_escape(redact(text))}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
