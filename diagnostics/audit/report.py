"""Print an audit to standard output: for a terminal, or as JSON, JSON lines, Markdown or an HTML page.

All formats escape control characters and mask secrets; those other than the terminal's also mask personal data.
`write_audit` prints the audit and returns its exit code, which `exit_code` computes.
"""

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from diagnostics import called_as, catalog
from diagnostics.audit import results
from diagnostics.audit.results import CLEAN, FAULT, MASKED, NOT_DECIDED, SKIPPED, Audit, Note, Result
from diagnostics.catalog.mitigation_ranking import recommended_fix
from diagnostics.findings import FINDINGS, FINE, INCOMPLETE
from diagnostics.fixes import count_of, first_step, has_option
from diagnostics.output import json_output, sanitize, text_filters
from diagnostics.output.html import render_page
from diagnostics.output.markdown import render_template
from diagnostics.output.terminal import INDENT, print_command, print_text

FORMATS = ("terminal", "json", "jsonl", "markdown", "html")
_STYLES = {FAULT: "bold red", CLEAN: "green", NOT_DECIDED: "yellow", MASKED: "yellow", SKIPPED: "dim"}
_MAX_EVIDENCE, _MAX_CAUSES = 2, 3


def write_audit(audit: Audit, form: str, *, verbose: bool = False) -> int:
    """Print an audit in a format; return the exit code."""
    audit = text_filters.mask_for_screen(audit)
    if form == "terminal":
        _print_audit(audit, sanitize.console(sys.stdout), verbose=verbose)
        return exit_code(audit)
    document = text_filters.redact_for_sharing(results.make_document(audit))
    values: dict[str, Any] = {"document": document, "words": results.WORDS, "cost": _cost(audit)}
    values["details"] = text_filters.redact_for_sharing(list(map(_details, audit.results)))
    if form == "json":
        print(json_output.dump(document))
    elif form == "jsonl":
        answers = document.pop("answers")
        for line in ({"type": "audit"} | document, *({"type": "answer"} | answer for answer in answers)):
            print(json_output.dump(line, None))
    elif form == "markdown":
        print(render_template("audit.md.j2", **values), end="")
    else:
        print(render_page("audit.html.j2", title="audit", **values), end="")
    return exit_code(audit)


def exit_code(audit: Audit) -> int:
    """Return the exit code: 0 for clean, 1 for a fault, 3 without a fault if a check is open or none passed."""
    return {FAULT: FINDINGS, CLEAN: FINE}.get(audit.outcome, INCOMPLETE)


def _print_audit(audit: Audit, console: Console, *, verbose: bool) -> None:
    """Print a header, then faults, notices and open checks (with `verbose` all results and details), then the cost."""
    faults = audit.select(FAULT)
    counts = f"{count_of(len(faults), 'fault')}; {results.count_line(audit)}"
    lead = counts if faults else results.headline(audit)
    print_text(console, Text("audit: ") + Text(lead, _STYLES[audit.outcome]))
    for role, value in audit.subject.items():
        print_text(console, f"{role}: {value}", "dim", indent=2)
    if verbose:
        for result in audit.results:
            _print_details(console, result)
    else:
        _print_first_screen(console, audit)
    console.print()
    printed = [need for result in filter(results.is_open, audit.results) for need in result.needed]
    more = [need.text for result in audit.select(SKIPPED) for need in result.needed if need not in printed]
    if more and not verbose:
        print_text(console, f"to run more checks: {more[0]}", "dim")
    print_text(console, _cost(audit) + ("" if verbose else "; --verbose shows everything"), "dim")


def _print_first_screen(console: Console, audit: Audit) -> None:
    """Print faults, notices, and open checks; beside a fault, not the one whether the run learns."""
    faults = audit.select(FAULT)
    for result in faults:
        _print_fault(console, result, audit)
    for fact in (fact for result in audit.results for fact in result.evidence if fact.name == "notice"):
        print_text(console, Text(f"{'notice':<{INDENT}}", "yellow") + Text(_note_text(fact)))
    for result in filter(results.is_open, audit.results):
        if faults and result.topic == "learning":
            continue
        print_text(console, Text(f"{'unknown':<{INDENT}}", "yellow") + Text(results.sentence(result)))
        for need in result.needed:
            print_text(console, f"to decide it: {need.text}", indent=INDENT)


def _print_details(console: Console, result: Result) -> None:
    """Print a result with all its lines, for --verbose."""
    console.print()
    words = (results.WORDS[result.outcome], result.probe, result.code, results.sentence(result))
    print_text(console, "  ".join(filter(None, words)), _STYLES[result.outcome])
    for line in _details(result):
        print_text(console, line, indent=4)


def _print_fault(console: Console, result: Result, audit: Audit) -> None:
    """Print a fault with at most two observations, and at most three likely causes.

    A fault without causes that is no consequence of another gets the known issue's fix.
    """
    code = result.code
    title = Text(f"{code} {result.message}".strip(), "bold red")
    console.print()
    print_text(console, Text(f"{'error':<{INDENT}}", "red") + title)
    causes = [fact for fact in result.evidence if fact.name == "cause"]
    observations = [_note_text(fact) for fact in result.evidence if fact.name != "cause"]
    for line in [*map(estimate_text, result.estimates), *observations][:_MAX_EVIDENCE]:
        print_text(console, line, "dim", indent=INDENT)
    for cause in causes[:_MAX_CAUSES]:
        print_text(console, cause.text, indent=INDENT)
    issue = catalog.load().get(code)
    if issue and not causes and not any(fact.name == "consequence_of" for fact in result.evidence):
        fix = recommended_fix(issue, frameworks=filter(None, [audit.framework]))
        step, command = first_step(fix)
        if step:
            print_text(console, f"Fix: {step}", indent=INDENT, whole=has_option(fix, step))
        if command:
            print_command(console, command)
    if code:
        print_text(console, f"More: {called_as()} explain {code}", "dim", indent=INDENT)


def _details(result: Result) -> list[str]:
    """Return the lines below a result: estimates, evidence, and missing inputs."""
    lines = [*map(estimate_text, result.estimates), *map(_note_text, result.evidence)]
    return lines + [f"to decide it: {need.text}" for need in result.needed]


def _note_text(fact: Note) -> str:
    return f"{fact.text}    # {fact.place}" if fact.place else fact.text


def estimate_text(estimate: results.Estimate) -> str:
    """Format an estimate with its interval and expected value.

    >>> estimate_text(results.Estimate("top_p", 0.9, 0.89, 0.9, 1.0))
    'top_p 0.9 (0.89 to 0.9), expected 1'
    """
    value, low, high = map(_value_text, (estimate.value, estimate.low, estimate.high))
    text = f"{results.ESTIMATES.get(estimate.name, estimate.name)} {value}"
    if estimate.low is not None and estimate.high is not None and not value == low == high:
        text += f" ({low} to {high})"
    return text if estimate.expected is None else f"{text}, expected {_value_text(estimate.expected)}"


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _cost(audit: Audit) -> str:
    """Return the audit's duration; for a live audit also its tokens and requests."""
    if audit.source != results.LIVE:
        return f"{audit.seconds:.2g} s"
    spent = f"{count_of(audit.tokens, 'token')} with the prompts, in {count_of(audit.requests, 'request')}"
    return f"{spent}, {audit.seconds:.2g} s; nothing was changed"
