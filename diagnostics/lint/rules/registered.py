"""How a rule says that it is one: by a decorator with the codes it finds and the check it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from diagnostics.catalog.model import Issue
    from diagnostics.output.findings import Finding

    Judge = TypeVar("Judge", bound=Callable[[Any, Any], list[Finding]])

# In the order in which they are told. A rule belongs to one of them.
CHECKS = (
    "mode and resources",
    "devices",
    "batches and groups",
    "lengths",
    "memory and sleep",
    "servers and ports",
    "sampling",
    "options",
    "engine",
    "catalogue",
    "trainer beside server",
)


@dataclass(frozen=True)
class LintRule:
    """A function from a run plan, or from all of them, and the releases to findings.

    Args:
        codes: what it may find; none for the rule that finds whatever entry has a table.
        check: under which its findings are told.
        together: it sees all plans together, a trainer and the server it uses; else one at a time.
        beside_table: the [[config]] of its entries is judged as well; else the rule stands in its place.
        warns: it never finds an error, so that none can hide in what it could not judge.
        judge: the function.
    """

    codes: tuple[str, ...]
    check: str
    together: bool
    beside_table: bool
    warns: bool
    judge: Callable[[Any, Any], list[Finding]]

    @property
    def place(self) -> tuple[str, int]:
        """Its file and line: rules of one check are asked in this order."""
        code = self.judge.__code__
        return code.co_filename, code.co_firstlineno


_registered: list[LintRule] = []


def rule(
    *codes: str, check: str, together: bool = False, beside_table: bool = False, warns: bool = False
) -> Callable[[Judge], Judge]:
    """Registers the function below it as a rule; the words are those of `LintRule`."""

    def register(judge: Judge) -> Judge:
        _registered.append(LintRule(codes, check, together, beside_table, warns, judge))
        return judge

    return register


def rules() -> list[LintRule]:
    """All rules of the files that were imported so far, in order."""
    return sorted(_registered, key=lambda each: each.place)


def replaced() -> set[str]:
    """Codes whose rule says more than the table of values in their entry can, and stands in its place."""
    return {code for each in _registered if not each.beside_table for code in each.codes}


def problems(known: Container[str], entries: Iterable[Issue] = ()) -> list[str]:
    """What is wrong with the rules' registrations, each with its place, and tables of entries that nobody reads.

    Args:
        known: codes that have an entry.
        entries: those of known issues.
    """
    found = _unread(entries)
    for each in rules():
        path, line = each.place
        if each.check not in CHECKS:
            found.append(
                f"{path}:{line}: there is no check {each.check!r}: expected one of {', '.join(CHECKS)}"
            )
        found += [f"{path}:{line}: the code {code} has no entry" for code in each.codes if code not in known]
    return found


def _unread(entries: Iterable[Issue]) -> list[str]:
    """A [[config]] that is judged neither by itself nor by a rule, one line each."""
    own = replaced()
    found = []
    for entry in entries:
        for table in entry.config:
            if table.by_rule == (entry.code in own):
                continue
            found.append(
                f"{entry.code}: [[config]] {table.about!r}: no rule stands in its place: leave `by_rule` out"
                if table.by_rule
                else f"{entry.code}: [[config]] {table.about!r}: a rule stands in the place of this code's tables: "
                "teach the rule, and say `by_rule = true`"
            )
    return found
