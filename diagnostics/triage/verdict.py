"""Decide the verdict on the logs of a run, from the candidates and the fallback analysis.

`Diagnosis.state` lists the possible verdicts. A verdict has at most three candidates, the lines to read first, and a
fingerprint that is equal for equal failures.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from diagnostics.catalog.model import Issue
from diagnostics.findings import Finding
from diagnostics.logs.tracebacks import Traceback, short_path
from diagnostics.output.redact import truncate
from diagnostics.triage.candidates import Candidate, distinct_hits, find_candidates, without_values
from diagnostics.triage.fallback import Fallback, Lead, analyze_unmatched, lead_from_broad_line, unique_leads
from diagnostics.triage.log_end import find_end
from diagnostics.triage.log_facts import MAX_TEXT, Hit, LogFacts
from diagnostics.triage.rules import Rules

MAX_CANDIDATES = 3
# States of a verdict that several functions use.
HYPOTHESIS, NOT_JUDGED = "hypothesis", "not_judged"
_UNRESOLVED = {"unknown", "wrapper", NOT_JUDGED}
_MAX_FAILING, _MAX_ANCHORS = 3, 8
# The issue for a NaN of unknown cause; the metrics may show the cause.
_NAN = "NUM027"
# Exceptions of a run that a user stopped: neither a failure nor a normal end.
_INTERRUPT = "KeyboardInterrupt"
_CANCELLED = {_INTERRUPT, "CancelledError"}
# Exceptions of processes that end because another one failed.
_BROKEN = {"BrokenPipeError", "ConnectionResetError", "EOFError", "SignalException", "ChildFailedError"}
_ENDING = {*_CANCELLED, *_BROKEN, "SystemExit"}
_EXCEPTION = re.compile(r"(?:\w+\.)*(\w+(?:Error|Exception)): ")


@dataclass(frozen=True)
class Diagnosis:
    """The verdict on the logs of one run.

    Attributes:
        state: `known`: the logs show the root cause; `wrapper`: only consequences of a root cause that is not in these
            logs; `hypothesis`: a known issue fits the logs or their metrics, but no line proves it; `unknown`: a
            failure that no entry describes; `clean`: no failure, and the run reports its end (an excerpt need not);
            `not_judged`: no failure and no end, a run that a user interrupted, or lines or metrics that may show a
            failure; `empty`: nothing to read.
        candidates: At most three candidates, the most likely first. For `wrapper` they are consequences.
        consequences: Other candidates, which are consequences of the root cause.
        anchors: Lines to read first if the root cause is unknown.
        versions: Package -> (release, the log line (file:line) that reports it).
        frameworks: Frameworks with marks in the logs, the most frequent first.
        fingerprint: Hash that is equal for equal failures; empty for the states `clean`, `empty`, `not_judged` and
            `hypothesis`, or if no line shows the failure.
        lines: Number of lines of all logs.
        problems: Reasons why logs could not be read to their end.
        first_failed: (key, value) of torchrun's table of the rank that failed first.
        computed: Answers from the API index and from stated requirements; `known` if one of them is the root cause.
        fallback: Leads, similar issues, symptoms and the end of the run; empty if a signature shows the root cause.
        logs: The facts of each log.
    """

    state: str
    candidates: tuple[Candidate, ...]
    consequences: tuple[Candidate, ...]
    anchors: tuple[Hit, ...]
    versions: dict[str, tuple[str, str]]
    frameworks: tuple[str, ...]
    fingerprint: str
    lines: int
    problems: tuple[str, ...]
    first_failed: tuple[tuple[str, str], ...] = ()
    fallback: Fallback = field(default_factory=Fallback)
    computed: tuple[Finding, ...] = ()
    logs: tuple[LogFacts, ...] = field(default=(), repr=False)

    @property
    def leads(self) -> tuple[Lead, ...]:
        """Known issues that may explain the logs; empty unless the state is `hypothesis`, or `known` by `computed`."""
        is_computed = self.state == "known" and not self.candidates
        return self.fallback.leads if self.state == HYPOTHESIS or is_computed else ()

    @property
    def similar(self) -> tuple[Issue, ...]:
        """At most three known issues with similar words, leads first; empty if the state is known, clean or empty."""
        if self.state not in {*_UNRESOLVED, HYPOTHESIS}:
            return ()
        listed = {it.issue.code for it in self.candidates} | {lead.issue.code for lead in self.leads}
        issues = [*(lead.issue for lead in self.fallback.leads), *self.fallback.similar]
        return tuple({it.code: it for it in issues if it.code not in listed}.values())[:MAX_CANDIDATES]


def judge(logs: Sequence[LogFacts], rules: Rules, *, excerpt: bool = False) -> Diagnosis:
    """Return the verdict on all logs of one run together.

    Args:
        logs: Facts of each log, in any order.
        rules: Rules compiled from the catalog.
        excerpt: Whether the logs are excerpts, so that no end of the run is expected.
    """
    logs = sorted(logs, key=lambda log: log.source)
    versions = {
        package: (version, f"{log.source}:{line}")
        for log in reversed(logs)
        for package, (version, line) in log.versions.items()
    }
    all_candidates, failures = _drop_handled(find_candidates(logs, rules, versions), logs, rules)
    all_roots = _demote_late_roots(failures, all_candidates)
    roots = [candidate for candidate in all_roots if not candidate.broad]
    broad = [candidate for candidate in all_roots if candidate.broad and not _run_survived(candidate, logs)]
    rest = [candidate for candidate in all_candidates if candidate.role != "root"]
    fallback = Fallback() if roots else analyze_unmatched(logs, rules)
    if broad and not roots:
        broad_leads = [lead_from_broad_line(it.issue, it.first) for it in broad]
        fallback = replace(fallback, leads=unique_leads(broad_leads, fallback.leads))
    if fallback.recovered:
        rest = [candidate for candidate in rest if candidate.issue.code != _NAN]
    candidates: list[Candidate] = []
    consequences = rest
    if roots:
        state, candidates = "known", [*roots, *broad][:MAX_CANDIDATES]
    elif broad and not _failed_earlier(failures, broad, rest):
        state = HYPOTHESIS
    elif rest and _failed_after_the_end(rest, logs, fallback):
        state = "clean"
    elif rest and not broad and _only_consequences(rest, failures, logs, fallback):
        state, candidates, consequences = "wrapper", rest[:MAX_CANDIDATES], rest[MAX_CANDIDATES:]
    else:
        state = _unresolved_state(logs, failures, fallback, excerpt=excerpt)
    shows_lines = state in _UNRESOLVED or (state == HYPOTHESIS and bool(failures))
    frameworks: Counter[str] = sum((log.frameworks for log in logs), Counter())
    if frameworks["easyr1"]:
        del frameworks["verl"]  # EasyR1 contains a package of this name
    return Diagnosis(
        state=state,
        candidates=tuple(candidates),
        consequences=tuple(consequences),
        anchors=_anchors(logs, _explained_traceback_ids(rest), fallback) if shows_lines else (),
        versions=versions,
        frameworks=tuple(sorted(frameworks, key=lambda name: (-frameworks[name], name))),
        fingerprint=_fingerprint(state, candidates, logs, _explained_traceback_ids(rest)),
        lines=sum(log.lines for log in logs),
        problems=tuple(log.problem for log in logs if log.problem),
        first_failed=next((tuple(log.first_failed.items()) for log in logs if log.first_failed), ()),
        fallback=fallback,
        logs=tuple(logs),
    )


def _drop_handled(
    all_candidates: list[Candidate], logs: Sequence[LogFacts], rules: Rules
) -> tuple[list[Candidate], list[Traceback]]:
    """Drop crashes that a logger only reported as warnings, because the run handled them.

    If something else failed and no other root is known, they stay as hypotheses. Warnings of silent faults, which do
    not end a run, are dropped then.

    Returns:
        The remaining candidates, and the tracebacks that the dropped crashes do not explain.
    """
    failures = [failure for log in logs for failure in log.failures]
    warned = [it for it in all_candidates if it.role == "root" and all(hit.is_harmless for hit in it.hits)]
    silent = [it for it in warned if it.issue.kind == "silent"]
    handled = [it for it in warned if it.issue.kind == "crash" and it.issue.code not in rules.warned]
    if silent and not any(it.role == "root" and it not in [*silent, *handled] for it in all_candidates):
        texts = [*(it.type for it in failures), *(hit.text for log in logs for hit in find_end(log).failing)]
        if {name for text in texts for name in re.findall(r"\w+Error\b", text)} - _ENDING:
            all_candidates = [candidate for candidate in all_candidates if candidate not in silent]
    explained = _explained_traceback_ids(handled)
    other_failures = [failure for failure in failures if id(failure) not in explained]
    unhandled = [candidate for candidate in all_candidates if candidate not in handled]
    failed = bool(other_failures) or any(log.errors for log in logs)
    if any(candidate.role == "root" for candidate in unhandled) or not failed:
        return unhandled, other_failures
    return [it.as_hypothesis() if it in handled else it for it in all_candidates], failures


def _demote_late_roots(failures: Sequence[Traceback], all_candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the root candidates; a late one after another failure becomes a hypothesis.

    A late pattern is printed after a failure, such as a shell's message on a kill.
    """
    roots = [candidate for candidate in all_candidates if candidate.role == "root"]
    rest = [candidate for candidate in all_candidates if not candidate.also_after_failures]
    cascades = [candidate.first.line for candidate in rest if candidate.role == "cascade"]

    def follows(root: Candidate) -> bool:
        has_cascade = min(cascades, default=root.first.line) < root.first.line
        return has_cascade or _failed_earlier(failures, [root.as_hypothesis()], rest)

    return [root.as_hypothesis() if root.also_after_failures and follows(root) else root for root in roots]


