"""Rules: functions from a run plan to problems, registered by `@rule`; `conflicts.toml` has those that are data."""

from __future__ import annotations

from diagnostics.lint.rules import (
    batches,
    conflicts,
    devices,
    engine_issues,
    lengths,
    memory,
    options,
    placeholders,
    sampling,
    servers,
)
from diagnostics.lint.rules.registry import CHECKS, Rule, find_registration_errors, registered_rules

__all__ = [
    "RULES", "batches", "conflicts", "devices", "engine_issues", "find_registration_errors", "lengths", "memory",
    "options", "placeholders", "registered_rules", "sampling", "servers",
]  # fmt: skip

RULES: dict[str, list[Rule]] = {
    check: [each for each in registered_rules() if each.check == check] for check in CHECKS
}
