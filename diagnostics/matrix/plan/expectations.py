"""Reads what `matrix.toml` expects of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.plan.verdicts import Expectation, Outcome

if TYPE_CHECKING:
    from diagnostics.tables import Table


def expectation_of(table: Table) -> Expectation:
    """Reads one expectation; the caller closes the table.

    Raises:
        TableError: naming the value and what was expected.
    """
    allowed = {"fail", "unresolvable", "not_run"}
    outcome = table.take("outcome", str, required=True)
    if outcome not in allowed:
        raise table.refuse("outcome", f"one of {', '.join(sorted(allowed))}; a pass needs no entry")
    return Expectation(
        outcome=Outcome(outcome),
        reason=table.take("reason", str, required=True),
        codes=table.strings("codes"),
        shows=table.strings("shows"),
        link=table.take("link", str, ""),
        of_machine=table.take("of_machine", bool, default=False),
    )
