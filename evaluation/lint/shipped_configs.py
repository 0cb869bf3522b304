"""Lint every config and script below a folder and count files by framework and findings by code.

    python evaluation/lint/shipped_configs.py DIR [--errors] [--table FILE]

DIR holds one folder a source, as `ms-swift-4.5.2/`, whatever is below; its files are judged for that release. Files
that speak of no GRPO run and of no server for one are counted, and not listed. `--errors` prints each finding at error
or above with its evidence, `--warnings` those at warning as well; `--table FILE` writes a line a file, separated by
tabs: source, path, framework, findings. Exit code 1 if anything crashed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from packaging.version import InvalidVersion, Version

from diagnostics.findings import Severity
from diagnostics.lint.engine import check_plans, plans_of
from diagnostics.lint.readers.structured import UnreadableError
from diagnostics.lint.reading import read_file
from diagnostics.lint.versions import Versions

SUFFIXES = {".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".json", ".toml", ".py"}


def release_of(source: str) -> Versions:
    """The release that a folder's name ends with; none is known where it doesn't."""
    package, _, version = source.rpartition("-")
    try:
        return Versions({package: Version(version)})
    except InvalidVersion:
        return Versions()


def main() -> int:
    """Lint the files; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--warnings", action="store_true")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    total: Counter[str] = Counter()
    crashed: list[str] = []
    rows = []
    for path in sorted(p for p in options.folder.rglob("*") if p.suffix in SUFFIXES and p.is_file()):
        total["files"] += 1
        source, _, inside = str(path.relative_to(options.folder)).partition("/")
        try:
            releases = release_of(source)
            plans = plans_of(read_file(path), releases)
        except UnreadableError as error:
            total["refused"] += 1
            print(f"refused  {error}")
            continue
        if not plans:
            continue
        total["with a plan"] += 1
        total["plans"] += len(plans)
        checks = check_plans(plans)
        crashed += [f"{path}: {check.reason}" for check in checks if check.outcome == "crashed"]
        findings = [finding for check in checks for finding in check.findings]
        for finding in findings:
            total[f"{finding.severity.word} {finding.code}"] += 1
            least = Severity.WARNING if options.warnings else Severity.ERROR
            if (options.errors or options.warnings) and finding.severity >= least:
                print(f"{finding.code} {finding.detail}")
                print("".join(f"    {item.text}  [{item.place}]\n" for item in finding.evidence), end="")
        frameworks = ", ".join(sorted({plan.framework for plan in plans}))
        counts = Counter(f"{finding.severity.word} {finding.code}" for finding in findings)
        listed = ", ".join(f"{name} x{count}" for name, count in sorted(counts.items()))
        rows.append("\t".join((source, inside, frameworks, listed or "nothing")))
    for name, count in sorted(total.items()):
        print(f"{count:6}  {name}")
    for line in crashed:
        print(f"CRASHED  {line}")
    if options.table:
        head = "source\tpath\tframework\tfindings"
        options.table.write_text("\n".join((head, *rows)) + "\n", encoding="utf-8")
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())
