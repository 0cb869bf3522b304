"""Checks of `catalog --check` that go beyond one entry's own file, and the overview of one code.

They find unregistered rules, entries that match another's samples, and entries that match logs of clean runs, so that a
contributor sees these first. Logs, tests and documents exist only in a checkout.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnostics import catalog, version
from diagnostics.catalog import signatures
from diagnostics.catalog.loader import CHECKS, FOLDER, CatalogueError
from diagnostics.catalog.mitigation_ranking import recommended_fix
from diagnostics.catalog.model import CheckCode, Issue
from diagnostics.triage.sources import LogSource

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "tests" / "diagnostics" / "logs"
# Judges that find something and are named nowhere find nothing.
_ANSWER = "list[Finding]"
_HELPERS = {"base", "registered"}


def problems(issues: Mapping[str, Issue], checks: Mapping[str, CheckCode]) -> list[str]:
    """Return the problems of all entries together, one line each with its location.

    Raises:
        CatalogueError: The first entry whose own patterns and samples are not as they should be.
    """
    from diagnostics.lint import rules

    for issue in issues.values():
        signatures.check(issue)
    messages = [
        *signatures.ambiguous_samples(issues.values()),
        *_releases(issues.values()),
        *_confirmed(issues),
    ]
    messages += rules.find_registration_errors({*issues, *checks}, issues.values())
    messages += unregistered(Path(rules.__path__[0]), [rule.place for rule in rules.registered_rules()])
    return [_short(line) for line in messages]


def unregistered(folder: Path, places: Collection[tuple[str, int]]) -> list[str]:
    """Functions of a folder's modules that answer findings and that no decorator registers."""
    return [
        f"{path}:{node.lineno}: {node.name} answers findings and nobody asks it: it lacks its decorator"
        for path in sorted(folder.glob("[a-z]*.py"))
        if path.stem not in _HELPERS
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        if node.returns is not None and ast.unparse(node.returns) == _ANSWER
        if (str(path), min([node.lineno, *(item.lineno for item in node.decorator_list)])) not in places
    ]


def _releases(issues: Iterable[Issue]) -> list[str]:
    """Entries that are of a release of ours which does not exist."""
    ours = version()
    return [
        f"{_entry(issue.code)}: since is {issue.since!r}: expected a release up to this one, {ours}"
        for issue in issues
        if ours != "0.0.0" and _numbers(issue.since) > _numbers(ours)
    ]


