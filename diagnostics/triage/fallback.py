"""Analyze logs without a known root cause: find leads, similar issues, symptoms and the end of the run.

`analyze_unmatched` returns a `Fallback`. A lead is a known issue that may explain a log although no line proves it.
Leads come from a traceback without its last line, a wait at the end, a prompt for input, a symptom in the metrics, or a
line that several failures print. Each lead is a hypothesis, and names a test that would confirm or exclude it.
"""

import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnostics.catalog.model import Issue
from diagnostics.logs.metrics import metric_rows
from diagnostics.logs.tracebacks import short_path
from diagnostics.triage import symptoms
from diagnostics.triage.log_end import LogEnd, OpenBar, Stall, find_end
from diagnostics.triage.log_facts import Hit, LogFacts, has_frame
from diagnostics.triage.rules import Rules
from diagnostics.triage.symptoms import Symptom

MAX_LEADS = 3
# A log with at most this number of lines counts as a selection by the user.
_PASTED_LINES = 16
_MAX_FAILURES, _MAX_LINES, _MAX_CUT = 3, 6, 2
# Number of innermost frames of a traceback that are compared with the catalog.
_INNERMOST = 4
_TABLE = tomllib.loads(Path(__file__).with_name("waits.toml").read_text(encoding="utf-8"))
# A prompt for input, which nobody answers in a batch job.
_QUESTION = re.compile(_TABLE["question"])
# (code, pattern of the message that a waiting run repeats, test that would confirm or exclude the issue).
_WAITS = tuple((wait["code"], re.compile(wait["pattern"]), wait["settles"]) for wait in _TABLE["wait"])


@dataclass(frozen=True)
class Lead:
    """A known issue that may explain the log.

    Attributes:
        issue: The known issue.
        why: The observation.
        settles: The test that would confirm or exclude the issue.
        hit: The line of the observation.
    """

    issue: Issue
    why: str
    settles: str
    hit: Hit


