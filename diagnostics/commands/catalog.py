"""Run the command `catalog`: list the codes of known issues and of checks, or check the entries."""

from __future__ import annotations

import click

from diagnostics import catalog
from diagnostics.catalog import documents
from diagnostics.cli import Command
from diagnostics.commands import catalog_check
from diagnostics.findings import FINE
from diagnostics.output import json_output


@click.command(
    cls=Command,
    examples=(
        ("catalog", "codes, kinds, titles"),
        ("catalog --check", "check every entry and its samples"),
    ),
    exit_codes={1: None, 2: "an entry is wrong", 3: None},
)
@click.option("--check", is_flag=True, help="Check every entry and its samples.")
@click.option("--format", type=click.Choice(["terminal", "json"]), default="terminal", help="Output format.")
def command(check: bool, format: str) -> int:  # noqa: A002 - the option's name
    """List the codes of known issues and of checks, or check the entries."""
    issues, checks = catalog.load(), catalog.load_checks()
    if check and (wrong := catalog_check.problems(issues, checks)):
        raise catalog.CatalogueError("\n".join(wrong))
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
