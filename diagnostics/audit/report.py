"""Write an audit: on a terminal, as JSON, JSON lines, Markdown or an HTML page."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from diagnostics.audit.document import WORDS, code_of, count_line, issue_of, make_document, sentence
from diagnostics.audit.model import CLEAN, FAULT, LIVE, Audit, Estimate, Result, is_open
from diagnostics.catalog import offers
from diagnostics.findings import FINDINGS, FINE, INCOMPLETE, Finding
from diagnostics.fixes import count_of, first_step
from diagnostics.output import prepare, sanitize
from diagnostics.output.html import render_page
from diagnostics.output.markdown import render_template
from diagnostics.output.terminal import INDENT, print_command, print_text

FORMATS = ("terminal", "json", "jsonl", "markdown", "html")
_STYLES = {
    "fault": "bold red",
    "clean": "green",
    "not_decided": "yellow",
    "masked": "yellow",
    "not_asked": "dim",
}
_MAX_EVIDENCE, _MAX_CAUSES = 2, 3
# Histogram of differences: powers of ten of the floor, and bins.
_LOW, _HIGH, _BINS = -2.0, 3.0, 50


def write_audit(audit: Audit, form: str, *, verbose: bool = False) -> int:
    """Print an audit in a format; return the exit code."""
    audit = prepare.for_screen(audit)
    if form == "terminal":
        print_audit(audit, sanitize.console(sys.stdout), verbose=verbose)
        return exit_code(audit)
    document = shareable_document(audit)
    if form == "json":
        print(json.dumps(document, indent=1, ensure_ascii=False))
    elif form == "jsonl":
        for line in _lines(document):
            print(json.dumps(line, ensure_ascii=False))
    else:
        values = {
            "document": document,
            "words": WORDS,
            "cost": cost(audit),
            "details": list(map(details, audit.results)),
        }
        if form == "markdown":
            print(render_template("audit.md.j2", **values), end="")
        else:
            print(
                render_page("audit.html.j2", title="audit", charts=_charts(audit.pictures), **values), end=""
            )
    return exit_code(audit)


def shareable_document(audit: Audit) -> dict[str, Any]:
    """Return the document without secrets and personal data."""
    return prepare.for_sharing(prepare.for_screen(make_document(audit)))


def _lines(document: dict[str, Any]) -> list[dict[str, Any]]:
    head = {"type": "audit"} | {key: value for key, value in document.items() if key != "answers"}
    return [head, *({"type": "answer"} | result for result in document["answers"])]


def exit_code(audit: Audit) -> int:
    """Return 0 for clean, 1 for a fault, 3 for incomplete."""
    return {FAULT: FINDINGS, CLEAN: FINE}.get(audit.outcome, INCOMPLETE)


def print_audit(audit: Audit, console: Console, *, verbose: bool = False) -> None:
    """Print faults first, then what is open, then the counts."""
    style = _STYLES[audit.outcome]
    faults = audit.select(FAULT)
    counts = count_line(audit)
    open_titles = dict.fromkeys(result.title for result in audit.results if is_open(result))
    lead = count_of(len(faults), "fault") if faults else f"incomplete, not checked: {', '.join(open_titles)}"
    print_text(
        console, Text("audit: ") + Text(counts if audit.outcome == CLEAN else f"{lead}; {counts}", style)
    )
    for role, value in audit.subject.items():
        print_text(console, f"{role}: {value}", "dim", indent=2)
    if verbose:
        for result in audit.results:
            _print_result(console, result)
    else:
        for result in faults:
            _print_fault(console, result)
        for result in audit.results:
            if is_open(result):
                _print_open(console, result)
    console.print()
    print_text(console, cost(audit) + ("" if verbose else "; --verbose shows everything"), "dim")


def _print_fault(console: Console, result: Result) -> None:
    code = code_of(result)
    console.print()
    print_text(
        console, Text(f"{'error':<{INDENT}}", "red") + Text(f"{code} {result.message}".strip(), "bold red")
    )
    causes = [seen.text for seen in result.evidence if seen.name == "cause"]
    observations = [_with_place(seen.text, seen.place) for seen in result.evidence if seen.name != "cause"]
    estimates = [estimate_text(estimate) for estimate in result.estimates]
    for line in [*estimates, *observations][:_MAX_EVIDENCE]:
        print_text(console, line, "dim", indent=INDENT)
    for cause in causes[:_MAX_CAUSES]:
        print_text(console, cause, indent=INDENT)
    finding = finding_of(result)
    if finding is not None and not causes:
        step, command = first_step(finding.remedy)
        if step:
            print_text(console, f"Fix: {step}", indent=INDENT)
        if command:
            print_command(console, command)
    if finding is not None:
        print_text(console, f"More: python -m diagnostics explain {code}", "dim", indent=INDENT)


def finding_of(result: Result) -> Finding | None:
    """Return a fault as a finding of the known issue, with its recommended fix."""
    issue = issue_of(code_of(result))
    if issue is None:
        return None
    return offers.as_finding(
        issue, "established", [(line, result.probe) for line in details(result)], result.message
    )


def _print_open(console: Console, result: Result) -> None:
    print_text(console, Text(f"{'unknown':<{INDENT}}", "yellow") + Text(sentence(result)))
    for need in result.needed:
        print_text(console, f"to decide it: {need.text}", indent=INDENT)


def _print_result(console: Console, result: Result) -> None:
    console.print()
    code = code_of(result) if result.outcome == FAULT else ""
    text = "  ".join(filter(None, [WORDS[result.outcome], result.probe, code, sentence(result)]))
    print_text(console, text, _STYLES[result.outcome])
    for line in details(result):
        print_text(console, line, indent=4)


def details(result: Result) -> list[str]:
    """Return the lines below a result: estimates, what remains unexplained, evidence, what would decide it."""
    lines = [estimate_text(estimate) for estimate in result.estimates]
    if result.outcome == FAULT and result.residual is not None:
        floor = f", rounding makes {result.floor:.2g}" if result.floor is not None else ""
        other = result.runner_up
        second = f"; next best: {other.name}, off by {other.residual:.2g}" if other else ""
        lines.append(f"with this explanation it is off by {result.residual:.2g}{floor}{second}")
    lines += [_with_place(seen.text, seen.place) for seen in result.evidence]
    return lines + [f"to decide it: {need.text}" for need in result.needed]


def _with_place(text: str, place: str) -> str:
    return f"{text}    # {place}" if place else text


def estimate_text(estimate: Estimate) -> str:
    """Return a value with its interval.

    >>> estimate_text(Estimate("top_p", 0.9, 0.89, 0.9, 1.0))
    'top_p 0.9 (0.89 to 0.9), expected 1'
    """
    text = f"{estimate.name} {_value_text(estimate.value)}"
    if estimate.low is not None and estimate.high is not None:
        text += f" ({_value_text(estimate.low)} to {_value_text(estimate.high)})"
    return text if estimate.expected is None else f"{text}, expected {_value_text(estimate.expected)}"


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def cost(audit: Audit) -> str:
    """Return time, and of a live audit tokens and requests."""
    seconds = f"{audit.seconds:.2g} s"
    if audit.source != LIVE:
        return seconds
    return f"{count_of(audit.tokens, 'token')} in {count_of(audit.requests, 'request')}, {seconds}; nothing was changed"


def _charts(pictures: dict[str, Any]) -> list[dict[str, Any]]:
    """Return title and bars (label, height from 0 to 1) of each chart of scored ids."""
    if not pictures.get("difference"):
        return []
    floor = pictures["floor"]
    counts = [0] * _BINS
    for difference in pictures["difference"]:
        power = math.log10(max(abs(difference) / floor, 1e-9))
        counts[min(_BINS - 1, max(0, int((power - _LOW) / (_HIGH - _LOW) * _BINS)))] += 1
    edges = [f"{10 ** (_LOW + place * (_HIGH - _LOW) / _BINS):.2g}" for place in range(_BINS)]
    positions = [value / floor for value in pictures.get("position", [])]
    versions = {name: value / floor for name, value in pictures.get("versions", {}).items()}
    return [
        {"title": "Differences of scored ids, in floors", "bars": _bars(zip(edges, counts, strict=True))},
        {"title": "Mean difference by position, in floors", "bars": _bars(enumerate(positions))},
        {"title": "Mean difference from each checkpoint, in floors", "bars": _bars(versions.items())},
    ]


def _bars(pairs: Any) -> list[tuple[str, float, float]]:
    pairs = list(pairs)
    highest = max((value for _, value in pairs), default=0) or 1
    return [(str(label), float(value), value / highest) for label, value in pairs]