def _only_consequences(
    wrappers: Sequence[Candidate], failures: Iterable[Traceback], logs: Iterable[LogFacts], fallback: Fallback
) -> bool:
    """Return whether the failures are only consequences, so that the logs do not show the root cause."""
    explained = _explained_traceback_ids(wrappers)
    if any(not _is_consequence(failure, explained) for failure in failures):
        return False
    own_lines = {(hit.source, hit.line) for candidate in wrappers for hit in candidate.hits}
    for hit in (hit for log in logs for hit in log.errors if (hit.source, hit.line) not in own_lines):
        exception = _EXCEPTION.search(hit.text)
        if exception and exception[1] not in _ENDING:
            return False
    metrics_show_cause = bool(fallback.leads) and fallback.leads[0].issue.code != _NAN
    return not (wrappers[0].issue.code == _NAN and metrics_show_cause)


def _run_survived(candidate: Candidate, logs: Iterable[LogFacts]) -> bool:
    """Return whether a run completed after all lines of a candidate, of which none is in a traceback."""
    completed = {log.source: hit.line for log in logs if (hit := find_end(log).completed)}
    return not any(hit.traceback or hit.line > completed.get(hit.source, 0) for hit in candidate.hits)


def _failed_after_the_end(rest: Sequence[Candidate], logs: Iterable[LogFacts], fallback: Fallback) -> bool:
    """Return whether a process failed only after the line that reports the end of the run, without a traceback."""
    ended = fallback.ended
    failed = any(log.failures or log.errors or log.cut_tracebacks for log in logs)
    if ended is None or failed or fallback.leads or fallback.symptoms or fallback.open_bar:
        return False
    hits = [*fallback.failing, *(hit for candidate in rest for hit in candidate.hits)]
    return all(hit.source == ended.source and hit.line > ended.line for hit in hits)


