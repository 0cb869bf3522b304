"""Rule: an option's value is one of the choices that its release declares."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from diagnostics.api_index.options import choices
from diagnostics.api_index.query import Release
from diagnostics.lint import option_index
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.run_plan import RunPlan

_MAX_SHOWN = 8
_UNSET = {"", "None", "none", "null"}


@rule("CFG113", check="options", frameworks=("trl", "ms-swift", "openrlhf"))
def values_are_among_the_choices(plan: RunPlan) -> Iterator[Problem]:
    """The framework's own parser refuses a value that is not among the choices of its option."""
    release = plan.versions.known.get(plan.framework)
    if release is None or plan.own_copy or not plan.settings.framework_parser:
        return
    for value in option_index.set_options(plan.settings):
        if not value.known or isinstance(value.data, bool) or not isinstance(value.data, str | int | float):
            continue
        accepted = choices(Release(plan.framework, str(release)), value.key)
        if not accepted or str(value.data) in {*accepted, *_UNSET}:
            continue
        similar = difflib.get_close_matches(str(value.data), accepted, 1)
        listed = ", ".join(accepted[:_MAX_SHOWN]) + (", …" if len(accepted) > _MAX_SHOWN else "")
        yield Problem(
            f"{plan.framework} {release} refuses {value.key}={value.data}: the choices are {listed}.",
            [value],
            fix=f"Use {value.key}={similar[0]}." if similar else f"Use one of {listed}.",
        )
