"""Run the command `catalog`: list the codes of known issues and of checks, as text or JSON.

With `--check` it looks for errors in the known issues' entries: patterns, samples, codes that signatures confirm, and
`[[config]]` tables that conflict with a lint rule. Errors raise CatalogError, so the exit code is 2. Without errors it
prints the number of entries, or with `--format json` the list.
"""

from collections.abc import Mapping
from pathlib import Path

import click

from diagnostics import catalog
from diagnostics.catalog import documents, signatures
from diagnostics.catalog.model import Issue
from diagnostics.cli import Command
from diagnostics.commands.explain import find_codes
from diagnostics.findings import FINE
from diagnostics.lint.rules.registry import find_table_conflicts
from diagnostics.output import json_output

ROOT = Path(__file__).resolve().parents[2]


@click.command(
    cls=Command,
    examples=(
        ("catalog", "codes, kinds, titles"),
        ("catalog search garbled output", "the entries nearest to a symptom, best first"),
        ("catalog --check", "check every entry and its samples"),
    ),
    exit_codes={1: None, 2: "an entry is wrong, or none matches", 3: None},
)
@click.argument("words", nargs=-1, metavar="[search WORDS...]")
@click.option("--check", is_flag=True, help="Check every entry and its samples.")
@click.option("--format", type=click.Choice(["terminal", "json"]), default="terminal", help="Output format.")
def command(words: tuple[str, ...], check: bool, format: str) -> int:  # noqa: A002 - the option's name
    """List the codes of known issues and of checks, those nearest to a symptom, or check the entries."""
    issues, checks = catalog.load(), catalog.load_checks()
    if words:
        if check or not (text := " ".join(words[1:] if words[0] == "search" else words)):
            raise click.UsageError("search: expected words, without --check")
        codes, _ = find_codes(text)
        issues = {code: issues[code] for code in codes if code in issues}
        checks = {code: checks[code] for code in codes if code in checks}
    if check and (problems := find_problems(issues)):
        raise catalog.CatalogError("\n".join(problems))
    if format == "json":
        print(json_output.dump(documents.catalog_document(issues.values(), checks.values())))
        return FINE
    if check:
        print(f"{len(issues)} entries, all samples match as they should")
        return FINE
    for entry in issues.values():
        print(f"{entry.code}  {entry.kind:<7} {entry.title}")
    for check_code in checks.values():
        print(f"{check_code.code}  {documents.CHECK:<7} {check_code.title}")
    return FINE


def find_problems(issues: Mapping[str, Issue]) -> list[str]:
    """Return the errors that involve several entries or a lint rule, such as a sample that two entries match.

    Raises:
        CatalogError: The first entry with a wrong pattern, or with samples that its patterns do not match as declared.
    """
    for issue in issues.values():
        signatures.check(issue)
    messages = signatures.ambiguous_samples(issues.values())
    for issue in issues.values():
        for code in issue.signature.confirms if issue.signature else ():
            if code not in issues or issues[code].signature is None:
                expected = f"expected codes of known issues with a signature, not {code}"
                messages.append(f"{catalog.FOLDER / issue.code}.toml: signature.confirms: {expected}")
    messages += find_table_conflicts(issues.values())
    return [message.replace(f"{ROOT}/", "") for message in messages]
