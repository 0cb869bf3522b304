"""The rules that check a run plan: functions registered by `@rule`, and entries of `declared.toml`."""

from __future__ import annotations

from diagnostics.lint.rules import (
    batches,
    declared,
    devices,
    engine_issues,
    options,
    placeholders,
    servers,
)
from diagnostics.lint.rules.registry import CHECKS, Rule, find_registration_errors, registered_rules

__all__ = [
    "RULES", "batches", "declared", "devices", "engine_issues",
    "find_registration_errors", "options", "placeholders", "registered_rules", "servers",
]  # fmt: skip

RULES: dict[str, list[Rule]] = {
    check: [rule for rule in registered_rules() if rule.check == check] for check in CHECKS
}
