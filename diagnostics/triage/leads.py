"""Find leads: known issues that fit a log although the line that would show them is missing.

A lead comes from a message that was cut off, from frames or a message without the exception's name, from a repeated
wait, or from a symptom in the metrics. Each lead is a hypothesis and names the test that would settle it.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnostics.catalog import literal_prefilter
from diagnostics.catalog.model import CONFIRMATION, Issue
from diagnostics.logs.tracebacks import short_path
from diagnostics.triage.log_end import LogEnd
from diagnostics.triage.model import Hit, LogFacts, has_frame
from diagnostics.triage.symptoms import Symptom

MAX_LEADS = 3
# Letters that must be left of a message that was cut off.
_MIN_LEFT = 8
_INNERMOST = 4
# Letters that a pattern must have without the exception's name.
_MIN_BARE = 10
_RAISED = re.compile(r"(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)): (?P<message>.+)")
# The name of an exception at the beginning of a pattern.
_TYPED = re.compile(r"^\(?(?:\\b)?(?:[\w.\\]|\(\?:[\w|]*\))*(?:Error|Exception|Failure)\)?: ")
_VALUES = re.compile(r"\d+")
# A prompt for input, which a batch job never gets.
_QUESTION = re.compile(
    r"(?i)enter your (?:choice|api key|password|token)|^wandb: \(\d\) |\[y(?:es)?/n(?:o)?\]|\(y/n\)"
    r"|(?:password|passphrase)[^:]{0,40}: ?$"
    r"|do you (?:wish|want) to .*\?|press (?:enter|any key)"
)
# Issues by the messages that a waiting run repeats, with the test that would settle them.
_WAITS = tuple(
    (wait["code"], re.compile(wait["pattern"]), wait["settles"])
    for wait in tomllib.loads(Path(__file__).with_name("waits.toml").read_text(encoding="utf-8"))["wait"]
)


@dataclass(frozen=True)
class Lead:
    """A known issue that fits the log.

    Attributes:
        why: The observation, and why it is incomplete.
        settles: The test that would settle it.
        cut: The observation is the beginning of the line that would show the issue.
    """

    issue: Issue
    why: str
    settles: str
    hit: Hit
    cut: bool = False


class Fragments:
    """Parts of the entries' messages, to match against incomplete logs."""

    def __init__(self, issues: Mapping[str, Issue]) -> None:
        self._issues = issues
        self._messages = [
            (_without_numbers(match["type"].rpartition(".")[2] + ": " + match["message"]), code)
            for code, issue in issues.items()
            if issue.signature and issue.signature.role != CONFIRMATION
            for sample in issue.signature.samples
            if sample.matches
            for line in sample.text.splitlines()
            if (match := _RAISED.search(line))
        ]
        bare = [
            (code, _TYPED.sub("", pattern, count=1))
            for code, issue in issues.items()
            if issue.signature and issue.signature.role == "root" and not issue.signature.all
            for pattern in issue.signature.any
            if _TYPED.search(pattern)
        ]
        texts = {pattern: literal_prefilter.literals(pattern) for _, pattern in bare}
        self._bare = [it for it in bare if min(map(len, texts[it[1]]), default=0) >= _MIN_BARE]
        by_text: dict[str, list[int]] = {}
        for index, (_, pattern) in enumerate(self._bare):
            for text in texts[pattern]:
                by_text.setdefault(text, []).append(index)
        self._set = literal_prefilter.PatternSet([pattern for _, pattern in self._bare], by_text)

    def leads(self, logs: Sequence[tuple[LogFacts, LogEnd]], symptoms: Sequence[Symptom]) -> tuple[Lead, ...]:
        """Return the leads in some logs, the most likely first, each issue once."""
        leads = [lead for log, end in logs for lead in self._cut_messages(log, end)]
        leads += [lead for _, end in logs for lead in self._waits(end)]
        leads += [lead for log, _ in logs for lead in self._frames(log)]
        leads += [lead for _, end in logs for lead in self._untyped_messages(end.failing)]
        leads += [
            Lead(self._issues[cause.code], symptom.what, cause.settles, symptom.hits[0])
            for symptom in symptoms[:2]
            for cause in symptom.causes
            if cause.code in self._issues
        ]
        return unique_leads(leads)

    def _cut_messages(self, log: LogFacts, end: LogEnd) -> Iterable[Lead]:
        """Yield issues whose message begins with the last line."""
        last = end.last
        match = _RAISED.search(last.text) if last and not log.matched_at(last.line) else None
        if not last or not match or len(match["message"]) < _MIN_LEFT:
            return
        shape = _without_numbers(match["type"].rpartition(".")[2] + ": " + match["message"].rstrip(". …"))
        matching = {code: text for text, code in self._messages if text.startswith(shape)}
        if len(matching) <= MAX_LEADS:
            for code, text in matching.items():
                settles = f"the rest of that line: {text[:160]!r}?"
                yield Lead(self._issues[code], "a message that is cut off", settles, last, cut=True)

    def _waits(self, end: LogEnd) -> Iterable[Lead]:
        if end.last and is_question(end):
            yield Lead(
                self._issues["HNG008"],
                "the log ends with a question",
                "does the process read standard input? Set WANDB_MODE=offline, give a token, or use < /dev/null",
                end.last,
            )
        if not end.stall or not end.stall.wait:
            return
        reason = "one line that reports a wait"
        if end.stall.lines > 1:
            reason = f"the run waits: the last {end.stall.lines} lines repeat this one, and nothing follows"
        for code, pattern, settles in _WAITS:
            if pattern.search(end.stall.wait.text) and code in self._issues:
                yield Lead(self._issues[code], reason, settles, end.stall.wait)
                return

    def _frames(self, log: LogFacts) -> Iterable[Lead]:
        """Yield issues that name the code of a traceback without an end."""
        for traceback in log.cut:
            innermost = traceback.frames[-_INNERMOST:]
            path, function = traceback.frames[-1]
            text = f"in {short_path(path)}, {function}"
            hit = Hit(log.source, traceback.line, text, traceback.rank, traceback)
            for issue in self._issues.values():
                if issue.signature and any(has_frame(it, innermost) for it in issue.signature.frames):
                    yield Lead(
                        issue,
                        "a traceback without its last line, in code of this issue",
                        "the last line of that traceback, with the exception",
                        hit,
                    )

    def _untyped_messages(self, hits: Iterable[Hit]) -> Iterable[Lead]:
        for hit in hits:
            for index in self._set.match(hit.text):
                yield Lead(
                    self._issues[self._bare[index][0]],
                    "the message of this issue without the name of the exception",
                    "the traceback above that line, and the name of the exception",
                    hit,
                )


def lead_from_broad_line(issue: Issue, hit: Hit) -> Lead:
    """Return the lead for a line that failures of other causes also print."""
    return Lead(
        issue,
        "a line that other failures also print",
        "the first traceback of that process: what failed before this line?",
        hit,
    )


def unique_leads(*leads: Iterable[Lead]) -> tuple[Lead, ...]:
    """Return leads in their order, each issue once."""
    by_code: dict[str, Lead] = {}
    for lead in itertools.chain(*leads):
        by_code.setdefault(lead.issue.code, lead)
    return tuple(by_code.values())


def is_question(end: LogEnd) -> bool:
    """Whether a log ends with a question."""
    return bool(end.last and not end.ended and _QUESTION.search(end.last.text))


def _without_numbers(text: str) -> str:
    return _VALUES.sub("0", text)
