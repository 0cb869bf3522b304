"""Define `Rule` and `Problem`, and register rules.

`@rule` registers a function with its codes, its group, and the runs that it checks. `codes_without_table` returns the
codes for which rules replace the [[config]] tables of the catalog, and `find_table_conflicts` finds tables whose
`by_rule` does not agree.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from diagnostics.catalog.model import Issue
from diagnostics.findings import Severity
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.values import Value

# Groups of rules, in the order of the report.
CHECKS = (
    "mode and resources", "devices", "batches and groups", "lengths", "memory and sleep", "servers and ports",
    "sampling", "options", "engine", "catalogue", "trainer with server", "checks of the framework",
)  # fmt: skip
# Frameworks with releases in the index.
INDEXED = tuple(name for name in FRAMEWORKS if name != "own")


@dataclass(frozen=True)
class Problem:
    """A fault that a rule found in a run.

    Attributes:
        message: The fault, in a sentence with this run's numbers.
        values: The settings from which the fault follows; the location of the first is shown.
        fix: The change that removes the fault, as a sentence; empty if there is none.
        severity: Severity of the finding; it becomes at most a warning if the release is unknown, or if something
            outside the files may replace one of `values`.
        code: Code of the finding; empty for the first code of the rule.
        applies: Whether the release is affected; None if the release is not known.
        package: Package to whose release `applies` refers; empty for the framework.
        fix_is_complete: Whether `fix` is enough, so that the mitigations of the code's entry are not needed.
        triggers: Triggers of the entry that apply to this run.
        known_by: Evidence level; empty for that of the code's entry.
    """

    message: str
    values: Iterable[Value | None]
    fix: str = ""
    severity: Severity = Severity.ERROR
    code: str = ""
    applies: bool | None = True
    package: str = ""
    fix_is_complete: bool = False
    triggers: tuple[str, ...] = ()
    known_by: str = ""


CheckFunction = Callable[..., Iterator[Problem]]
Function = TypeVar("Function", bound=CheckFunction)


@dataclass(frozen=True)
class Rule:
    """A function that yields the problems of a run plan, with the runs that it checks.

    Attributes:
        name: Name of the rule; its test cases have the same name.
        codes: Codes of the rule's findings; empty for the rule that checks the catalog's [[config]] tables.
        check: Group of rules to which the rule belongs.
        function: Function that yields the problems of a run plan, or of a pair of run plans.
        frameworks: Frameworks that the rule checks; empty for all.
        role: `train`, `serve`, empty for both, or `any` for runs of other methods, too.
        scope: `run`, or `pair` for a trainer and its server.
        keeps_config_tables: Whether the [[config]] tables of the codes' entries are checked, too; otherwise the rule
            replaces them.
        warnings_only: Whether the rule reports only warnings, so that an unknown value cannot hide an error.
    """

    name: str
    codes: tuple[str, ...]
    check: str
    function: CheckFunction
    frameworks: tuple[str, ...] = ()
    role: str = ""
    scope: str = "run"
    keeps_config_tables: bool = False
    warnings_only: bool = False

    def applies_to(self, plan: RunPlan) -> bool:
        """Return whether the rule checks a run, by framework and role; a rule about pairs checks all."""
        roles = {"any", plan.role} if plan.role == "other" else {"any", plan.role, ""}
        fits = self.role in roles and (not self.frameworks or plan.framework in self.frameworks)
        return fits or self.scope != "run"


_rules: list[Rule] = []


def add_rule(rule: Rule) -> None:
    """Register a rule; raise ValueError if CHECKS does not have its group."""
    if rule.check not in CHECKS:
        raise ValueError(
            f"{rule.name}: there is no check {rule.check!r}: expected one of {', '.join(CHECKS)}"
        )
    _rules.append(rule)


def rule(*codes: str, check: str, **options: Any) -> Callable[[Function], Function]:
    """Register the decorated function as a rule; the options are the attributes of `Rule`."""

    def register(function: Function) -> Function:
        add_rule(Rule(function.__name__, codes, check, function, **options))
        return function

    return register


def registered_rules() -> list[Rule]:
    """Return all rules, in the order of their registration."""
    return list(_rules)


def codes_without_table() -> set[str]:
    """Return the codes whose [[config]] tables are not checked, because rules replace them."""
    return {code for entry in _rules if not entry.keeps_config_tables for code in entry.codes}


def find_table_conflicts(entries: Iterable[Issue]) -> list[str]:
    """Return a line for each [[config]] table whose `by_rule` is wrong; it says whether a rule replaces the table."""
    replaced = codes_without_table()
    errors = []
    for entry in entries:
        for table in entry.config:
            name = f"{entry.code}: [[config]] {table.about!r}"
            if table.has_own_rule and entry.code not in replaced:
                errors.append(f"{name}: no rule replaces it: leave `by_rule` out")
            elif not table.has_own_rule and entry.code in replaced:
                advice = "extend the rule, and set `by_rule = true`"
                errors.append(f"{name}: a rule replaces this code's tables: {advice}")
    return errors
