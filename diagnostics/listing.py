"""The command `catalogue`: the known issues, and whether their entries are as they should be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from diagnostics.output.findings import FINE

if TYPE_CHECKING:
    import argparse


def add(commands: Any) -> None:
    """Adds the command to a parser's commands."""
    parser: argparse.ArgumentParser = commands.add_parser("catalogue", help="the known issues")
    parser.add_argument(
        "--check",
        nargs="*",
        metavar="CODE",
        help="check every entry and its samples; of these codes, tell all that concerns them",
    )
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit code.

    Raises:
        CatalogueError: An entry can't be used.
    """
    from diagnostics import catalog

    issues, checks = catalog.load(), catalog.load_checks()
    codes = [code.upper() for code in options.check or ()]
    for code in codes:
        _ = catalog.is_check(code) or catalog.find(code)
    told = {}
    if options.check is not None:
        from diagnostics import checking

        if wrong := checking.problems(issues, checks):
            raise catalog.CatalogueError("\n".join(wrong))
        told = {code: checking.concerns(code) for code in codes}
    if options.format == "json":
        from diagnostics.catalog import documents

        document = documents.listing(issues.values(), checks.values())
        document |= (
            {"concerns": {code: {one.name: one.told for one in told[code]} for code in told}} if told else {}
        )
        print(json.dumps(document, indent=1, ensure_ascii=False))
        return FINE
    for code, lines in told.items():
        print(f"{code}  {(issues.get(code) or checks[code]).title}")
        for one in lines:
            print(
                f"  {one.name:<11} {', '.join(one.told) or f'none: {one.wanted}' * bool(one.wanted) or '-'}"
            )
    for entry in () if told else issues.values():
        print(f"{entry.code}  {entry.kind:<7} {entry.title}")
    if options.check is not None:
        print(f"{len(issues)} entries, all samples as they should be")
    return FINE
