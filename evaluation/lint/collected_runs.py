"""Lint a collection of other people's runs and write each result for review by a person.

    python -m evaluation.lint.collected_runs FOLDER OUT.jsonl

FOLDER has an `index.jsonl` with `id` and `path` of each run, and each run's files under `FOLDER/ID/`. Package
versions come only from the files of the run's project, never from installed packages. The exit code is 1 if a check
crashes.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

from diagnostics.findings import INCOMPLETE, Severity
from diagnostics.lint.steps import LintRun, run_lint
from diagnostics.lint.versions import collect_versions


def main() -> int:
    """Lint each run and write its result; return 1 if a check crashed."""
    folder, out = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()
    releases = collect_versions({}, installed=False)
    counts: Counter[str] = Counter()
    with out.open("w", encoding="utf-8") as file:
        for line in (folder / "index.jsonl").read_text(encoding="utf-8").splitlines():
            run = json.loads(line)
            os.chdir(folder / run["id"])
            report = run_lint(LintRun([Path(run["path"])], releases))
            document = report.to_json()
            read = [plan["framework"] for item in document["subject"]["files"] for plan in item["plans"]]
            code = report.exit_code(Severity.ERROR) if read else INCOMPLETE
            verdict = _verdict(report.findings, read, code)
            crashed = [check["reason"] for check in document["checks"] if check["outcome"] == "crashed"]
            counts[verdict] += 1
            counts["crashed"] += len(crashed)
            row = {"verdict": verdict, "code": code, "plans": read, "crashed": crashed}
            file.write(json.dumps({**run, **row, "report": document}) + "\n")
    print(f"{folder.name}: {dict(counts)}")
    return 1 if counts["crashed"] else 0


def _verdict(findings: list, read: list[str], code: int) -> str:  # type: ignore[type-arg]
    if any(finding.severity >= Severity.ERROR for finding in findings):
        return "error"
    if not read:
        return "no run recognised (3)"
    if code == INCOMPLETE:
        return "not judged (3)"
    return "warnings only (0)" if findings else "nothing found (0)"


if __name__ == "__main__":
    sys.exit(main())
