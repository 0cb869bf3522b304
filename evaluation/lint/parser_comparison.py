"""Compare lint's errors about single options with the verdicts of the frameworks' own parsers.

    python -m evaluation.lint.parser_comparison CASES.json... [--show 5]

CASES come from `parser_cases.py`, which needs the framework. A case counts as refused by lint if lint reports
CFG113 or CFG121 as an error. `framework_comparison.py` measures the rules about relations between options.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from packaging.version import Version

from diagnostics.findings import Severity
from diagnostics.lint.settings_reader import read_command_line
from diagnostics.lint.steps import check_plans, plans_of
from diagnostics.lint.versions import Versions

COMMANDS = {
    "trl": ["trl", "grpo"],
    "ms-swift": ["swift", "rlhf", "--rlhf_type", "grpo"],
    "openrlhf": ["python3", "-m", "openrlhf.cli.train_ppo_ray"],
    "verl": ["python3", "-m", "verl.trainer.main_ppo"],
    "vllm": ["vllm", "serve", "some/model"],
}


def option_errors(framework: str, version: str, words: list[str]) -> list[str]:
    """Return lint's errors about single options of a command line."""
    plans = plans_of(
        read_command_line([*COMMANDS[framework], *words]), Versions({framework: Version(version)})
    )
    findings = [finding for check in check_plans(plans) for finding in check.findings]
    option_findings = [finding for finding in findings if finding.code in {"CFG113", "CFG121"}]
    return [finding.detail for finding in option_findings if finding.severity >= Severity.ERROR]


def main() -> None:
    """Print agreement by release, and disagreements by framework and kind of mistake."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("cases", nargs="+", type=Path)
    arguments.add_argument("--show", type=int, default=0)
    namespace = arguments.parse_args()
    total: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for path in namespace.cases:
        document = json.loads(path.read_text())
        framework, version = document["framework"], document["version"]
        agreed = 0
        for case in document["cases"]:
            reported = option_errors(framework, version, case["words"])
            outcome = "agreed"
            if bool(reported) != bool(case["refused"]):
                outcome = "missed" if case["refused"] else "false"
                row = {"version": version, **case, "reported": reported}
                examples.setdefault((framework, outcome, case["mistake"]), []).append(row)
            agreed += outcome == "agreed"
            total[framework, outcome] += 1
        print(f"{framework} {version}: {agreed} of {len(document['cases'])} agreed", flush=True)
    for framework in sorted({name for name, _ in total}):
        counts = {outcome: total[framework, outcome] for outcome in ("agreed", "missed", "false")}
        print(f"{framework}: {counts}")
    for (framework, outcome, kind), rows in sorted(examples.items()):
        print(f"{framework}, {outcome}, {kind}: {len(rows)}")
        for row in rows[: namespace.show]:
            print(f"    {row['version']} {row['words']}: {row['refused'] or row['reported']}")


if __name__ == "__main__":
    main()
