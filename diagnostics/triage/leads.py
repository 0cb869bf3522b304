"""Leads: known issues that fit what is left of a log, where the line that would show one is missing.

A message that was cut off, frames without their exception, a message without its exception's name, a wait that
repeats, a symptom in the metrics. Each is a hypothesis, and says what would settle it.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.catalog import literal_prefilter
from diagnostics.catalog.model import CONFIRMATION
from diagnostics.output.redact import mask_and_cut as cut
from diagnostics.triage import triggers
from diagnostics.triage.seen import Hit
from diagnostics.triage.tracebacks import short_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from diagnostics.catalog.model import Issue
    from diagnostics.triage.endings import End
    from diagnostics.triage.seen import Seen
    from diagnostics.triage.symptoms import Symptom

MOST_LEADS = 3
# Of a message that was cut off so many letters must be left behind the exception's name.
_LEFT = 8
_INNERMOST = 4
# Without the exception's name a pattern must say so much.
_BARE = 10
_RAISED = re.compile(r"(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)): (?P<message>.+)")
# A name of an exception at the beginning of a pattern.
_TYPED = re.compile(r"^\(?(?:\\b)?(?:[\w.\\]|\(\?:[\w|]*\))*(?:Error|Exception|Failure)\)?: ")
_VALUES = re.compile(r"\d+")
# What is waited for, by what the log says while it waits.
_WAITS = (
    ("NET012", r"(?i)server (?:is )?(?:not|isn't) (?:up|ready|reachable|available)"
               r"|inference (?:server|pool)|rollout server"
               r"|waiting for (?:the )?(?:\w+ )?(?:vllm|inference|rollout|http) ?(?:server|service)?|/health",
     "the server's own log: does it end with an error, or with 'Application startup complete'? does"
     " `curl HOST:PORT/health` answer from here?"),
    ("RAY016", r"(?i)placement group|pending (?:resource|demand)|insufficient resources|cannot be scheduled",
     "ray status: which resources are asked for, and which are free?"),
    ("RAY015", r"(?i)connect to (?:the )?(?:remote )?gcs|ray (?:cluster|head|runtime)|raylet",
     "ray status from this machine; is the address in RAY_ADDRESS the head's?"),
    ("NET011", r"(?i)tcpstore|c10d|init_communicator|rendezvous store|client socket",
     "does the other side's log say that it joined the group? is the port open from here?"),
    ("ENG003", r"(?i)engine core|engine process|core proc|engine .{0,20}(?:start|ready)",
     "the engine's own lines: does it still load weights or compile? py-spy dump on it"),
    ("HNG002", r"No available shared memory broadcast block|shm_broadcast",
     "grpo-doctor hang on the run's processes: which rank is not in the collective?"),
    ("HNG015", r"(?i)rendezvous|waiting for .{0,30}(?:ranks|nodes|workers) to join",
     "how many ranks joined, and which machine is missing?"),
    ("HNG007", r"(?i)\block\b", "who holds the lock: fuser FILE, or lsof"),
)  # fmt: skip
# A question that somebody is to answer: nobody sees it where a job runs.
_ASKS = re.compile(
    r"(?i)enter your (?:choice|api key|password|token)|^wandb: \(\d\) |\[y(?:es)?/n(?:o)?\]|\(y/n\)"
    r"|(?:password|passphrase)[^:]{0,40}: ?$"
    r"|do you (?:wish|want) to .*\?|press (?:enter|any key)"
)
_COMPILED = tuple((code, re.compile(pattern), settles) for code, pattern, settles in _WAITS)


@dataclass(frozen=True)
class Lead:
    """A known issue that what was seen fits.

    Attributes:
        why: What was seen, and that it is not all.
        settles: What would tell whether it is this.
        cut: Whether it is the beginning of the very line that would show it.
        alike: Whether it is a message in other words than those that are known.
    """

    issue: Issue
    why: str
    settles: str
    hit: Hit
    cut: bool = False
    alike: bool = False


class Fragments:
    """What entries look like in pieces: made once, and only where no rule found anything."""

    def __init__(self, issues: Mapping[str, Issue]) -> None:
        self.issues = issues
        self._messages = [
            (_shape(match["type"].rpartition(".")[2] + ": " + match["message"]), code)
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
        self._bare = [
            (code, pattern) for code, pattern in bare if min(map(len, texts[pattern]), default=0) >= _BARE
        ]
        by_text: dict[str, list[int]] = {}
        for index, (_, pattern) in enumerate(self._bare):
            for text in texts[pattern]:
                by_text.setdefault(text, []).append(index)
        self._set = literal_prefilter.PatternSet([pattern for _, pattern in self._bare], by_text)

    def of(self, logs: Sequence[tuple[Seen, End]], symptoms: Sequence[Symptom]) -> list[Lead]:
        """The leads in some logs, the likeliest first, each issue once."""
        found = [lead for log, end in logs for lead in self._cut_message(log, end)]
        found += [lead for _, end in logs for lead in self._waits(end)]
        found += [lead for log, _ in logs for lead in self._frames(log)]
        found += [lead for _, end in logs for lead in self._untyped(end.failing)]
        found += [
            Lead(self.issues[cause.code], symptom.what, cause.settles, symptom.hits[0])
            for symptom in symptoms[:2]
            for cause in symptom.causes
            if cause.code in self.issues
        ]
        return list(together(found))

    def _cut_message(self, log: Seen, end: End) -> Iterable[Lead]:
        """The last line is the beginning of what an entry's exception says."""
        last = end.last
        match = _RAISED.search(last.text) if last and not log.failed_at(last.line) else None
        if not last or not match or len(match["message"]) < _LEFT:
            return
        shape = _shape(match["type"].rpartition(".")[2] + ": " + match["message"].rstrip(". …"))
        fitting = {code: text for text, code in self._messages if text.startswith(shape)}
        if len(fitting) <= MOST_LEADS:
            for code, text in fitting.items():
                yield Lead(
                    self.issues[code],
                    "a message that is cut off",
                    f"the rest of that line: {text[:160]!r}?",
                    last,
                    cut=True,
                )

    def _waits(self, end: End) -> Iterable[Lead]:
        if end.last and asks(end):
            yield Lead(
                self.issues["HNG008"],
                "the log ends with a question",
                "is the process still there, and does it read its input? WANDB_MODE=offline, a token, or < /dev/null",
                end.last,
            )
        if not end.waits:
            return
        for code, pattern, settles in _COMPILED:
            if pattern.search(end.waits.text) and code in self.issues:
                yield Lead(
                    self.issues[code],
                    f"a wait that repeats: {end.times} of the last lines say it, and nothing comes after them"
                    if end.times > 1
                    else "a line of a wait, alone",
                    settles,
                    end.waits,
                )
                return

    def _frames(self, log: Seen) -> Iterable[Lead]:
        for traceback in log.cut:
            inner = traceback.frames[-_INNERMOST:]
            for issue in self.issues.values():
                if issue.signature and any(triggers.holds(frame, inner) for frame in issue.signature.frames):
                    path, function = traceback.frames[-1]
                    hit = Hit(
                        log.source,
                        traceback.line,
                        f"in {short_path(path)}, {function}",
                        traceback.rank,
                        traceback,
                    )
                    yield Lead(
                        issue,
                        "a traceback without its end, in the code that this issue names",
                        "the line of the exception, at the end of that traceback",
                        hit,
                    )

    def _untyped(self, lines: Iterable[Hit]) -> Iterable[Lead]:
        for hit in lines:
            for index in self._set.match(hit.text):
                yield Lead(
                    self.issues[self._bare[index][0]],
                    "its message, without the name of the exception",
                    "the traceback above that line, and the name of the exception",
                    hit,
                )


def broadly(issue: Issue, hit: Hit) -> Lead:
    """What a line makes of an issue that failures of other causes print, too."""
    return Lead(
        issue,
        "a line that failures of other causes print, too",
        "what failed before that line, and in which code: the first traceback of that process",
        hit,
    )


def alike(issue: Issue, hit: Hit, line: str) -> Lead:
    """What a message makes of an issue that says nearly the same."""
    return Lead(
        issue,
        "a message much like one that this issue shows by",
        f"whether it says the same as: {cut(line.strip(), 160)!r}",
        hit,
        alike=True,
    )


def together(*found: Iterable[Lead]) -> tuple[Lead, ...]:
    """Leads in their order, each issue once."""
    firsts: dict[str, Lead] = {}
    for lead in itertools.chain(*found):
        firsts.setdefault(lead.issue.code, lead)
    return tuple(firsts.values())


def asks(end: End) -> bool:
    """Whether a log ends with a question."""
    return bool(end.last and not end.ended and _ASKS.search(end.last.text))


def _shape(text: str) -> str:
    return _VALUES.sub("0", text)
