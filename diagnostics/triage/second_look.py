"""Look again at logs in which no signature matches a root cause.

The result has leads (issues that fit), similar issues, symptoms in the metrics, and the end of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diagnostics.catalog.model import Issue
from diagnostics.logs.metric_names import metric_rows
from diagnostics.logs.tracebacks import short_path
from diagnostics.triage import symptoms
from diagnostics.triage.leads import Lead, is_question
from diagnostics.triage.log_end import LogEnd, Stall, find_end
from diagnostics.triage.model import Hit, LogFacts
from diagnostics.triage.rules import Rules
from diagnostics.triage.symptoms import Symptom

# A log with so few lines is a user's selection.
_PASTED_LINES = 16
_MAX_FAILURES, _MAX_LINES, _MAX_CUT = 3, 6, 2
_INNERMOST = 4


@dataclass(frozen=True)
class SecondLook:
    """Observations of a second look.

    Attributes:
        leads: Issues that fit.
        similar: Similar known issues, to read.
        ended: The line that reports the end of the run.
        last: The last line of each log.
        stall: Messages that the last lines of a log repeat without progress.
        failing: Lines that report a failure, by their words or level; no rule matched them.
        message: The logs are pasted messages.
        recovered: Metrics were NaN and are numbers again.
    """

    leads: tuple[Lead, ...] = ()
    similar: tuple[Issue, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    ended: Hit | None = None
    last: tuple[Hit, ...] = ()
    stall: Stall | None = None
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
    leads: tuple[Lead, ...] = ()
    similar: tuple[Issue, ...] = ()
    if visible or failing or any(_needs_leads(log, end) for log, end in ends):
        codes = rules.issue_search.most_similar(_failure_text(logs, failing))
        similar = tuple(rules.issues[code] for code in codes)
        leads = rules.fragments.leads(ends, visible)
    return SecondLook(
        leads,
        similar,
        tuple(visible),
        next((end.ended for _, end in ends if end.ended), None),
        tuple(end.last for _, end in ends if end.last),
        next((end.stall for _, end in ends if end.stall and not end.ended), None),
        failing,
        any(end.last for _, end in ends) and all(end.message for _, end in ends if end.last),
        symptoms.has_recovered(rows),
    )


def _needs_leads(log: LogFacts, end: LogEnd) -> bool:
    waits = end.stall and end.stall.wait
    return bool(waits or is_question(end) or log.failures or log.errors or log.cut)


def _failure_text(logs: Iterable[LogFacts], failing: Sequence[Hit]) -> str:
    """Return the messages of failures, and the innermost frames of their tracebacks, which are the most specific."""
    texts: list[str] = []
    for log in logs:
        last = [log.last] if log.last else []
        for traceback in [*log.failures[:_MAX_FAILURES], *last, *log.cut[:_MAX_CUT]]:
            texts += [traceback.type, traceback.message]
            for path, function in traceback.frames[-_INNERMOST:]:
                texts += [*short_path(path).removesuffix(".py").split("/"), function]
        texts += [hit.text for hit in log.errors[:_MAX_FAILURES]]
    return "\n".join([*texts, *(hit.text for hit in failing[:_MAX_LINES])])