def _unresolved_state(
    logs: Sequence[LogFacts], failures: Sequence[Traceback], fallback: Fallback, *, excerpt: bool
) -> str:
    """Return the state of logs without a known root cause."""
    has_errors = any(log.errors for log in logs)
    if not any(log.lines for log in logs):
        return "empty"
    if failures:
        types = {failure.type.rpartition(".")[2] for failure in failures}
        interrupted = _INTERRUPT in types and types <= _CANCELLED
        return NOT_JUDGED if interrupted and not has_errors else "unknown"
    if fallback.leads:
        return HYPOTHESIS
    if has_errors or (fallback.failing and fallback.is_message):
        return "unknown"
    if fallback.symptoms or fallback.failing or any(log.cut_tracebacks for log in logs):
        return NOT_JUDGED
    return "clean" if fallback.ended or excerpt else NOT_JUDGED


def _failed_earlier(
    failures: Iterable[Traceback], broad: Sequence[Candidate], rest: Iterable[Candidate]
) -> bool:
    """Return whether an unexplained failure comes before the first line of the broad candidates."""
    explained = _explained_traceback_ids([*broad, *rest])
    first = min(candidate.first.line for candidate in broad)
    return any(not _is_consequence(failure, explained) and failure.end < first for failure in failures)


def _explained_traceback_ids(candidates: Iterable[Candidate]) -> set[int]:
    """Return the ids of the tracebacks that a candidate explains.

    A broad candidate or a consequence explains a traceback only by a line inside it, not by one below it.
    """
    return {
        id(hit.traceback)
        for candidate in candidates
        for hit in candidate.hits
        if hit.traceback
        and ((candidate.role == "root" and not candidate.broad) or hit.line <= hit.traceback.end)
    }


