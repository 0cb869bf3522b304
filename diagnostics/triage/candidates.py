"""Find the known issues whose signatures match the logs, each with its certainty, evidence and triggers.

`find_candidates` returns them, and the verdict (`verdict.py`) selects from these candidates. A crash that the log shows
only in warnings is no candidate unless something else failed, or a sample of the entry is a warning too.
`without_values` and `distinct_hits` compare lines without their numbers and paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from diagnostics.catalog.model import CONFIRMATION, KINDS, ROLES, EarlierTraceback, Issue, Signature
from diagnostics.findings import Certainty
from diagnostics.logs.tracebacks import Traceback
from diagnostics.triage.log_facts import Hit, Hits, LogFacts, has_frame
from diagnostics.triage.rules import Rules
from diagnostics.versions import NOT_AFFECTED, NOT_EXAMINED, Applicability, affects

# A match of a `none` pattern excludes hits in its traceback and within this number of lines.
_EXCLUDED_LINES = 3
_MAX_EVIDENCE = 5
# Values that differ between runs of the same failure.
_NUMBERS_AND_PATHS = r"0x[0-9a-fA-F]+|[0-9a-f]{8}-[0-9a-f-]{27}|\d+(?:\.\d+)*|(?:/[\w.@+-]+){2,}"
_VALUES = re.compile(_NUMBERS_AND_PATHS), re.compile(_NUMBERS_AND_PATHS + r"|'[^']{0,200}'|\"[^\"]{0,200}\"")


def without_values(text: str, *, quoted: bool = True) -> str:
    """Return a line with numbers, paths and (`quoted`) quoted values replaced, to compare it with other lines."""
    return _VALUES[quoted].sub("_", text)


def distinct_hits(hits: Iterable[Hit]) -> list[Hit]:
    """Return the first hit of each distinct text, ignoring values."""
    first: dict[str, Hit] = {}
    for hit in hits:
        first.setdefault(without_values(hit.text), hit)
    return list(first.values())


@dataclass(frozen=True)
class Candidate:
    """A known issue whose signature matches the logs.

    Attributes:
        issue: The known issue.
        role: Role of the signature: `root` cause, `cascade` (a consequence), or `confirmation` of another issue.
        certainty: `established`: the message is in a traceback with a known release that may be affected, or in a
            traceback through code that the entry names. `hypothesis`: the release is not affected, or all lines are
            broad. `supported`: any other match.
        hits: The first matching lines.
        count: Number of matching lines; a line counts for each pattern that it matches.
        ranks: Ranks that printed the lines.
        releases: Releases in the log of the packages that the entry names, as (package, release).
        triggers: Triggers that the tracebacks show; empty if unknown.
        examined_to: The newest examined release, if the release in the log is newer; else empty.
        confirmed_by: Candidates that confirm this one; their lines are harmless without another failure.
        broad: Whether failures with other causes print all these lines too, and none is in code that the entry names.
        also_after_failures: Whether all matching lines also appear after other failures, as their consequences.
    """

    issue: Issue
    role: str
    certainty: str
    hits: tuple[Hit, ...]
    count: int
    ranks: tuple[str, ...]
    releases: tuple[tuple[str, str], ...]
    triggers: tuple[str, ...] = ()
    examined_to: str = ""
    confirmed_by: tuple[Candidate, ...] = ()
    broad: bool = False
    also_after_failures: bool = False

    @property
    def first(self) -> Hit:
        """The first hit."""
        return self.hits[0]

    @property
    def evidence(self) -> tuple[Hit, ...]:
        """The first hits with different texts."""
        return tuple(distinct_hits(self.hits)[:_MAX_EVIDENCE])

    def as_hypothesis(self) -> Candidate:
        """Return the candidate with certainty `hypothesis`, marked as broad."""
        return replace(self, certainty=Certainty.HYPOTHESIS, broad=True)


def find_candidates(
    logs: Sequence[LogFacts], rules: Rules, versions: dict[str, tuple[str, str]]
) -> list[Candidate]:
    """Return the known issues whose signatures match, root causes first, each with its confirmations."""
    by_code: dict[str, dict[str, dict[str, list[Hits]]]] = {}
    for log in logs:
        for index, hits in log.hits.items():
            rule = rules.rules[index]
            by_key = by_code.setdefault(rule.code, {})
            by_key.setdefault(rule.key, {}).setdefault(rule.pattern, []).append(hits)
    candidates = [
        candidate
        for code, matches in by_code.items()
        if (candidate := _candidate(rules.issues[code], matches, logs, rules, versions))
    ]
    confirming = [candidate for candidate in candidates if candidate.role == CONFIRMATION]
    return sorted(
        (_confirm(candidate, confirming) for candidate in candidates if candidate.role != CONFIRMATION),
        key=_order,
    )


def _candidate(
    issue: Issue,
    matches: dict[str, dict[str, list[Hits]]],
    logs: Sequence[LogFacts],
    rules: Rules,
    versions: dict[str, tuple[str, str]],
) -> Candidate | None:
    """Return the candidate for an issue; None if its signature does not match, or only warnings show a crash."""
    signature = issue.signature
    assert signature is not None
    excluded_groups = matches.get("none", {}).values()
    excluding = [hit for group in excluded_groups for hits in group for hit in hits.first_hits]
    by_pattern = {
        pattern: [hit for hits in group for hit in hits.first_hits if not _is_excluded(hit, excluding)]
        for pattern, group in matches.get("any", {}).items()
    }
    groups = [hits for group in matches.get("any", {}).values() for hits in group]
    matching = [hit for hits in by_pattern.values() for hit in hits]
    shows_in_warnings = issue.kind != "crash" or issue.code in rules.warned or signature.role == CONFIRMATION
    failed = any(log.failures or log.errors for log in logs)
    is_handled = all(hit.is_harmless and hit.traceback is None for hit in matching)
    if is_handled and not failed and not shows_in_warnings:
        return None  # the run handled the exception and continued
    if not matching or set(signature.all) - set(matches.get("all", {})):
        return None
    matching.sort(key=lambda hit: (hit.line, hit.part, hit.source))
    releases = {package: version for package, (version, _) in versions.items()}
    applicability = affects(issue, releases)
    relevant = {claim.package for claim in issue.affected} & set(releases)
    patterns = {pattern for pattern, hits in by_pattern.items() if hits}
    certainty = _certainty(signature, matching, applicability, bool(relevant))
    broad = patterns <= set(signature.broad) and not _is_in_named_code(signature, matching)
    return Candidate(
        issue=issue,
        role=signature.role,
        certainty=Certainty.HYPOTHESIS if broad else certainty,
        broad=broad,
        also_after_failures=patterns <= set(signature.late),
        hits=tuple(matching),
        count=max(len(matching), sum(hits.count for hits in groups)),
        ranks=tuple(
            sorted({rank for hits in groups for rank in hits.ranks if rank}, key=lambda it: (len(it), it))
        ),
        releases=tuple(sorted((name, releases[name]) for name in relevant)),
        triggers=_triggers(issue, matching, logs),
        examined_to=applicability.examined_to,
    )


def _confirm(candidate: Candidate, confirming: Iterable[Candidate]) -> Candidate:
    """Return the candidate with those that confirm it, sorted by code."""
    code = candidate.issue.code
    confirmations = (it for it in confirming if it.issue.signature and code in it.issue.signature.confirms)
    return replace(candidate, confirmed_by=tuple(sorted(confirmations, key=lambda it: it.issue.code)))


def _is_excluded(hit: Hit, excluding: Iterable[Hit]) -> bool:
    """Return whether a match of a `none` pattern is near the hit or in its traceback."""
    return any(
        exclusion.source == hit.source
        and (
            abs(exclusion.line - hit.line) <= _EXCLUDED_LINES
            or (exclusion.traceback is not None and exclusion.traceback is hit.traceback)
        )
        for exclusion in excluding
    )


def _certainty(
    signature: Signature, hits: list[Hit], applicability: Applicability, has_releases: bool
) -> str:
    """Return the certainty of a candidate that is not broad, by release and tracebacks; see `Candidate`."""
    if applicability.answer == NOT_AFFECTED:
        return Certainty.HYPOTHESIS
    if _is_in_named_code(signature, hits):
        return Certainty.ESTABLISHED
    in_traceback = any(hit.traceback for hit in hits)
    is_established = in_traceback and has_releases and applicability.answer != NOT_EXAMINED
    return Certainty.ESTABLISHED if is_established else Certainty.SUPPORTED


def _is_in_named_code(signature: Signature, hits: Iterable[Hit]) -> bool:
    """Return whether a hit is in a traceback through code that the entry names."""
    frames = {frame for hit in hits if hit.traceback for frame in hit.traceback.frames}
    return any(has_frame(frame, frames) for frame in signature.frames)


def _order(candidate: Candidate) -> tuple[object, ...]:
    """Return the sort key: roots first; within a role hypotheses last, then crashes (roots), confirmed, position."""
    return (
        ROLES.index(candidate.role),
        candidate.certainty == Certainty.HYPOTHESIS,
        # A crash in another process may have caused a wait, so crashes come first.
        KINDS.index(candidate.issue.kind) if candidate.role == "root" else 0,
        not candidate.confirmed_by,
        candidate.first.line,
        candidate.first.part,
        candidate.issue.code,
    )


def _triggers(issue: Issue, hits: Sequence[Hit], logs: Iterable[LogFacts]) -> tuple[str, ...]:
    """Return the triggers that the tracebacks of the hits show, or earlier ones of the same process."""
    if not issue.triggers:
        return ()
    tracebacks = [hit.traceback for hit in hits if hit.traceback]
    frames = {frame for traceback in tracebacks for frame in traceback.frames}
    earlier = list(_earlier_failures(hits[0], tracebacks, logs))
    return tuple(
        trigger.name
        for trigger in issue.triggers
        if any(has_frame(frame, frames) for frame in trigger.frames)
        or any(_matches(sign, traceback) for sign in trigger.earlier for traceback in earlier)
    )


def _earlier_failures(
    first: Hit, tracebacks: Sequence[Traceback], logs: Iterable[LogFacts]
) -> Iterable[Traceback]:
    """Yield the tracebacks of the same log and rank that ended before the first hit."""
    own = {id(traceback) for traceback in tracebacks}
    failures = (failure for log in logs if log.source == first.source for failure in log.failures)
    before = (it for it in failures if it.end < first.line and it.rank == first.rank)
    return (failure for failure in before if id(failure) not in own)


def _matches(sign: EarlierTraceback, traceback: Traceback) -> bool:
    return traceback.type.endswith(sign.raised) and has_frame(sign.frame, traceback.frames)
