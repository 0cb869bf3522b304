"""Run the command `explain`: print the entries of codes, or list the codes that match a log line or a description.

A match is listed with its title and the first line of its fix; JSON has the entries in both cases. An unknown code, and
a text that no code fits, raise CatalogError (exit code 2).
"""

import re

import click

from diagnostics import catalog
from diagnostics.catalog import documents, mitigation_ranking, model
from diagnostics.cli import Command
from diagnostics.findings import FINE
from diagnostics.fixes import first_lines
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.output import issue_text, json_output, sanitize
from diagnostics.output.redact import truncate

_CODE = re.compile(r"[A-Za-z]{3}\d{1,4}")
_SCHEMA = "grpo-doctor.explained.v1"


@click.command(
    cls=Command,
    examples=(
        ("explain SCH001 SCH002", "one or more codes"),
        ("explain 'assert len(self._async_stopped) == 0'", "a line of a log"),
        ("explain loss is nan", "a description, also in Chinese; `catalog` lists all codes"),
    ),
    exit_codes={0: "explained", 1: None, 2: "unknown code, or no match", 3: None},
)
@click.argument("words", nargs=-1, required=True, metavar="CODE|WORDS...")
@click.option("--format", type=click.Choice(["terminal", "json"]), default="terminal", help="Output format.")
def command(words: tuple[str, ...], format: str) -> int:  # noqa: A002
    """Explain a code: its meaning, cause and fix. Or find the code that matches a log line or a description."""
    is_code = [bool(_CODE.fullmatch(word)) or word in model.FAMILIES for word in words]
    codes, found_by = [word.upper() for word, code in zip(words, is_code, strict=True) if code], ""
    if len(codes) < len(words):
        codes, found_by = find_codes(" ".join(words))
    text = " ".join(words) if found_by else ""
    explained = [explain(code, text) for code in dict.fromkeys(codes)]
    if format == "json":
        all_documents = [document for document, _ in explained]
        several = {"schema": _SCHEMA, "found_by": found_by, "explained": all_documents}
        print(json_output.dump(all_documents[0] if len(words) == 1 and not found_by else several))
    elif found_by:
        issue_text.print_matches(sanitize.console(), " ".join(words), found_by, explained)
    else:
        issue_text.print_issues(sanitize.console(), explained)
    return FINE


def explain(code: str, text: str = "") -> issue_text.Explained:
    """Return the document of a code, and the first lines of the recommended fix; none for a check code.

    Args:
        code: The code.
        text: The text that it was found by, which may name frameworks and show the case.

    Raises:
        CatalogError: There is no such code.
    """
    if check := catalog.load_checks().get(code):
        return documents.check_document(check), []
    issue = catalog.find(code)
    named = [name for name in FRAMEWORKS if re.search(rf"(?i)\b{name}\b", text)]
    fix = mitigation_ranking.recommended_fix(issue, frameworks=named, failure=[text])
    return documents.issue_document(issue, fix), first_lines(fix, any_framework=not named)


def find_codes(text: str) -> tuple[list[str], str]:
    """Return the codes for a text, and how they were found: `printed` (by a signature) or `near` (by similar words).

    Raises:
        CatalogError: No code fits the text, or the text is a code that does not exist.
    """
    # Imported here, because an explanation of a code does not need `triage`.
    from diagnostics.commands import code_search

    matching, similar = code_search.search_codes(text)
    if matching:
        return matching, "printed"
    if not similar and re.fullmatch(r"\w*\d\w*", text):
        catalog.find(text)  # its error names similar codes
    if not similar:
        raise catalog.CatalogError(
            f"no known issue matches {truncate(text, 80)!r}; `catalog` lists all codes, "
            "`triage LOG` reads a whole log, `audit RUN` checks a run's metrics"
        )
    return similar, "near"
