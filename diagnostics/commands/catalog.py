"""Run the command `catalog`: list the known issues, or check their entries."""

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
        ("catalog --check SCH001", "and list what is recorded about a code"),
    ),
    exit_codes={1: None, 2: "an entry that cannot be used", 3: None},
)
@click.option(
    "--check", is_flag=True, help="Check every entry and its samples. With CODE: also list all its records."
)
@click.option("--format", type=click.Choice(["terminal", "json"]), default="terminal", help="Output format.")
@click.argument("codes", nargs=-1, metavar="[CODE]...")
def command(check: bool, format: str, codes: tuple[str, ...]) -> int:  # noqa: A002 - the option's name
    """List the known issues, or check their entries."""
    issues, checks = catalog.load(), catalog.load_checks()
    if codes and not check:
        raise click.UsageError("CODE is for --check; explain CODE explains it")
    names = [code.upper() for code in codes]
    for code in names:
        _ = catalog.is_check(code) or catalog.find(code)
    if check and (wrong := catalog_check.problems(issues, checks)):
        raise catalog.CatalogueError("\n".join(wrong))
    records = {code: catalog_check.code_overview(code) for code in names}
    if format == "json":
        document = documents.listing(issues.values(), checks.values())
        if records:
            document["concerns"] = {
                code: {record.name: record.entries for record in result} for code, result in records.items()
            }
        print(json_output.dump(document))
        return FINE
    for code, result in records.items():
        print(f"{code}  {(issues.get(code) or checks[code]).title}")
        for record in result:
            missing = f"none: {record.request}" if record.request else "-"
            print(f"  {record.name:<11} {', '.join(record.entries) or missing}")
    for entry in () if records else issues.values():
        print(f"{entry.code}  {entry.kind:<7} {entry.title}")
    if check:
        print(f"{len(issues)} entries, all samples match as they should")
    return FINE
