"""Lint shipped examples of frameworks that have only a TOML file in lint; compare the run plans with manual labels.

    python -m evaluation.lint.framework_examples FOLDER

`framework_examples.toml` lists the examples. FOLDER has a checkout of each repository at its commit, under the
framework's name. Exit code 1 if an example is not recognised, a value differs, or lint reports an error.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

from diagnostics.findings import Severity
from diagnostics.lint.settings_reader import read_file
from diagnostics.lint.steps import check_plans, plans_of
from diagnostics.lint.versions import Versions


def check_example(framework: str, path: Path, label: dict[str, Any]) -> list[str]:
    """Return the problems of lint's result for one example."""
    plans = plans_of(read_file(path), Versions())
    if [plan.framework for plan in plans] != [framework]:
        return [f"read as {[plan.framework for plan in plans]}"]
    values = {name: value.data for name, value in plans[0].values.items()}
    problems = [
        f"{name}: {values.get(name)}, not {wanted}"
        for name, wanted in label.items()
        if values.get(name) != wanted
    ]
    checks = check_plans(plans)
    problems += [check.reason for check in checks if check.outcome == "crashed"]
    findings = [finding for check in checks for finding in check.findings]
    return problems + [f"{f.code} {f.detail}" for f in findings if f.severity >= Severity.ERROR]


def main() -> int:
    """Check every example; return the exit code."""
    folder = Path(sys.argv[1])
    examples = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    failed = 0
    for framework, source in examples.items():
        paths = source["labelled"] | {path: {} for path in source["unlabelled"]}
        answers = {
            path: check_example(framework, folder / framework / path, label) for path, label in paths.items()
        }
        wrong = {path: problems for path, problems in answers.items() if problems}
        failed += len(wrong)
        print(f"{framework}: {len(paths) - len(wrong)} of {len(paths)} as labelled")
        for path, problems in wrong.items():
            print(f"  {path}: {'; '.join(problems)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