@dataclass(frozen=True)
class Fallback:
    """The results for logs without a known root cause.

    Attributes:
        leads: Known issues that may explain the logs, likeliest first.
        similar: Known issues with similar words, best first.
        symptoms: Symptoms in the metrics.
        ended: A line that reports the end of the run, from any log; None if there is none.
        survived: Lines whose words report a failure, before the run completed.
        last: The last line of each log.
        stall: Messages that the last lines of a log without an end repeat without progress; None if there are none.
        failing: Lines that report a failure by their words or level, although no rule matched them.
        is_message: Whether the logs are pasted error messages.
        recovered: Whether metrics were NaN and later are numbers again.
        open_bar: A progress bar of the run that is not full.
    """

    leads: tuple[Lead, ...] = ()
    similar: tuple[Issue, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    ended: Hit | None = None
    survived: tuple[Hit, ...] = ()
    last: tuple[Hit, ...] = ()
    stall: Stall | None = None
    failing: tuple[Hit, ...] = ()
    is_message: bool = False
    recovered: bool = False
    open_bar: OpenBar | None = None


def analyze_unmatched(logs: Sequence[LogFacts], rules: Rules) -> Fallback:
    """Analyze the last lines, metrics and failures of scanned logs."""
    ends = [(log, find_end(log)) for log in logs]
    rows = [row for log in logs for row in metric_rows(log.source, log.lines, log.head, log.tail)]
    visible = symptoms.find_symptoms(rows, pasted=sum(log.lines for log in logs) <= _PASTED_LINES)
    logged_errors = [hit for log in logs for hit in log.logged_errors]
    failing = tuple(dict.fromkeys([*logged_errors, *(hit for _, end in ends for hit in end.failing)]))
    leads: tuple[Lead, ...] = ()
    similar: tuple[Issue, ...] = ()
    if visible or failing or any(_needs_leads(log, end) for log, end in ends):
        codes = rules.issue_search.most_similar(_failure_text(logs, failing))
        similar = tuple(rules.issues[code] for code in codes)
        leads = unique_leads(_find_leads(rules.issues, ends, visible))
    return Fallback(
        leads=leads,
        similar=similar,
        symptoms=tuple(visible),
        ended=next((end.ended for _, end in ends if end.ended), None),
        survived=tuple(hit for _, end in ends for hit in end.survived),
        last=tuple(end.last for _, end in ends if end.last),
        stall=next((end.stall for _, end in ends if end.stall and not end.ended), None),
        failing=failing,
        is_message=any(end.last for _, end in ends) and all(end.is_message for _, end in ends if end.last),
        recovered=symptoms.has_recovered(rows),
        open_bar=next((end.open_bar for _, end in ends if end.open_bar), None),
    )


def _needs_leads(log: LogFacts, end: LogEnd) -> bool:
    """Return whether a log shows a wait, a prompt for input, an error or a traceback."""
    waits = end.stall and end.stall.wait
    return bool(waits or _is_question(end) or log.failures or log.errors or log.cut_tracebacks)


def _is_question(end: LogEnd) -> bool:
    """Return whether a log ends with a prompt for input."""
    return bool(end.last and not end.ended and _QUESTION.search(end.last.text))


def _failure_text(logs: Iterable[LogFacts], failing: Sequence[Hit]) -> str:
    """Return a search text: the messages of failures and the innermost frames of their tracebacks."""
    texts: list[str] = []
    for log in logs:
        last = [log.last_traceback] if log.last_traceback else []
        for traceback in [*log.failures[:_MAX_FAILURES], *last, *log.cut_tracebacks[:_MAX_CUT]]:
            texts += [traceback.type, traceback.message]
            for path, function in traceback.frames[-_INNERMOST:]:
                texts += [*short_path(path).removesuffix(".py").split("/"), function]
        texts += [hit.text for hit in log.errors[:_MAX_FAILURES]]
    return "\n".join([*texts, *(hit.text for hit in failing[:_MAX_LINES])])


def _find_leads(
    issues: Mapping[str, Issue], logs: Sequence[tuple[LogFacts, LogEnd]], visible: Sequence[Symptom]
) -> Iterator[Lead]:
    """Yield the leads in all logs, the most likely first."""
    for _, end in logs:
        yield from _leads_from_waits(issues, end)
    for log, _ in logs:
        yield from _leads_from_frames(issues, log)
    used = {name for log, _ in logs for name in log.frameworks}
    for symptom in visible[:2]:
        for cause in symptom.rule.causes:
            issue = issues.get(cause.code)
            if issue and (not used or "vllm" in issue.frameworks or used.intersection(issue.frameworks)):
                yield Lead(issue, symptom.rule.name, cause.settles, symptom.hits[0])


def _leads_from_waits(issues: Mapping[str, Issue], end: LogEnd) -> Iterator[Lead]:
    """Yield a lead for a prompt at the end of a log, or for a repeated wait that `waits.toml` lists."""
    if end.last and _is_question(end):
        yield Lead(issues["HNG008"], "the log ends with a question", _TABLE["question_settles"], end.last)
    if not end.stall or not end.stall.wait:
        return
    reason = "one line that reports a wait"
    if end.stall.lines > 1:
        reason = f"the run waits: the last {end.stall.lines} lines repeat this one, and nothing follows"
    for code, pattern, settles in _WAITS:
        if pattern.search(end.stall.wait.text) and code in issues:
            yield Lead(issues[code], reason, settles, end.stall.wait)
            return


def _leads_from_frames(issues: Mapping[str, Issue], log: LogFacts) -> Iterator[Lead]:
    """Yield issues whose signature names a frame of a traceback without an end."""
    for traceback in log.cut_tracebacks:
        innermost = traceback.frames[-_INNERMOST:]
        path, function = traceback.frames[-1]
        text = f"in {short_path(path)}, {function}"
        hit = Hit(log.source, traceback.line, text, traceback.rank, traceback)
        for issue in issues.values():
            if issue.signature and any(has_frame(it, innermost) for it in issue.signature.frames):
                reason = "a traceback without its last line, in code of this issue"
                yield Lead(issue, reason, "the last line of that traceback, with the exception", hit)


def lead_from_broad_line(issue: Issue, hit: Hit) -> Lead:
    """Return the lead for a line that failures with other causes print too."""
    settles = "the first traceback of that process: what failed before this line?"
    return Lead(issue, "a line that other failures also print", settles, hit)


def unique_leads(*leads: Iterable[Lead]) -> tuple[Lead, ...]:
    """Return leads in their order, without repeated issues."""
    by_code: dict[str, Lead] = {}
    for lead in itertools.chain(*leads):
        by_code.setdefault(lead.issue.code, lead)
    return tuple(by_code.values())
