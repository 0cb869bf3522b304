"""The rules that check run plans: functions registered by `@rule`, and entries of `declared.toml`."""

# Importing these modules registers their rules.
from diagnostics.lint.rules import (  # noqa: F401
    batches,
    declared,
    devices,
    guards,
    known_issues,
    options,
    placeholders,
    servers,
)
from diagnostics.lint.rules.registry import CHECKS, Rule, registered_rules

RULES: dict[str, list[Rule]] = {
    check: [rule for rule in registered_rules() if rule.check == check] for check in CHECKS
}
"""Rules by group, in the order of the report."""
