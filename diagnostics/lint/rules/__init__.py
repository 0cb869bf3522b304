"""The rules of `lint`: pure functions from a run plan and the releases to findings.

A rule is a function under `@rule` in a file of this folder; nothing else has to name it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from diagnostics.lint.rules.registered import CHECKS, LintRule, problems, rules

for _path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    import_module(f"{__name__}.{_path.stem}")

__all__ = ["RULES", "problems"]

RULES: dict[str, list[LintRule]] = {
    check: [rule for rule in rules() if rule.check == check] for check in CHECKS
}
