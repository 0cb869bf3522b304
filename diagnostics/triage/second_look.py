"""The second look, at logs in which no signature shows a root: leads, similar issues, symptoms, the end of the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from diagnostics.catalog.model import Issue
from diagnostics.logs.metric_names import metric_rows
from diagnostics.output.redact import mask_and_cut
from diagnostics.triage import similarity, symptoms
from diagnostics.triage.leads import Lead, is_question, lead_from_similar_message, unique_leads
from diagnostics.triage.log_end import LogEnd, find_end
from diagnostics.triage.model import Hit, LogFacts
from diagnostics.triage.rules import Rules
from diagnostics.triage.symptoms import Symptom

# A log with so few lines is a user's selection.
_PASTED_LINES = 16
_MAX_FAILURES, _MAX_LINES, _MAX_CUT = 3, 6, 2
_MAX_MESSAGE = 400


@dataclass(frozen=True)
class SecondLook:
    """Observations of a second look.

    Attributes:
        leads: Issues that fit.
        similar: Similar known issues, to read.
        ended: The line that reports the end of the run.
        last: The last line of each log.
        stalled: Messages that the last lines of a log repeat without a change.
        stalled_lines: Number of these lines.
        failing: Lines that report a failure, by their words or level; no rule matched them.
        message: The logs are pasted messages.
        recovered: Metrics were NaN and are numbers again.
    """

    leads: tuple[Lead, ...] = ()
    similar: tuple[Issue, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    ended: Hit | None = None
    last: tuple[Hit, ...] = ()
    stalled: tuple[Hit, ...] = ()
    stalled_lines: int = 0
    failing: tuple[Hit, ...] = ()
    message: bool = False
    recovered: bool = False


def look_again(logs: Sequence[LogFacts], rules: Rules) -> SecondLook:
    """Check heads, tails and failures of logs that were scanned."""
    ends = [(log, find_end(log)) for log in logs]
    rows = [row for log in logs for row in metric_rows(log.source, log.lines, log.head, log.tail)]
    visible = symptoms.find_symptoms(rows, pasted=sum(log.lines for log in logs) <= _PASTED_LINES)
    error_lines = [hit for log in logs for hit in log.error_lines]
    failing = tuple(dict.fromkeys([*error_lines, *(hit for _, end in ends for hit in end.failing)]))
    stall = next((end for _, end in ends if end.stalled and not end.ended), LogEnd(None))
    leads: tuple[Lead, ...] = ()
    similar: tuple[Issue, ...] = ()
    if visible or failing or any(_needs_leads(log, end) for log, end in ends):
        similar = tuple(
            rules.issues[code] for code in rules.word_index.similar(_failure_words(logs, failing))
        )
        leads = unique_leads(_similar_messages(logs, similar, rules), rules.fragments.leads(ends, visible))
    return SecondLook(
        leads,
        similar,
        tuple(visible),
        next((end.ended for _, end in ends if end.ended), None),
        tuple(end.last for _, end in ends if end.last),
        stall.stalled,
        stall.stalled_lines,
        failing,
        any(end.last for _, end in ends) and all(end.message for _, end in ends if end.last),
        symptoms.has_recovered(rows),
    )


def _needs_leads(log: LogFacts, end: LogEnd) -> bool:
    return bool(end.waits or is_question(end) or log.failures or log.errors or log.cut)


def _failure_words(logs: Iterable[LogFacts], failing: Sequence[Hit]) -> list[str]:
    words: list[str] = []
    for log in logs:
        last = [log.last] if log.last else []
        for traceback in [*log.failures[:_MAX_FAILURES], *last, *log.cut[:_MAX_CUT]]:
            words += similarity.traceback_words(traceback)
        for hit in log.errors[:_MAX_FAILURES]:
            words += similarity.split_words(hit.text)
    for hit in failing[:_MAX_LINES]:
        words += similarity.split_words(hit.text)
    return words


def _similar_messages(logs: Iterable[LogFacts], similar: Iterable[Issue], rules: Rules) -> Iterator[Lead]:
    """Yield the issue with a similar message, if the words of the whole log are similar to it, too."""
    messages = {
        hit.text: hit for log in logs for hit in _raised_messages(log) if not rules.is_consequence(hit.text)
    }
    match = rules.messages.similar(messages) if messages else None
    if match and match[0] in {issue.code for issue in similar}:
        code, known_message, message = match
        yield lead_from_similar_message(rules.issues[code], messages[message], known_message)


def _raised_messages(log: LogFacts) -> Iterator[Hit]:
    for traceback in [*log.failures[:_MAX_FAILURES], *([log.last] if log.last else [])]:
        text = mask_and_cut(f"{traceback.type}: {traceback.message}".rstrip(": "), _MAX_MESSAGE)
        yield Hit(log.source, traceback.end, text, traceback.rank, traceback)
    if not log.cut:
        yield from log.errors[:_MAX_FAILURES]