def _numbers(release: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", release)[:3]]


def _confirmed(issues: Mapping[str, Issue]) -> list[str]:
    return [
        f"{_entry(issue.code)}: signature.confirms: expected codes of known issues with a signature, not {code}"
        for issue in issues.values()
        for code in (issue.signature.confirms if issue.signature else ())
        if code not in issues or issues[code].signature is None
    ]


@dataclass(frozen=True)
class OverviewRow:
    """One line of a code's overview: a kind of file, its locations, or the request to add one."""

    name: str
    entries: tuple[str, ...]
    request: str = ""


def concerns(code: str) -> list[OverviewRow]:
    """All that concerns a code; in a wheel, what of it a wheel holds.

    Raises:
        CatalogueError: There is no such code, or a log of a run that went well is taken for it.
    """
    if catalog.is_check(code):
        return [OverviewRow("entry", (_short(str(CHECKS / f"{code}.toml")),)), *_references(code)]
    issue = catalog.find(code)
    samples = issue.signature.samples if issue.signature else ()
    matching = sum(sample.matches for sample in samples)
    result = [
        OverviewRow("entry", (_entry(issue.code), issue.kind, f"since {issue.since}")),
        OverviewRow("samples", (f"{matching} that must match, {len(samples) - matching} that must not",)),
        OverviewRow("offers", tuple(offer.mitigation for offer in recommended_fix(issue).offers)),
    ]
    if issue.audit:
        result.append(OverviewRow("audit", issue.audit))
    return [*result, *_references(issue.code), *(_log_results(issue) if LOGS.is_dir() else [])]


def _references(code: str) -> list[OverviewRow]:
    """List the files that name a code: rules, its repro, the matrix, tests and documents."""
    return [
        OverviewRow("found by", _naming("diagnostics/**/*.py", rf'"{code}"')),
        OverviewRow("repro", _modules_of_repro(code)),
        OverviewRow("matrix", _naming("matrix.toml", rf"\b{code}\b")),
        OverviewRow("tests", _naming("tests/**/*.py", rf"\b{code}\b")),
        OverviewRow("docs", (*_naming("*.md", rf"\b{code}\b"), *_naming("docs/**/*.md", rf"\b{code}\b"))),
    ]


def _modules_of_repro(code: str) -> tuple[str, ...]:
    """The module that registers the repro of a code."""
    call = re.compile(rf"(?:repro|register)\(\s*\"{code}\"")
    modules = sorted((ROOT / "repro" / "issues").glob("*.py"))
    return tuple(_short(str(path)) for path in modules if call.search(path.read_text(encoding="utf-8")))


def _naming(pattern: str, name: str) -> tuple[str, ...]:
    """List the files of a checkout that name a code, each with the first such line."""
    compiled = re.compile(name)
    result = []
    # Beside an installed wheel lie other people's folders of these names.
    for path in sorted(ROOT.glob(pattern)) if LOGS.is_dir() else ():
        text = path.read_text(encoding="utf-8")
        if match := compiled.search(text):
            result.append(f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}")
    return tuple(result)


def _log_results(issue: Issue) -> list[OverviewRow]:
    """Match an issue against the labelled logs: those of its failure and those of clean runs."""
    from diagnostics.triage.command import triage
    from diagnostics.triage.rules import Rules

    if issue.signature is None:
        return []
    everything, alone = Rules(catalog.load()), Rules({issue.code: issue})
    failure_logs, clean_logs = _logs(issue.code), _logs("clean")
    first = [triage([log], everything).candidates[:1] for log in failure_logs]
    named_first = sum(entry.issue.code == issue.code for candidates in first for entry in candidates)
    mistaken = [
        f"{log.path}:{entry.first.line}: a run that went well is taken for {issue.code}: {entry.first.text!r}"
        for log in clean_logs
        for entry in triage([log], alone).candidates
    ]
    if mistaken:
        raise CatalogueError("\n".join(map(_short, mistaken)))
    texts, anchors = map(_read_log, clean_logs), _anchors(issue)
    similar = sum(any(anchor in text for anchor in anchors) for text in texts)
    return [
        OverviewRow(
            "logs",
            (f"{len(failure_logs)}, {named_first} of them named {issue.code} first",) if failure_logs else (),
            f"what it really printed goes into {_short(str(LOGS / issue.code))}/NAME.log",
        ),
        OverviewRow(
            "clean logs",
            (f"{len(clean_logs)}, {similar} of them near it, none taken for it",) if similar else (),
            f"{len(clean_logs)} not taken for it, but none comes near it: a log of a run that went well, as near as you"
            f" find one, goes into {_short(str(LOGS / 'clean'))}/NAME.log",
        ),
    ]


def _anchors(issue: Issue) -> set[str]:
    from diagnostics.catalog.literal_prefilter import required_literals

    patterns = issue.signature.any if issue.signature else ()
    return {text for pattern in patterns for text in required_literals(issue.code, pattern)}


def _logs(label: str) -> Sequence[LogSource]:
    from diagnostics.triage.sources import LogSource

    folders = [path for path in LOGS.iterdir() if path.name.partition("+")[0] == label]
    return [LogSource(path.name, path) for folder in sorted(folders) for path in sorted(folder.glob("*.log"))]


def _read_log(log: LogSource) -> str:
    return b"".join(log.blocks()).decode(errors="replace")


def _entry(code: str) -> str:
    return _short(str(FOLDER / f"{code}.toml"))


def _short(line: str) -> str:
    """A line with paths below the project, as one sees them in a checkout."""
    return line.replace(f"{ROOT}/", "")
