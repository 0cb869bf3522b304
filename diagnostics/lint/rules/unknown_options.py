"""Options that the release at hand does not take, by the names that were read out of every release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.frameworks import SHOWN, parser_of
from diagnostics.lint import known
from diagnostics.lint.rules.base import found
from diagnostics.lint.rules.options import GONE, passed_over
from diagnostics.lint.rules.registered import rule
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.values import Value
    from diagnostics.lint.versions import Versions
    from diagnostics.output.findings import Finding

_SHOWN = 4


@rule("CFG113", check="options")
def not_there(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG113: options that the framework's own parser refuses in this release; one finding for all of them."""
    release = versions.known.get(plan.framework)
    if plan.framework in versions.copies:
        return _copied(plan, versions.copies[plan.framework])
    if not plan.settings.exact or release is None or not known.was_read(plan.framework, release):
        return []
    taken = known.names(plan.framework, plan.role)
    told, gone = [], []
    unread = {value.key for value in known.unread(plan.settings, plan.framework, taken)[1]}
    for value in known.options_of(plan.settings):
        if (
            value.key in unread
            or value.key in GONE.get(plan.framework, {})
            or passed_over(plan, value, versions)
        ):
            continue
        if known.lacks(plan.framework, value.key, release):
            first, last = known.span(plan.framework, value.key) or ("", "")
            told.append(f"{value.key} is known from {first} to {last}")
        elif not known.takes(value.key, taken, free=plan.framework != "verl"):
            near = known.nearest(value.key, taken) if len(told) < _SHOWN else ""
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
        detail = f"Its parser {'passes over' if _ignored(plan) else 'refuses'} what it does not know"
        remedy = "Write the name of this release, or leave it out."
    return found(
        plan, "CFG113", Severity.WARNING if _ignored(plan) else Severity.ERROR,
        f"{detail}, in {plan.framework} {release}: {'; '.join(told[:_SHOWN])}{more}.", gone, remedy=remedy,
    )  # fmt: skip


def _ignored(plan: RunPlan) -> bool:
    """Whether ms-swift was told to pass over, with a line in its log, what it does not know."""
    told = plan.settings.items.get("ignore_args_error")
    return told is not None and told.data is not False


def _copied(plan: RunPlan, folder: str) -> list[Finding]:
    """The same of a project's own copy, by the copy's own files."""
    taken = known.of_copy(plan.settings, folder) if plan.settings.exact else {}
    gone = (
        [value for value in known.options_of(plan.settings) if not known.takes(value.key, taken)]
        if taken
        else []
    )
    if not gone:
        return []
    told = [(value.key, known.nearest(value.key, taken)) for value in gone[:_SHOWN]]
    shown = "; ".join(key + (f" (did you mean {near}?)" if near else "") for key, near in told)
    more = f", and {len(gone) - _SHOWN} more" if len(gone) > _SHOWN else ""
    adds = f"; +{gone[0].key} adds one that your code reads" if plan.framework == "verl" else ""
    does = "passes over" if _ignored(plan) else "refuses"
    return found(
        plan, "CFG113", Severity.WARNING if _ignored(plan) else Severity.ERROR,
        f"The project's own copy of {SHOWN[plan.framework]}, in {folder}, does not know {shown}{more}, and {does} "
        "what it does not know.", gone, remedy=f"Write the name that the copy has, or leave it out{adds}.",
    )  # fmt: skip


@rule("CFG121", check="options")
def added_again(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG121: a `+` before a key that the config of a project's own copy has, with a value."""
    folder = versions.copies.get(plan.framework, "")
    if not folder or not plan.settings.exact or parser_of(plan.framework) != "hydra":
        return []
    has = known.of_copy(plan.settings, folder)
    there = [value for value in known.added(plan.settings) if _holds(has.get(value.key))]
    if not there:
        return []
    shown = ", ".join(value.key for value in there[:_SHOWN])
    more = f", and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
    return found(
        plan, "CFG121", Severity.ERROR,
        f"The config of the project's own copy of {SHOWN[plan.framework]}, in {folder}, has {shown}{more} already, and "
        "Hydra adds no key that is there.", there, remedy=f"Write {there[0].key} without the +, or with ++.",
    )  # fmt: skip


def _holds(value: Value | None) -> bool:
    """Tells whether a config's value is one that `+` does not replace; of what refers to another nobody knows it."""
    if value is None or not value.known or value.data is None:
        return False
    return value.data != "???" and "${" not in str(value.data)
