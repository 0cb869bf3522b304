"""The command `versions`: which releases of vLLM and TRL ran together, from the published table, offline."""

from __future__ import annotations

from typing import Any

import click

from diagnostics import UserError, compat_table
from diagnostics.cli import Command
from diagnostics.findings import FINE, INCOMPLETE
from diagnostics.output import json_output, pairs, sanitize
from diagnostics.versions import is_release


class ReleaseType(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """A release such as 0.10 or 0.10.2."""

    name = "RELEASE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse a text that is no release."""
        if not is_release(value):
            self.fail(f"{value!r}: expected a release, such as 0.10 or 0.10.2", param, ctx)
        return str(value)


@click.command(
    cls=Command,
    examples=(
        ("versions", "the recommended pair, and the result of six pairs"),
        ("versions --vllm 0.10", "which TRL to install with your vLLM"),
        ("versions --trl 1.16.0 --format json", "for a program"),
    ),
    exit_codes={0: "a pair of these releases ran", 1: None, 3: "no pair of these releases was run"},
)
@click.option("--vllm", type=ReleaseType(), help="Only pairs with this vLLM.")
@click.option("--trl", type=ReleaseType(), help="Only pairs with this TRL.")
@click.option("--all", "every", is_flag=True, help="Show every pair that was tried.")
@click.option("--format", type=click.Choice(["terminal", "json"]), default="terminal", help="Output format.")
def command(vllm: str | None, trl: str | None, every: bool, format: str) -> int:  # noqa: A002 - the option's name
    """Show which releases of vLLM and TRL ran together, and which pair to install."""
    published = compat_table.load()
    if published.problem:
        raise UserError(f"versions: {published.problem}")
    tried, expected = pairs.tried(published.cells), (vllm or "", trl or "")
    if format == "json":
        print(json_output.dump(pairs.document(tried, published, *expected)))
    else:
        pairs.render(sanitize.console(), tried, published, expected, every=every)
    return FINE if pairs.best(pairs.matching_pairs(tried, *expected)) else INCOMPLETE
