"""Check all catalog entries against each other, and list the files that belong to one issue code.

`problems` finds errors that no entry shows alone: a sample that two entries match, a code without a rule.
`code_overview` lists the rules, repro, tests, docs and logs of an issue code. An installed wheel has few of them; a
source checkout has all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnostics import catalog
from diagnostics.catalog import signatures
from diagnostics.catalog.loader import CHECKS, FOLDER, CatalogueError
from diagnostics.catalog.mitigation_ranking import recommended_fix
from diagnostics.catalog.model import CheckCode, Issue
from diagnostics.lint import rules
from diagnostics.triage.command import triage
from diagnostics.triage.rules import Rules
from diagnostics.triage.sources import LogSource

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "tests" / "diagnostics" / "logs"
# Where issue codes are named, by row of the overview: a glob of paths, and a pattern of the line.
_REFERENCES = {
    "found by": ("diagnostics/**/*.py", '"{}"'),
    "repro": ("repro/issues/*.py", r'(?:repro|register)\(\s*"{}"'),
    "matrix": ("matrix.toml", r"\b{}\b"),
    "tests": ("tests/**/*.py", r"\b{}\b"),
    "docs": ("docs/**/*.md", r"\b{}\b"),
}


@dataclass(frozen=True)
class OverviewRow:
    """One row of an issue code's overview: a kind of file, and its locations or the request to add one."""

    name: str
    entries: tuple[str, ...]
    request: str = ""


def problems(issues: Mapping[str, Issue], checks: Mapping[str, CheckCode]) -> list[str]:
    """Return the errors that entries show only together, one line each with its location.

    Raises:
        CatalogueError: The first entry whose own patterns do not match its samples as declared.
    """
    for issue in issues.values():
        signatures.check(issue)
    messages = signatures.ambiguous_samples(issues.values())
    for issue in issues.values():
        for code in issue.signature.confirms if issue.signature else ():
            if code not in issues or issues[code].signature is None:
                expected = f"expected codes of known issues with a signature, not {code}"
                messages.append(f"{_entry_path(issue.code)}: signature.confirms: {expected}")
    messages += rules.find_registration_errors({*issues, *checks}, issues.values())
    return list(map(_without_root, messages))


def code_overview(code: str) -> list[OverviewRow]:
    """Return the overview of an issue code: one row for each kind of file that names it.

    Raises:
        CatalogueError: The code is unknown, or its signature matches the log of a clean run.
    """
    if catalog.is_check(code):
        return [OverviewRow("entry", (_without_root(str(CHECKS / f"{code}.toml")),)), *_references(code)]
    issue = catalog.find(code)
    samples = issue.signature.samples if issue.signature else ()
    matching = sum(sample.matches for sample in samples)
    rows = [
        OverviewRow("entry", (_entry_path(issue.code), issue.kind, f"since {issue.since}")),
        OverviewRow("samples", (f"{matching} that must match, {len(samples) - matching} that must not",)),
        OverviewRow("offers", tuple(offer.mitigation for offer in recommended_fix(issue).offers)),
    ]
    if issue.audit:
        rows.append(OverviewRow("audit", issue.audit))
    return [*rows, *_references(issue.code), *(_log_results(issue) if LOGS.is_dir() else [])]


def _references(code: str) -> list[OverviewRow]:
    """List the files of a checkout that name a code, each with the first such line."""
    rows = []
    for name, (pattern, line_pattern) in _REFERENCES.items():
        compiled = re.compile(line_pattern.format(code))
        entries = []
        # Next to an installed wheel are other projects' folders of these names.
        for path in sorted(ROOT.glob(pattern)) if LOGS.is_dir() else ():
            text = path.read_text(encoding="utf-8")
            match = compiled.search(text)
            if match:
                entries.append(f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}")
        rows.append(OverviewRow(name, tuple(entries)))
    return rows


def _log_results(issue: Issue) -> list[OverviewRow]:
    """Run triage on the labelled logs of an issue and on those of clean runs, and count the right answers."""
    if issue.signature is None:
        return []
    everything, alone = Rules(catalog.load()), Rules({issue.code: issue})
    failure_logs, clean_logs = _labelled_logs(issue.code), _labelled_logs("clean")
    first = [triage([log], everything).candidates[:1] for log in failure_logs]
    named_first = sum(entry.issue.code == issue.code for candidates in first for entry in candidates)
    mistaken = [
        f"{log.path}:{entry.first.line}: a clean run is taken for {issue.code}: {entry.first.text!r}"
        for log in clean_logs
        for entry in triage([log], alone).candidates
    ]
    if mistaken:
        raise CatalogueError("\n".join(map(_without_root, mistaken)))
    return [
        OverviewRow(
            "logs",
            (f"{len(failure_logs)}, {named_first} of them named {issue.code} first",) if failure_logs else (),
            f"a real log of it goes into {_without_root(str(LOGS / issue.code))}/NAME.log",
        ),
        OverviewRow("clean logs", (f"{len(clean_logs)}, no false match",)),
    ]


def _labelled_logs(label: str) -> Sequence[LogSource]:
    folders = [path for path in LOGS.iterdir() if path.name.partition("+")[0] == label]
    return [LogSource(path.name, path) for folder in sorted(folders) for path in sorted(folder.glob("*.log"))]


def _entry_path(code: str) -> str:
    return _without_root(str(FOLDER / f"{code}.toml"))


def _without_root(line: str) -> str:
    """Shorten paths in a line to those below the project."""
    return line.replace(f"{ROOT}/", "")
