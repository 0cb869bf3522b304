"""`doctor --fix-plan`: all findings made into one ordered plan. It is printed; nothing of it is ever run."""

from diagnostics.doctor.fixplan.build import fix_plan
from diagnostics.report.plans import Plan

__all__ = ["Plan", "fix_plan"]
