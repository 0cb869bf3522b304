"""Search the source lines of the behaviour rules in the wheels of all indexed releases.

`python -m evaluation.matrix.rule_releases --wheels DIR` writes which releases have the lines of each rule and case to
tests/api_index/rule_releases.json, and prints each range of rules.toml that differs. The exit code is 1 if one does.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from packaging.version import Version

from diagnostics.api_index import query
from diagnostics.api_index.rules import Rule, SourceLine, project_rules
from diagnostics.versions import in_range
from evaluation.wheels import find_wheel

TARGET = Path(__file__).parents[2] / "tests" / "api_index" / "rule_releases.json"
# The oldest vLLM release that is searched: TRL 0.14 uses newer ones.
_OLDEST_VLLM = Version("0.6")
# Releases are searched in parallel because the index has a high latency.
_PARALLEL_DOWNLOADS = 4


class Sources(Protocol):
    """The readable source files of one release."""

    def names(self) -> frozenset[str]: ...

    def read(self, name: str) -> str: ...


def has_line(line: SourceLine, sources: Sources) -> bool:
    """Return whether one of the line's files has its text; if `absent`, whether none of them has it."""
    files = [file for file in line.files if file in sources.names()]
    return any(_pattern(line.text).search(sources.read(file)) for file in files) is not line.absent


def has_lines(lines: tuple[SourceLine, ...], sources: Sources) -> bool:
    """Return whether all lines are found."""
    return all(has_line(line, sources) for line in lines)


def deciding_case(rule: Rule, sources: Sources) -> int | None:
    """Return the number of the first case whose lines a vLLM release has; None if there is none."""
    return next((number for number, case in enumerate(rule.cases) if has_lines(case.vllm, sources)), None)


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(r"\s+".join(re.escape(word) for word in text.split()))


def search_releases(cache: Path) -> list[dict[str, list[str] | list[list[str]]]]:
    """Return for each rule the TRL releases that have its lines, and for each of its cases the vLLM releases."""
    rules = project_rules().rule
    trl = list(reversed(query.find_releases("trl", "")))
    vllm = [item for item in reversed(query.find_releases("vllm", "")) if Version(item) >= _OLDEST_VLLM]

    def search_trl(version: str) -> list[bool]:
        wheel = find_wheel("trl", version, cache=cache)
        return [has_lines(rule.trl, wheel) for rule in rules]

    def search_vllm(version: str) -> list[int | None]:
        wheel = find_wheel("vllm", version, cache=cache)
        return [deciding_case(rule, wheel) for rule in rules]

    with ThreadPoolExecutor(_PARALLEL_DOWNLOADS) as pool:
        trl_rows = dict(zip(trl, pool.map(search_trl, trl), strict=True))
        vllm_rows = dict(zip(vllm, pool.map(search_vllm, vllm), strict=True))
    return [
        {
            "trl": [version for version in trl if trl_rows[version][number]],
            "cases": [
                [version for version in vllm if vllm_rows[version][number] == case]
                for case in range(len(rule.cases))
            ],
        }
        for number, rule in enumerate(rules)
    ]


def main() -> int:
    """Search all releases, write the file, and print the ranges that differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, required=True, help="folder for the cached sources of wheels")
    found = search_releases(parser.parse_args().wheels)
    rows = ",\n".join(json.dumps(item) for item in found)
    TARGET.write_text(f"[\n{rows}\n]\n", encoding="utf-8")
    differs = False
    for rule, item in zip(project_rules().rule, found, strict=True):
        ranges = [("trl", rule.releases, item["trl"])]
        ranges += [("vllm", case.releases, item["cases"][at]) for at, case in enumerate(rule.cases)]
        for package, recorded, releases in ranges:
            if [
                item for item in reversed(query.find_releases(package, "")) if in_range(item, recorded)
            ] != releases:
                differs = True
                print(f"{rule.subject}: {package}: recorded {recorded}, found in {', '.join(releases)}")
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
