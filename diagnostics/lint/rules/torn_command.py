"""Options that the command never sees: it ends before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.lint.rules.base import found
from diagnostics.lint.rules.registered import rule
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.versions import Versions
    from diagnostics.output.findings import Finding


@rule("CFG114", check="options")
def lost(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG114: options after the end of the command: a backslash is missing, or a comment stands between."""
    del versions
    gone = plan.settings.lost
    if not gone:
        return []
    return found(
        plan, "CFG114", Severity.ERROR,
        f"The command ends before {gone[0].key}: the line before it has no backslash at its very end, or a comment "
        "stands between them. The shell runs what comes after as a command of its own.",
        gone, remedy="End each line but the last with a backslash, with nothing after it and no comment between.",
    )  # fmt: skip
