"""Print known issues and check codes on a terminal: the explanation of a code, or the codes that match a text.

`print_issues` prints entries, which are JSON documents of `explain`; `print_matches` prints codes that match.
`claim_text` and `edits_of` are also used for Markdown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any

from rich.console import Console
from rich.text import Text

from diagnostics import called_as
from diagnostics.findings import EVIDENCE_LEVELS
from diagnostics.fixes import SEVERAL_CASES, one_line
from diagnostics.frameworks import DISPLAY_NAMES
from diagnostics.output.redact import mask
from diagnostics.output.terminal import print_text

Explained = tuple[Mapping[str, Any], list[str]]
"""An entry, as the JSON document of `explain`, and the first lines of its recommended fix; empty for a check code."""
_MAX_QUERY = 200
"""Most characters of the user's text that are repeated."""


def print_issues(console: Console, explained: Iterable[Explained]) -> None:
    """Print entries one after the other, with a blank line between."""
    for position, (document, fix_lines) in enumerate(explained):
        if position:
            print_text(console, "\n")
        _print_issue(console, document, fix_lines)


def _print_issue(console: Console, document: Mapping[str, Any], fix_lines: list[str]) -> None:
    """Print a known issue: title, fix, cause, affected releases, log patterns, triggers, mitigations, references.

    Of a check code, print title and cause. Search phrases are printed for issues and check codes.
    """
    print_text(console, f"{document['code']}  {document['title']}", "bold")
    if document["kind"] == "check":
        print_text(console, "\n" + document["cause"])
        _section(console, "Reported by audit as", [", ".join(document["audit"])])
        _section(
            console, "Likely causes, the first to try first", [_cause_text(it) for it in document["causes"]]
        )
        _print_search_phrases(console, document)
        return
    affected = ", ".join(DISPLAY_NAMES[name] for name in document["frameworks"])
    print_text(console, f"{document['kind']}; {document['family']}; affects {affected}", "dim")
    for number, line in enumerate(fix_lines):
        print_text(console, line if number else f"Fix: {line}", "bold", whole=True)
    paragraphs = [one_line(item) for item in document["detail"].split("\n\n") if item]
    _section(console, "Why", [one_line(document["cause"]), *paragraphs])
    _section(console, "Affected", [claim_text(claim) for claim in document["affected"]])
    if document["signature"]:
        _section(console, "In a log", [f"/{entry}/" for entry in document["signature"]["any"]])
    _section(console, "Reported by audit as", [", ".join(document.get("audit") or ())])
    _section(console, "Triggers", [_trigger_text(entry) for entry in document["triggers"]])
    print_text(console, "\nMitigations", "bold")
    by_name = {mitigation["name"]: mitigation for mitigation in document["mitigations"]}
    for name in (*document["offered"], *document["does_not_help"]):
        _print_mitigation(console, by_name[name])
    _print_search_phrases(console, document)
    _section(console, "References", [f"{entry['ref']}: {entry['about']}" for entry in document["references"]])


def print_matches(console: Console, text: str, found_by: str, explained: Sequence[Explained]) -> None:
    """Print the codes that match a text; for each the title, the first line of the fix if there is one, and a command.

    Args:
        console: Console to print on.
        text: The text on the command line.
        found_by: `printed` if a signature matched, `near` if only words are similar.
        explained: Document and first lines of the fix of each code.
    """
    result = "no exact match; nearest by words"
    if found_by == "printed":
        result = f"printed by {', '.join(document['code'] for document, _ in explained)}"
    print_text(console, f"{shorten(mask(text), _MAX_QUERY, placeholder=' …')}: {result}", "bold", whole=True)
    for document, fix_lines in explained:
        code = document["code"]
        print_text(console, f"\n{code}  {document['title']}  ({document['kind']})", "bold", whole=True)
        # `explain CODE` lists the edit for each framework and, if only words are similar, the other cases.
        lines = fix_lines
        if SEVERAL_CASES not in lines or found_by != "printed":
            lines = [line.removeprefix("- ").removesuffix(":") for line in lines if line != SEVERAL_CASES][:1]
        for number, line in enumerate(lines):
            print_text(console, line if number else f"Fix: {line}", indent=8, whole=True)
        for item in document.get("causes", ())[:1]:
            print_text(console, f"First likely cause: {_cause_text(item)}", indent=8, whole=True)
        print_text(console, f"More: {called_as()} explain {code}", "dim", indent=8, whole=True)


def _cause_text(item: Mapping[str, Any]) -> str:
    """Return a likely cause with the option to change in each framework."""
    options = item["option"].items()
    texts = [f"{DISPLAY_NAMES[name]}: {text}" if name != "any" else text for name, text in options]
    return f"{item['cause']} ({'; '.join(texts)})" if texts else str(item["cause"])


def claim_text(claim: Mapping[str, Any]) -> str:
    """Return one claim about affected releases as a line, with its evidence and source."""
    examined = f", examined up to {claim['looked_to']}" if claim["looked_to"] else ""
    releases = claim["versions"] or ", ".join(claim["releases"]) or "every release"
    evidence = EVIDENCE_LEVELS[claim["evidence"]]
    return f"{claim['package']} {releases} ({evidence}{examined}): {claim['source']}"


def _trigger_text(trigger: Mapping[str, Any]) -> str:
    versions = f" ({trigger['versions']})" if trigger["versions"] else ""
    return f"{trigger['name']}{versions}: {trigger['about']}"


def _mitigation_result(mitigation: Mapping[str, Any]) -> tuple[str, str]:
    """Return the test result of a mitigation as text, and a style for it."""
    if mitigation["evidence"] != "executed":
        return f"not tested ({EVIDENCE_LEVELS[mitigation['evidence']]})", "yellow"
    if not mitigation["fails"]:
        return "verified", "green"
    if mitigation["helps"]:
        return "verified for some triggers, does not help with others", "yellow"
    return "does not help (tested)", "red"


def edits_of(mitigation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (framework, edit) of a mitigation; if an edit is only for some releases, these follow the framework."""
    bounds = mitigation["bounds"] or [{"versions": ""}] * len(mitigation["edits"])
    for (name, edit), bound in zip(mitigation["edits"], bounds, strict=True):
        yield f"{DISPLAY_NAMES[name]} {bound['versions']}".rstrip(), edit


def _section(console: Console, title: str, lines: list[str]) -> None:
    if any(lines):
        print_text(console, f"\n{title}", "bold")
        for line in lines:
            print_text(console, line, indent=2)


def _print_search_phrases(console: Console, document: Mapping[str, Any]) -> None:
    _section(console, "Symptoms", [f"- {phrase}" for phrase in document.get("symptoms") or ()])
    _section(console, "Also called", [f"- {phrase}" for phrase in document.get("aliases") or ()])


def _print_mitigation(console: Console, mitigation: Mapping[str, Any]) -> None:
    result, style = _mitigation_result(mitigation)
    print_text(console, Text(f"  {mitigation['name']}  ", "bold") + Text(result, style))
    lines = [": ".join(filter(None, (mitigation["when"], mitigation["about"]))), mitigation["note"]]
    lines += [f"helps against: {', '.join(mitigation['helps'])}"] if mitigation["helps"] else []
    lines += [f"does not help against: {', '.join(mitigation['fails'])}"] if mitigation["fails"] else []
    edits = [f"{framework}: {edit}" for framework, edit in edits_of(mitigation)]
    for line in filter(None, [*lines, *edits, f"cost: {mitigation['cost']}"]):
        print_text(console, line, indent=6, whole=line in edits)