def _is_consequence(failure: Traceback, explained: set[int]) -> bool:
    """Return whether a traceback is explained (its id is in `explained`), or typical of processes shutting down."""
    return id(failure) in explained or failure.type.rpartition(".")[2] in _ENDING


def _anchors(logs: Sequence[LogFacts], explained: set[int], fallback: Fallback) -> tuple[Hit, ...]:
    """Return the lines to read first: exceptions (first causes and the last), consequences, then error lines."""
    tracebacks = []
    for log in logs:
        first_causes = [failure for failure in log.failures if failure.link == 0][:2]
        tracebacks += [
            (log, it) for it in [*first_causes, *([log.last_traceback] if log.last_traceback else [])]
        ]
    tracebacks.sort(key=lambda item: _is_consequence(item[1], explained))
    hits = [_traceback_hit(log, traceback) for log, traceback in tracebacks]
    for log in logs:
        hits += log.errors[:1] + log.errors[-1:]
    hits = hits or list(fallback.failing[:_MAX_FAILING])
    by_location = {(hit.source, hit.line): hit for hit in distinct_hits(hits)}
    return tuple(by_location.values())[:_MAX_ANCHORS]


def _traceback_hit(log: LogFacts, failure: Traceback) -> Hit:
    text = truncate(f"{failure.type}: {failure.message}".rstrip(": "), MAX_TEXT)
    if failure.frames:
        path, function = failure.frames[-1]
        text += f" (in {short_path(path)}, {function})" if function else f" (in {short_path(path)})"
    return Hit(log.source, failure.end, text, failure.rank, failure)


def _fingerprint(
    state: str, candidates: list[Candidate], logs: Sequence[LogFacts], explained: set[int]
) -> str:
    """Return a hash of a failure that ignores ranks, paths, times and numbers; "" if no line shows it.

    Quoted values are ignored if frames of a traceback identify the failure.
    """
    if state in {"clean", "empty", NOT_JUDGED, HYPOTHESIS}:
        return ""
    if candidates:
        failure = candidates[0].issue.code
    else:
        shapes = sorted(shape for shape in (_failure_shape(log, explained) for log in logs) if shape)
        causes = [shape for shape in shapes if not shape[0]] or shapes
        if not causes:
            return ""
        failure = Counter(causes).most_common(1)[0][0][1]
    return "v1:" + hashlib.sha256(f"{state}|{failure}".encode()).hexdigest()[:16]


def _failure_shape(log: LogFacts, explained: set[int]) -> tuple[bool, str] | None:
    """Return (whether the first cause in a log is a consequence, the cause without numbers); None without a failure."""
    causes = [failure for failure in log.failures if failure.link == 0]
    causes.sort(key=lambda failure: _is_consequence(failure, explained))
    if failure := next(iter(causes), log.last_traceback):
        frames = [f"{short_path(path)}:{function}" for path, function in failure.frames[-3:]]
        # Without frames, only a quoted name may tell this failure from another one.
        message = without_values(failure.message, quoted=bool(frames))[:200]
        shape = "|".join([failure.type, message, *frames])
        return _is_consequence(failure, explained), shape
    hits = log.errors or log.logged_errors
    return (True, without_values(hits[0].text[:400], quoted=False)) if hits else None
