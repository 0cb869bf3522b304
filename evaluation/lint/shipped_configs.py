"""Lint every config and script below a folder and count files by framework and findings by code.

    python evaluation/lint/shipped_configs.py DIR [--errors] [--warnings] [--table FILE]

DIR has a folder for each release, such as `ms-swift-4.5.2/`; its files are checked for that release. Files without a
GRPO run or server are counted, but not in the table. `--errors` prints each finding of severity error or above with its
evidence, `--warnings` also prints warnings. `--table FILE` writes a line of tab-separated values for each file with a
run: source, path, frameworks, findings. The exit code is 1 if a check crashes.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from packaging.version import InvalidVersion, Version

from diagnostics.findings import Severity
from diagnostics.lint.readers.structured import UnreadableError
from diagnostics.lint.settings_reader import read_file
from diagnostics.lint.steps import check_plans, plans_of
from diagnostics.lint.versions import Versions

SUFFIXES = {".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".json", ".toml", ".py"}


def release_of(source: str) -> Versions:
    """Return the package and version that a folder's name gives; no version if the name has none."""
    package, _, version = source.rpartition("-")
    try:
        return Versions({package: Version(version)})
    except InvalidVersion:
        return Versions()


def main() -> int:
    """Lint the files and print the counts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--warnings", action="store_true")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    crashed: list[str] = []
    rows = []
    for path in sorted(p for p in options.folder.rglob("*") if p.suffix in SUFFIXES and p.is_file()):
        totals["files"] += 1
        source, _, inside = str(path.relative_to(options.folder)).partition("/")
        try:
            releases = release_of(source)
            plans = plans_of(read_file(path), releases)
        except UnreadableError as error:
            totals["refused"] += 1
            print(f"refused  {error}")
            continue
        if not plans:
            continue
        totals["with a plan"] += 1
        totals["plans"] += len(plans)
        checks = check_plans(plans)
        crashed += [f"{path}: {check.reason}" for check in checks if check.outcome == "crashed"]
        findings = [finding for check in checks for finding in check.findings]
        for finding in findings:
            totals[f"{finding.severity.word} {finding.code}"] += 1
            least = Severity.WARNING if options.warnings else Severity.ERROR
            if (options.errors or options.warnings) and finding.severity >= least:
                print(f"{finding.code} {finding.detail}")
                print("".join(f"    {item.text}  [{item.place}]\n" for item in finding.evidence), end="")
        frameworks = ", ".join(sorted({plan.framework for plan in plans}))
        counts = Counter(f"{finding.severity.word} {finding.code}" for finding in findings)
        counts_text = ", ".join(f"{name} x{count}" for name, count in sorted(counts.items()))
        rows.append("\t".join((source, inside, frameworks, counts_text or "nothing")))
    for name, count in sorted(totals.items()):
        print(f"{count:6}  {name}")
    for line in crashed:
        print(f"CRASHED  {line}")
    if options.table:
        head = "source\tpath\tframework\tfindings"
        options.table.write_text("\n".join((head, *rows)) + "\n", encoding="utf-8")
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())
