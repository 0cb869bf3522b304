"""Print a report on a terminal: summary, examined subject, findings with evidence and fix, and checks.

`render` prints the report. By default a finding takes a few lines, or one if it is minor or late in the list;
`--verbose` prints everything. A report with its own layout (`report.extra`) prints itself. Commands with such reports
use the smaller functions here, such as `print_text` and `print_finding`.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.text import Text

from diagnostics import called_as, fixes, frameworks
from diagnostics.findings import CheckResult, Finding, NotChecked, Report, Severity
from diagnostics.output.redact import truncate
from diagnostics.output.sanitize import console as make_console

STYLES = {
    Severity.BLOCKER: "bold red", Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan",
}  # fmt: skip
OUTCOMES = {
    "ok": ("passed", "ok", "green"),
    "findings": ("with findings", "found", "yellow"),
    "not_judged": ("incomplete", "unknown", "yellow"),
    "partly": ("partly checked", "unknown", "yellow"),
    "ignored": ("filtered out", "ignored", "dim"),
    "skipped": ("not applicable", "skipped", "dim"),
    "crashed": ("crashed", "CRASHED", "bold red"),
    "unread": ("unreadable", "unread", "bold yellow"),
}
"""Outcome of a check -> (word in counts, word before the check's name, style)."""
INDENT = 8
_MIN_WIDTH = 20
# A command in a sentence, by an option, by variables or settings before another word, or by the name of a program. A
# line with one is not wrapped: a copy would be several commands.
_COMMAND = re.compile(
    r"""(?<![^\s`'"(])--?[A-Za-z]|\b[A-Z_][A-Z0-9_]*=\S*[^\s.,;:)] +\w|[\w.]=\S*[^\s.,;:)] +[+\w.]+="""
    r"|\b(?:apt-get|conda|cp|curl|df|dmesg|env|export|git|grpo-doctor|hf|mkdir|mv|nvidia-smi|pdm|pip|pixi|poetry|py-spy"
    r"|python[\d.]*|ray|rm|sudo|sysctl|ulimit|unset|uv) +\S"
)
MAX_DETAILED = 6
"""Without `--verbose`, only findings above info among the first MAX_DETAILED have several lines; others have one."""
_MAX_EVIDENCE = 2000


def render(report: Report, stream: TextIO | None = None, *, verbose: bool = False) -> None:
    """Print a report; colour and width follow the terminal, NO_COLOR and COLUMNS."""
    console = make_console(sys.stdout if stream is None else stream)
    if report.extra is not None:
        report.extra.render(report, console, verbose=verbose)
        return
    print_text(console, f"{report.tool}: {summary(report)}", "bold")
    for line in subject_lines(report):
        print_text(console, line)
    print_findings(console, report.findings, verbose=verbose)
    console.print()
    print_checks(console, report, verbose=verbose)


def print_text(
    console: Console,
    text: str | Text,
    style: str = "",
    *,
    indent: int = 0,
    whole: bool = False,
    lead: str | Text = "",
) -> None:
    """Print a text with an indent, wrapped on a terminal; elsewhere, or if `whole`, each line stays one line.

    Wrapped lines are indented as the text after `lead`. A word is not cut, and a text that names a command is whole.
    """
    content = text.copy() if isinstance(text, Text) else Text(text, style)
    content.overflow = "ignore"
    plain = content.plain
    if whole or not console.is_terminal or not plain.strip() or _COMMAND.search(plain):
        content = Text.assemble(lead, content)
        if indent:
            content = Text("\n").join(Text(" " * indent) + line for line in content.split("\n"))
        console.print(content, soft_wrap=True)
    else:
        margin = indent + len(lead)
        for number, line in enumerate(content.wrap(console, max(console.width - margin, _MIN_WIDTH))):
            line.rstrip()
            before = Text.assemble(" " * indent, lead) if number == 0 else Text(" " * margin)
            console.print(Text.assemble(before, line), soft_wrap=True)


def print_findings(console: Console, findings: list[Finding], *, verbose: bool = False) -> None:
    """Print findings in their order, in full with `verbose`; see MAX_DETAILED."""
    for position, finding in enumerate(findings):
        full = verbose or (position < MAX_DETAILED and finding.severity > Severity.INFO)
        if full or position == 0:
            console.print()
        if full:
            print_finding(console, finding, verbose=verbose)
        else:
            _print_headline(console, finding)


def print_finding(console: Console, finding: Finding, *, verbose: bool = False) -> None:
    """Print one finding: code and title, evidence, fix, certainty; with `verbose`, everything known about it."""
    _print_headline(console, finding)
    if verbose:
        _print_details(console, finding)
        return
    if finding.evidence:
        print_text(console, _first_evidence(finding), "dim", indent=INDENT)
    _, command = fixes.first_step(finding.remedy)
    for number, line in enumerate(fixes.first_lines(finding.remedy)):
        lead = "- " if number and line.startswith("- ") else ""
        text = line[len(lead) :] if number else f"Fix: {line}"
        print_text(console, text, indent=INDENT, lead=lead, whole=fixes.has_option(finding.remedy, line))
    if command:
        print_command(console, command)
    more = f" More: {called_as()} explain {finding.code}" if finding.code else ""
    print_text(console, f"{finding.proof}{more}", "dim", indent=INDENT)


def _print_headline(console: Console, finding: Finding) -> None:
    style = STYLES[finding.severity]
    lead = Text(f"{finding.severity.word:<{INDENT}}", style)
    # A known issue of a release may never occur. Codes of checks count from 901.
    uncertain = finding.severity is Severity.INFO and finding.certainty == "supported"
    title = f"may occur: {finding.title}" if uncertain and finding.code[3:4] != "9" else finding.title
    print_text(console, Text(f"{finding.code} {title}", f"bold {style}"), lead=lead)


def _first_evidence(finding: Finding) -> str:
    first, *rest = finding.evidence
    more = f" and {len(rest)} more" if rest else ""
    text = fixes.one_line(first.text)
    return f"{'' if text == finding.title else f'{cut_text(text)} '}[{first.place}]{more}"


def cut_text(text: str) -> str:
    """Return a text; of one over 2000 characters the beginning, and the number of characters that are left out."""
    text, rest = truncate(text, _MAX_EVIDENCE), len(text) - _MAX_EVIDENCE
    return f"{text} … {rest} more characters, --verbose shows all" if rest > 0 else text


def _print_details(console: Console, finding: Finding) -> None:
    if finding.detail:
        print_text(console, fixes.one_line(finding.detail), indent=INDENT)
    print_text(console, finding.proof, indent=INDENT)
    for item in finding.evidence:
        print_text(console, f"- {item.text} [{item.place}]", "dim", indent=INDENT)
    if finding.remedy:
        print_text(console, "Fix:", "bold", indent=INDENT)
        for line in fixes.fix_lines(finding.remedy):
            print_text(console, f"* {line}", indent=INDENT, whole=fixes.has_option(finding.remedy, line))
        for command in fixes.commands_of(finding.remedy.actions):
            print_command(console, command)
    for reference in finding.references:
        print_text(console, f"see {reference}", "dim", indent=INDENT)


def print_command(console: Console, command: str, indent: int = INDENT) -> None:
    """Print a command to copy, in one line: a terminal may wrap it, and copies it as one line."""
    print_text(console, f"{' ' * indent}$ {command}", "bold", whole=True)


def print_not_checked(
    console: Console, missing: NotChecked, checks: Iterable[str] = (), *, with_head: bool = True
) -> None:
    """Print an input that was not checked and, `with_head`, before it a line with the checks that needed it."""
    names = ", ".join(dict.fromkeys(checks))
    effect = "" if missing.decides else " (no effect on the exit code)"
    head = f"not checked: {names}{effect}" if names else f"not checked{effect}"
    if with_head:
        print_text(console, head, "yellow")
    print_text(console, missing.text, indent=INDENT)


def print_checks(console: Console, report: Report, *, verbose: bool = False) -> None:
    """Print crashed checks, missing inputs, counts and the note; with `verbose`, each check and all remarks."""
    for check in report.checks:
        if verbose or check.outcome == "crashed":
            _print_check(console, check)
    if not verbose:
        previous = None
        for missing, names in report.not_checked.items():
            group = names, missing.decides
            print_not_checked(console, missing, names, with_head=group != previous)
            previous = group
        print_text(console, count_checks(report), "dim")
    for note in report.remarks if verbose else filter(None, [report.method_note]):
        print_text(console, f"note: {note}", "dim")


def _print_check(console: Console, check: CheckResult) -> None:
    _, word, style = OUTCOMES[check.printed_outcome]
    reason = f": {check.reason}" if check.reason else ""
    print_text(console, Text(f"{word:<{INDENT}}", style) + Text(f"{check.check}{reason}"))
    for missing in check.not_judged:
        print_text(console, f"not checked: {missing.text}", indent=INDENT)


def count_checks(report: Report) -> str:
    """Return the number of checks by outcome ("21 checks: 11 passed, 10 not applicable"), with a hint on --verbose."""
    counts = report.outcomes
    listed = [f"{counts[outcome]} {word}" for outcome, (word, _, _) in OUTCOMES.items() if counts[outcome]]
    if both := sum(check.outcome == "findings" and check.incomplete for check in report.checks):
        findings_text = f"{counts['findings']} {OUTCOMES['findings'][0]}"
        listed[listed.index(findings_text)] = f"{findings_text} ({both} of them incomplete)"
    return f"{fixes.count_of(len(report.checks), 'check')}: {', '.join(listed)}; --verbose shows everything"


def summary(report: Report) -> str:
    """Return the result in a few words: "2 errors, 1 warning; 1 of 9 checks incomplete"."""
    severities = Counter(finding.severity for finding in report.findings)
    listed = [
        f"{count} info" if severity is Severity.INFO else fixes.count_of(count, severity.word)
        for severity, count in sorted(severities.items(), reverse=True)
    ]
    counts = report.outcomes
    checked = any(entry.outcome not in {"skipped", "crashed"} and not entry.reads for entry in report.checks)
    nothing = "no problems found" if checked or not report.checks else "nothing was checked"
    parts = [", ".join(listed) or nothing]
    kinds = Counter(
        "incomplete" if check.incomplete else "partly checked" for check in report.checks if check.not_judged
    )
    parts += [f"{count} of {len(report.checks)} checks {kind}" for kind, count in sorted(kinds.items())]
    if counts["unread"]:
        parts.append(f"{fixes.count_of(counts['unread'], 'file')} unreadable")
    if counts["crashed"]:
        parts.append(f"{counts['crashed']} of {len(report.checks)} checks crashed")
    return "; ".join(parts)


def subject_lines(report: Report) -> list[str]:
    """Return lines that name the examined environment, or the files and the releases they are checked for."""
    subject = report.subject
    packages = ", ".join(f"{name} {version}" for name, version in subject.get("packages", {}).items())
    if "files" in subject:
        lines = [f"{file['file']}: {_file_kinds(report, file)}" for file in subject["files"]]
        used = (plan["framework"] for file in subject["files"] for plan in file["plans"])
        options = [
            f"--{name} VERSION" for name in dict.fromkeys(used) if frameworks.FRAMEWORKS[name].packages
        ]
        missing = f"no release known{': pass ' if options else ''}{' '.join(options)}"
        return [*lines, f"checked for {packages}" if packages else missing]
    if "prefix" not in subject:
        return [packages] if packages else []
    ownership = ", grpo-doctor's own environment" if "unnamed" in subject else ""
    lines = [f"Python {subject['python']} in {subject['prefix']}{ownership}"]
    for prefix in subject.get("unnamed", ())[:3]:
        command = fixes.quote_command((*called_as().split(), "doctor", "--prefix", prefix))
        lines.append(f"Did you mean the environment at {prefix}? Run: {command}")
    return [*lines, packages or "no supported package is installed"]


def _file_kinds(report: Report, file: dict[str, object]) -> str:
    """Return the runs and servers in a file with their frameworks, or the reason why none was found."""
    plans: list[dict[str, str]] = file["plans"]  # type: ignore[assignment]  # as the document has it
    kinds = [f"{plan['framework']} {'server' if plan['role'] == 'serve' else 'run'}" for plan in plans]
    label = {f"reading {file['file']}", "reading the command"}
    skipped = (entry.reason for entry in report.checks if entry.check in label and entry.outcome == "skipped")
    return ", ".join(kinds) or next(skipped, "no known framework")
