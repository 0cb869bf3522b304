"""Rule that reports known issues as warnings: [[config]] tables of the catalog list the settings that lead to an issue.

Tables that another rule replaces, and those of retired issues, are left out.
"""

from collections.abc import Iterator

from diagnostics import catalog
from diagnostics.findings import Severity
from diagnostics.lint.rules.declared import is_one_of
from diagnostics.lint.rules.registry import Problem, codes_without_table, rule
from diagnostics.lint.run_plan import RunPlan
from diagnostics.versions import AFFECTED, UNKNOWN, UNREADABLE, affects, issue_package


@rule(check="catalogue", warnings_only=True)
def no_known_issue_is_configured(plan: RunPlan) -> Iterator[Problem]:
    """A known issue whose [[config]] table matches the run's known settings is reported, if the release is affected.

    It is reported as a hypothesis if the release is unknown or unreadable.
    """
    for entry in catalog.issues_with_config(codes_without_table()):
        for table in () if entry.status == "retired" else entry.config:
            values = [(plan.values.get(name), expected) for name, expected in table.when]
            contradicted = any(
                value is None or (value.known and not is_one_of(value.data, [expected]))
                for value, expected in values
            )
            # `get` records an unknown value, so it reads only if no known value contradicts the table.
            if contradicted or any(plan.get(name) is None for name, _ in table.when):
                continue
            answer = affects(entry, plan.releases, plan.framework).answer
            package = issue_package(entry, plan.framework)
            ranges = " or ".join(
                it.versions for it in entry.affected if it.package == package and it.versions
            )
            ranges = f" with {package} {ranges}" if ranges and answer in {UNKNOWN, UNREADABLE} else ""
            yield Problem(
                f"{entry.title}{ranges}: {table.about}.",
                plan.evidence(*(name for name, _ in table.when if name != "framework")),
                code=entry.code,
                applies=None if answer in {UNKNOWN, UNREADABLE} else answer == AFFECTED,
                package=package,
                severity=Severity.WARNING,
                fix=f"Find out the release of {package}; other releases need no change." if ranges else "",
            )
