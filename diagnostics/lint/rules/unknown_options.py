"""Options that the release at hand does not take, by the names that were read out of every release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.lint import known
from diagnostics.lint.rules.base import found
from diagnostics.lint.rules.options import GONE
from diagnostics.lint.rules.registered import rule
from diagnostics.report.findings import Severity

if TYPE_CHECKING:
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.versions import Versions
    from diagnostics.report.findings import Finding

_SHOWN = 4


@rule("CFG113", check="options")
def not_there(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG113: options that the framework's own parser refuses in this release; one finding for all of them."""
    release = versions.known.get(plan.framework)
    if not plan.settings.exact or release is None or not known.was_read(plan.framework, release):
        return []
    if plan.framework in versions.copies:
        return []  # a copy has options of its own
    taken = known.names(plan.framework, plan.role)
    told, gone = [], []
    for value in known.options_of(plan.settings):
        if value.key in GONE.get(plan.framework, {}):
            continue
        if known.lacks(plan.framework, value.key, release):
            first, last = known.span(plan.framework, value.key) or ("", "")
            told.append(f"{value.key} is known from {first} to {last}")
        elif not known.takes(value.key, taken):
            near = known.nearest(value.key, taken)
            told.append(f"{value.key} in none" + (f" (did you mean {near}?)" if near else ""))
        else:
            continue
        gone.append(value)
    if not gone:
        return []
    more = f", and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    if plan.framework == "verl":
        keys = " ".join(f"+{value.key}" for value in gone[:_SHOWN])
        detail = "Hydra refuses a key that the release's config does not have"
        remedy = f"Write the key of this release; {keys} adds one that your code reads and the config lacks."
    else:
        detail, remedy = (
            "Its parser refuses what it does not know",
            "Write the name of this release, or leave it out.",
        )
    return found(
        plan, "CFG113", Severity.ERROR,
        f"{detail}, in {plan.framework} {release}: {'; '.join(told[:_SHOWN])}{more}.", gone, remedy=remedy,
    )  # fmt: skip
