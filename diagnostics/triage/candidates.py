"""Known issues that logs show, each with how sure that is: what the verdict then chooses from."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diagnostics.catalog.model import CONFIRMATION, KINDS, ROLES
from diagnostics.triage import triggers
from diagnostics.versions import NOT_AFFECTED, NOT_EXAMINED, affects

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from diagnostics.catalog.model import Issue, Signature
    from diagnostics.triage.rules import Rules
    from diagnostics.triage.seen import Hit, Hits, Seen
    from diagnostics.versions import Applicability

HYPOTHESIS = "hypothesis"
# `none` patterns count in the same traceback or so many lines around.
_NEAR = 3
# Of a line what another run of the same says otherwise.
VALUES = re.compile(
    r"0x[0-9a-fA-F]+|[0-9a-f]{8}-[0-9a-f-]{27}|\d+(?:\.\d+)*|(?:/[\w.@+-]+){2,}|'[^']{0,200}'|\"[^\"]{0,200}\""
)


@dataclass(frozen=True)
class Candidate:
    """A known issue that the logs show.

    Attributes:
        role: `root` or `cascade`, of its signature; of what confirms another, `confirmation`.
        certainty: `established` the message in a traceback of a release it is known in, or of the code it names;
            `supported` the message; `hypothesis` the message, in a release in which it is not known.
        releases: What the log says is installed of the packages concerned, as (package, release).
        triggers: How it came about, where the log can tell; one of these.
        looked_to: The newest release that anybody looked at, where that of the log is newer.
        confirmed: What else in these logs speaks for it, and would be benign without it.
        broad: Nothing shows it but lines that failures of other causes print, too.
        late: Nothing shows it but lines that stand below failures of other causes, too.
    """

    issue: Issue
    role: str
    certainty: str
    hits: tuple[Hit, ...]
    count: int
    ranks: tuple[str, ...]
    releases: tuple[tuple[str, str], ...]
    triggers: tuple[str, ...] = ()
    looked_to: str = ""
    confirmed: tuple[Candidate, ...] = ()
    broad: bool = False
    late: bool = False

    @property
    def first(self) -> Hit:
        """Where it shows first."""
        return self.hits[0]

    @property
    def evidence(self) -> tuple[Hit, ...]:
        """The first line, then first lines that say something else, five at the most."""
        said: dict[str, Hit] = {}
        for hit in self.hits:
            said.setdefault(VALUES.sub("_", hit.text), hit)
        return tuple(said.values())[:5]


def candidates_of(
    seen: Sequence[Seen], rules: Rules, versions: dict[str, tuple[str, str]]
) -> Iterable[Candidate]:
    """The entries that lines of the logs show; those that only confirm another are among them."""
    by_code: dict[str, dict[str, dict[str, list[Hits]]]] = {}
    failed = any(log.failures or log.errors for log in seen)
    for log in seen:
        for index, hits in log.hits.items():
            rule = rules.rules[index]
            by_key = by_code.setdefault(rule.code, {})
            by_key.setdefault(rule.key, {}).setdefault(rule.pattern, []).append(hits)
    for code, keys in by_code.items():
        issue = rules.issues[code]
        assert issue.signature is not None
        refused = [hit for group in keys.get("none", {}).values() for hits in group for hit in hits.kept]
        groups = [hits for group in keys.get("any", {}).values() for hits in group]
        kept = [hit for hits in groups for hit in hits.kept if not _refused(hit, refused)]
        told_as_warning = (
            issue.kind != "crash" or code in rules.warned or issue.signature.role == CONFIRMATION
        )
        if not failed and not told_as_warning and all(map(_is_warning, kept)):
            # Somebody caught it and said so, and the run went on.
            continue
        if not kept or set(issue.signature.all) - set(keys.get("all", {})):
            continue
        kept.sort(key=lambda hit: (hit.line, hit.part, hit.source))
        ranks = sorted(
            {rank for hits in groups for rank in hits.ranks if rank}, key=lambda rank: (len(rank), rank)
        )
        concern, releases = _held_against(issue, versions)
        shown = {
            pattern
            for pattern, group in keys["any"].items()
            if any(not _refused(hit, refused) for hits in group for hit in hits.kept)
        }
        broad = shown <= set(issue.signature.broad) and not _in_its_frames(issue.signature, kept)
        yield Candidate(
            issue=issue,
            role=issue.signature.role,
            certainty="hypothesis" if broad else _certainty(issue, kept, concern, releases),
            broad=broad,
            late=shown <= set(issue.signature.late),
            hits=tuple(kept),
            count=max(len(kept), sum(hits.count for hits in groups)),
            ranks=tuple(ranks),
            releases=releases,
            triggers=triggers.shown(issue, kept, seen),
            looked_to=concern.looked_to,
        )


def confirmed(found: Iterable[Candidate]) -> Iterable[Candidate]:
    """The candidates that are verdicts, each with what confirms it; a confirmation by itself says nothing."""
    found = list(found)
    benign = [candidate for candidate in found if candidate.role == CONFIRMATION]
    for candidate in found:
        if candidate.role != CONFIRMATION:
            code = candidate.issue.code
            speaking = (one for one in benign if one.issue.signature and code in one.issue.signature.confirms)
            yield replace(candidate, confirmed=tuple(sorted(speaking, key=lambda one: one.issue.code)))


def _is_warning(hit: Hit) -> bool:
    return hit.harmless and hit.traceback is None


def _refused(hit: Hit, refused: list[Hit]) -> bool:
    return any(
        other.source == hit.source
        and (
            abs(other.line - hit.line) <= _NEAR
            or (other.traceback is not None and other.traceback is hit.traceback)
        )
        for other in refused
    )


def _held_against(
    issue: Issue, versions: dict[str, tuple[str, str]]
) -> tuple[Applicability, tuple[tuple[str, str], ...]]:
    """What is claimed of the releases in the log, and which ones it was held against."""
    releases = {package: version for package, (version, _) in versions.items()}
    told = {claim.package for claim in issue.affected} & set(releases)
    return affects(issue, releases), tuple(sorted((name, releases[name]) for name in told))


def _certainty(
    issue: Issue, hits: list[Hit], concern: Applicability, releases: tuple[tuple[str, str], ...]
) -> str:
    assert issue.signature is not None
    if concern.answer == NOT_AFFECTED:
        return "hypothesis"
    if _in_its_frames(issue.signature, hits):
        return "established"
    tracebacks = any(hit.traceback for hit in hits)
    return "established" if tracebacks and releases and concern.answer != NOT_EXAMINED else "supported"


def _in_its_frames(signature: Signature, hits: Iterable[Hit]) -> bool:
    """Whether a line stands in a traceback through the code that an entry names."""
    frames = {frame for hit in hits if hit.traceback for frame in hit.traceback.frames}
    return any(triggers.holds(frame, frames) for frame in signature.frames)


def order(candidate: Candidate) -> tuple[object, ...]:
    """Roots before what follows, the surer first, then what came first."""
    return (
        ROLES.index(candidate.role),
        candidate.certainty == "hypothesis",
        # Who waited in vain may have waited for what crashed elsewhere.
        KINDS.index(candidate.issue.kind) if candidate.role == "root" else 0,
        not candidate.confirmed,
        candidate.first.line,
        candidate.first.part,
        candidate.issue.code,
    )
