"""A report as Markdown, to be pasted into an issue: nothing personal in it, nothing that would be taken for markup."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnostics.output import wording
from diagnostics.output.personal import strip
from diagnostics.output.verdicts import unresolved

if TYPE_CHECKING:
    from diagnostics.output.findings import Finding, Report


def render(report: Report) -> str:
    """One document: what was looked at, a table, and each finding with its evidence and remedy."""
    packages = ", ".join(f"{name} {version}" for name, version in report.subject.get("packages", {}).items())
    parts = [f"### grpo-doctor {report.tool}", text_of(f"Releases: {packages or 'not known'}")]
    if report.findings:
        rows = ["| severity | code | what |", "|---|---|---|"]
        rows += [f"| {f.severity.word} | {f.code} | {text_of(f.title)} |" for f in report.findings]
        parts.append("\n".join(rows))
        parts += map(_finding, report.findings)
    elif not unresolved(report):
        parts.append(
            text_of(f"Nothing found; {report.not_judged}.") if report.not_judged else "Nothing found."
        )
    if told := unresolved(report):
        parts.append(text_of(f"Verdict: {told}."))
    if anchors := report.subject.get("anchors"):
        parts.append("Where to look first:")
        parts.append(_block("\n".join(f"{anchor['text']}    # {anchor['place']}" for anchor in anchors)))
    lines = [f"- {text_of(f'{check.check}: {line}')}" for check in report.checks for line in check.unseen]
    if lines:
        parts.append("Not looked at:\n\n" + "\n".join(lines))
    parts += [text_of(f"Note: {note}") for note in report.remarks]
    return "\n\n".join(parts) + "\n"


def _finding(finding: Finding) -> str:
    parts = [f"#### {finding.severity.word} {finding.code}: {text_of(finding.title)}"]
    if finding.detail:
        parts.append(text_of(wording.one_line(finding.detail)))
    parts.append(f"How it is known: {finding.known_by}; that it concerns you: {finding.certainty}.")
    evidence = "\n".join(f"{item.text}    # {item.place}" for item in finding.evidence)
    parts.append(_block(evidence))
    if finding.remedy:
        parts.append("\n".join(f"- {text_of(line)}" for line in wording.lines_of(finding.remedy)))
        if commands := wording.commands_of(finding.remedy.actions):
            parts.append(_block("\n".join(commands)))
    return "\n\n".join(parts)


def text_of(text: str) -> str:
    """Prose: nothing in it becomes markup, a mention of somebody or a link."""
    # `&#64;` becomes an @ before mentions are looked for; what begins a line may be a heading or a list.
    escaped = re.sub(r"([\\`*_{}\[\]<>|~&]|^\s*[#+=-])", r"\\\1", strip(text).replace("\n", " "))
    # An address becomes a link by itself; one of an issue there tells everybody who reads that issue of this text.
    return re.sub(r"([@#]|\bGH-)(?=\w)|(:)(?=//)|(\bwww)(?=\.)", "\\1\\2\\3\u200b", escaped)


def _block(text: str) -> str:
    text = strip(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
