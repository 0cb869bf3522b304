"""The end of a log: does it say that the run came to its end, does it wait, does it speak of a failure by no rule?

A log without any failure is no good sign by itself: who hangs, and who is killed, prints nothing more. Only what says
that the run ended makes it clean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.output.redact import mask_and_cut
from diagnostics.triage import facts
from diagnostics.triage.reading import envelopes
from diagnostics.triage.reading.prefixes import clean
from diagnostics.triage.seen import Hit
from diagnostics.triage.tracebacks import HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diagnostics.triage.seen import Seen

# So many of the last lines are looked at, and at a terminal's width the pieces of progress bars in one.
_LINES, _SHOWN = 120, 300
# What Python ignored takes so many lines at the most.
_IGNORED = 40
# What trainers, trackers, servers, launchers, schedulers and test runners print last, and only then.
_ENDED = re.compile(
    r"train_runtime|Final validation metrics|[Ff]inal (?:metrics|checkpoint saved)"
    r"|Max number of (?:steps|epochs) has been reached|`Trainer\.fit` stopped: `max_"
    r"|\b(?:[Tt]raining|[Rr]un|[Jj]ob|[Tt]ask|[Ee]valuation|[Pp]ipeline|[Rr]ollouts?)"
    r"(?: (?:is|has|run|job|process|loop))?(?: now)? ?:? (?:complete[d]?|finished|done|ended|succeeded)\b"
    r"|\b(?:[Ff]inished|[Cc]ompleted|[Dd]one) (?:the )?(?:training|run|job)\b"
    r"|(?:completed|finished|exited|ended|shut ?down|closed) (?:successfully|cleanly|gracefully)"
    r"|[Ss]uccessfully (?:completed|finished)"
    r"|Job '[\w.-]+' succeeded|Job \S+ (?:COMPLETED|Succeeded)"
    r"|Application shutdown complete|Finished server process"
    r"|wandb: (?:Synced |Run (?:history|summary):|Find logs at|.*[Vv]iew run .* at)"
    r"|\bYou can sync this run to the cloud"
    r"|swanlab: .*(?:finished|[Rr]un is done)|End time of running main|best_model_checkpoint"
    r"|exit(?:ed)?(?:ing)? (?:with )?(?:code|status):? 0\b|\bEXIT(?:_CODE)?[ =:]+0\b|exitCode\W+0\b"
    r"|^={5,} .*\b\d+ passed\b.* in [\d.]+s|^\d+ passed in [\d.]+s|^OK$|^Successfully installed "
    r"|^(?:[Aa]ll )?[Dd]one[.!]?$|^(?:[Ff]inished|[Cc]omplete[d]?)[.!]?$"
    r"|global_step/max_steps\W+(\d+)/\1\b|iteration +(\d+)/ *\2 "
)
# A bar of a whole run that is full; bars of loading, mapping and sampling are full all the time.
_FULL = re.compile(r"^(?:(?P<of>[^|%\[\]]{0,60}?):? *)?100%\|[^|]{0,400}\| *(?P<n>\d+)/(?P=n) \[(?!.*0%\|)")
_OF_A_RUN = re.compile(r"^$|train|epoch|episode|step|progress|iter", re.IGNORECASE)
_BAR = re.compile(r"\d%\|")
_FAILING = re.compile(
    r"(?i)\b(?:errors?|exception|failed|failure|fatal|cannot|can't|couldn't|could not|unable to|abort(?:ed|ing)?|killed"
    r"|not found|no such|denied|refused|timed? ?out|assert(?:ion)?|panic|traceback|not supported|unsupported|invalid"
    r"|mismatch|missing|terminated|crash(?:ed)?|segfault|segmentation|out of memory|oom|preempt\w*|not defined)\b"
    r"|\b[A-Z]\w+(?:Error|Exception)\b"
    # What Python's own exceptions say, pasted without their names.
    r"|has no attribute '|is not (?:callable|subscriptable|iterable)|got an unexpected keyword|index out of range"
)
# What speaks of failures and is none.
_NONE = re.compile(
    r"(?i)\b(?:no|0|zero|without(?: any)?) (?:\w+ )?(?:errors?|failures?|exceptions?)\b|\berrors?\W{1,3}0\b"
    r"|\bfail(?:ed|ures?)\W{1,3}0\b|may be missing|if (?:\w+ ){0,6}(?:fails?|error)|not found\. (?:using|falling)"
)
_WAITING = re.compile(
    r"(?i)\b(?:wait(?:ing)?|retry(?:ing)?|retries|not (?:yet )?(?:up|ready|available|reachable|responding)(?: yet)?"
    r"|still (?:not|in)|pending|polling|reconnect\w*|trying (?:again|to (?:connect|reach)))\b"
    r"|No available shared memory"
)
_GIVEN_UP = re.compile(
    r"(?i)\b(?:fail(?:ed|ure)|exceeded|gave up|giving up|timed? ?out|after \d+ (?:retries|attempts|tries))"
)
_VALUES = re.compile(r"\d+(?:\.\d+)*")
# A message that was pasted, and no log.
_A_MESSAGE = 4
_REPEATS = 3


@dataclass(frozen=True)
class End:
    """How a log ends.

    Attributes:
        last: Its last line.
        ended: The line that says that the run came to its end.
        waits: The last of the lines in which it says again and again that it waits.
        times: How many times it says so.
        failing: Lines that speak of a failure, which no rule knows.
        message: Whether it is a message that somebody pasted, rather than a log.
    """

    last: Hit | None
    ended: Hit | None = None
    waits: Hit | None = None
    times: int = 0
    failing: tuple[Hit, ...] = ()
    message: bool = False


def end_of(seen: Seen) -> End:
    """How a log ends, by its last lines."""
    said = list(_lines(seen))
    if not said:
        return End(None)
    times = _repeated(said)
    return End(
        said[-1][0],
        next((hit for hit, level in reversed(said) if level != "error" and _is_end(hit.text)), None),
        said[-1][0] if times >= min(_REPEATS, len(said)) else None,
        times,
        tuple(hit for hit, level in said if level != "fine" and _fails(hit.text, level)),
        len(said) <= _A_MESSAGE
        and seen.lines <= 2 * _A_MESSAGE
        and any(level != "fine" and _fails(hit.text, "") and "\\n" not in hit.text for hit, level in said),
    )


def _lines(seen: Seen) -> Iterator[tuple[Hit, str]]:
    """The last lines that are not empty, each with what its logger calls it: `error`, `fine`, or nothing."""
    raw = seen.tail.split(b"\n")
    if raw and not raw[-1]:
        raw.pop()
    if len(seen.tail) >= TAIL:
        raw = raw[1:]
    ignored = 0
    for number, data in list(enumerate(raw, seen.lines - len(raw) + 1))[-_LINES:]:
        for line in envelopes.inside(data) or (clean(data.decode("utf-8", "replace")),):
            text = line.text.strip()
            if facts.IGNORED in text:
                ignored = _IGNORED
            if text:
                level = "error" if line.error else "fine" if line.fine or ignored else ""
                yield (
                    Hit(seen.source, number, mask_and_cut(text, _SHOWN), line.rank or seen.rank, None),
                    level,
                )
            # Its traceback ends with the exception, which is the first line that begins at the margin.
            begun = text and line.text[0] != " " and not text.startswith((HEADER, facts.IGNORED))
            ignored = 0 if begun else max(0, ignored - 1)


TAIL = 1 << 14


def _is_end(text: str) -> bool:
    full = _FULL.search(text)
    return bool(full and _OF_A_RUN.search(full["of"] or "")) or bool(
        _ENDED.search(text) and not _BAR.search(text)
    )


def _fails(text: str, level: str) -> bool:
    if level == "error":
        return True
    if _WAITING.search(text) and not _GIVEN_UP.search(text):
        return False
    return bool(_FAILING.search(text)) and not _NONE.search(text) and not _BAR.search(text)


def _repeated(said: Sequence[tuple[Hit, str]]) -> int:
    """How many of the last lines say the same, of a wait."""
    shapes = [_VALUES.sub("_", hit.text) for hit, _ in said[-40:]]
    return shapes.count(shapes[-1]) if _WAITING.search(shapes[-1]) else 0
