"""Read the last lines of a log: the end of the run, repeated messages of a stalled run, failures, an open progress bar.

A log without a failure does not show that the run ended, because a process that hangs or was killed prints nothing
more.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import msgspec

from diagnostics.logs import envelopes
from diagnostics.logs.prefixes import parse_line
from diagnostics.logs.tracebacks import HEADER
from diagnostics.triage.line_patterns import IGNORED_EXCEPTION
from diagnostics.triage.log_facts import Hit, LogFacts

# Number of the log's last bytes that are kept.
TAIL = 1 << 14
# Maximum number of last lines that are checked.
_MAX_LINES = 120
# Maximum length of a traceback after "Exception ignored in", in lines.
_MAX_IGNORED_LINES = 40
_TABLE = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, list[str]])
_PATTERNS = {name: "|".join(patterns) for name, patterns in _TABLE.items()}
_COMPLETED = re.compile(_PATTERNS["completed"])
_ENDED = re.compile(f"{_PATTERNS['completed']}|{_PATTERNS['exited']}")
_FAILING = re.compile(rf"(?i)\b(?:{_PATTERNS['failure_words']})\b|{_PATTERNS['failure_texts']}")
_NO_FAILURE = re.compile(rf"(?i){_PATTERNS['no_failure']}")
_WAITING = re.compile(rf"(?i)\b(?:{_PATTERNS['wait_words']})\b|{_PATTERNS['wait_texts']}")
_FULL_BAR = re.compile(_PATTERNS["full_bar"])
_RUN_BAR_NAME = re.compile(r"^$|train|epoch|episode|step|progress|iter", re.IGNORECASE)
_BAR = re.compile(r"\d%\|")
_BAR_POSITION = re.compile(_PATTERNS["bar_position"])
# A step of a run that goes on.
_STEP = re.compile(r"(?i)^\W{0,3}(?:\w{0,20} )?step[ :=]+\d+|^\{['\"](?:loss|reward|kl|grad_norm)['\"]:")
_EPOCH = re.compile(r"['\"]epoch['\"]: ['\"]?(\d{1,9}(?:\.\d{1,18})?)")
# The step of a run, with the number of its steps.
_STEP_OF = re.compile(r"(?i)\bsteps?[ :=]{1,3}(\d{1,9}) ?/ ?(\d{1,9})\b")
ZERO_COUNTER = re.compile(_PATTERNS["zero_counter"])
"""A counter that is 0, such as `#running-req: 0` of an idle server or `buffer_size=0`; group 1 is its name."""
_PENDING = re.compile(r"(?i)\b(?:running|waiting|pending|queued?)(?:[ _-]req\w*)?\W{1,3}[1-9]")
_GIVEN_UP = re.compile(_PATTERNS["given_up"])
# Numbers in the message of a wait, except those of counters and steps.
_SECONDS_OR_ATTEMPTS = re.compile(r"(?<![=:\w.])(?<![=:] )(?<![Ss]tep )\d+(?:\.\d+)*")
# Maximum number of lines of a pasted message.
_MESSAGE_LINES = 4
# A stall is searched in this number of last lines. At most _MAX_CYCLE different messages must each be repeated
# _MIN_REPEATS times, in at least _MIN_STALL lines if not all of them report a wait.
_STALL_LINES, _MAX_CYCLE, _MIN_REPEATS, _MIN_STALL = 40, 6, 3, 6
# Times and addresses of objects, which differ in repeated lines.
_TIME_OR_ADDRESS = re.compile(r"0x[0-9a-f]+|\d{4}-\d\d-\d\d|\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?")


@dataclass(frozen=True)
class Stall:
    """Messages that the last lines of a log repeat without progress.

    Attributes:
        messages: The last line of each message, in the order of the log.
        lines: Number of last lines that repeat the messages.
        wait: The message that reports a wait; None if there is none.
    """

    messages: tuple[Hit, ...]
    lines: int
    wait: Hit | None = None


@dataclass(frozen=True)
class OpenBar:
    """A progress bar of the run that is not full; `hit` is its last line."""

    position: int
    total: int
    hit: Hit


@dataclass(frozen=True)
class LogEnd:
    """The facts in the last lines of a log.

    Attributes:
        last: The last line that is not blank; None if there is none.
        ended: The line that reports the end of the run; None if there is none.
        completed: The line that reports that the run reached its end, which a failed run does not print; else None.
        stall: The messages that the last lines repeat; None if there are none.
        failing: The last lines that report a failure by their level, or by their words without `completed` after them.
        survived: Lines that report a failure by their words only, before the run completed.
        is_message: Whether the text is a pasted error message rather than a log.
        open_bar: The run's progress bar in the last lines, if it is not full.
    """

    last: Hit | None
    ended: Hit | None = None
    completed: Hit | None = None
    stall: Stall | None = None
    failing: tuple[Hit, ...] = ()
    survived: tuple[Hit, ...] = ()
    is_message: bool = False
    open_bar: OpenBar | None = None


def find_end(log: LogFacts) -> LogEnd:
    """Return the facts in the last lines of a log."""
    lines = list(_last_lines(log))
    if not lines:
        return LogEnd(None)
    is_short = len(lines) <= _MESSAGE_LINES and log.lines <= 2 * _MESSAGE_LINES
    open_bar = _find_open_bar(hit for hit, _ in lines)
    readable = [(hit, level) for hit, level in lines if level != "fine"]
    failing = [(hit, level) for hit, level in readable if _reports_failure(hit.text, level)]
    steps = [tuple(map(int, match.groups())) for hit, _ in lines if (match := _STEP_OF.search(hit.text))]
    open_steps = steps[-1][1] if steps and steps[-1][0] < steps[-1][1] else 0
    # Transformers' trainer prints a summary at its end; before it, a full bar in the first epoch is one of a part.
    epochs = [float(match[1]) for hit, _ in lines if (match := _EPOCH.search(hit.text))]
    open_total = math.inf if epochs and epochs[-1] < 1 else max(open_steps, open_bar.total if open_bar else 0)
    completed = _find_end_line(lines, _COMPLETED, open_total)
    survived = [hit for hit, level in failing if not level and completed and hit.line < completed.line]
    return LogEnd(
        last=lines[-1][0],
        ended=_find_end_line(lines, _ENDED, open_total),
        completed=completed,
        stall=_find_stall([hit for hit, _ in lines[-_STALL_LINES:]]),
        failing=tuple(hit for hit, _ in failing if hit not in survived),
        survived=tuple(survived),
        is_message=is_short
        and any(_reports_failure(hit.text, "") and "\\n" not in hit.text for hit, _ in readable),
        open_bar=open_bar,
    )


def _find_open_bar(hits: Iterable[Hit]) -> OpenBar | None:
    """Return the run's bar that is not full in the last lines, of several the one with the largest total; else None."""
    bars: dict[tuple[str, int], OpenBar] = {}
    for hit in hits:
        bar = _BAR_POSITION.search(hit.text)
        if bar and _RUN_BAR_NAME.search(bar["name"] or ""):
            # EasyR1's bar counts with a decimal, and has the step in its name.
            total, name = int(float(bar["total"])), re.sub(r"\d+", "", bar["name"] or "")
            bars[name, total] = OpenBar(int(float(bar["n"])), total, hit)
    return max(
        (bar for bar in bars.values() if bar.position != bar.total), key=lambda bar: bar.total, default=None
    )


def _find_end_line(
    lines: Sequence[tuple[Hit, str]], pattern: re.Pattern[str], open_total: float
) -> Hit | None:
    """Return the last line that reports the end of the run by a pattern or a full bar; None if the run goes on."""
    repeated = _repeated_totals([hit.text for hit, _ in lines])
    for hit, level in reversed(lines):
        if level != "error" and _reports_end(hit.text, pattern, open_total, repeated):
            return hit
        position = _BAR_POSITION.search(hit.text)
        if _STEP.search(hit.text) or (position and position["n"] != position["total"]):
            return None
    return None


def _repeated_totals(texts: Sequence[str]) -> set[str]:
    """Return the totals of unnamed bars that were full more than once, with other lines between: one bar per step."""
    totals: Counter[str] = Counter()
    for _, group in groupby(texts, lambda text: bool(_BAR.search(text))):
        full_bars = filter(None, map(_FULL_BAR.search, group))
        totals.update({bar["n"] for bar in full_bars if not bar["of"]})
    return {total for total, count in totals.items() if count > 1}


def _last_lines(log: LogFacts) -> Iterator[tuple[Hit, str]]:
    """Yield the last lines that are not empty, each with `error`, `fine` (no failure), or an empty text if unknown."""
    raw = log.tail.split(b"\n")
    if raw and not raw[-1]:
        raw.pop()
    ignored = 0
    for number, data in list(enumerate(raw, log.lines - len(raw) + 1))[-_MAX_LINES:]:
        index = number - log.lines + len(raw) - 1
        before = b"\n".join([*raw[max(0, index - 2) : index], data.rstrip(b"\r").rpartition(b"\r")[0]])
        inner = envelopes.unwrap_bytes(data)
        for line in [parse_line(data.decode("utf-8", "replace"))] if inner is None else inner:
            text = line.text.strip()
            if IGNORED_EXCEPTION in text:
                ignored = _MAX_IGNORED_LINES
            if text:
                level = "error" if line.is_error else "fine" if line.reports_no_failure or ignored else ""
                before += f"\n{line.prefix}".encode()
                yield log.hit(number, text, line.rank, before=before), level
                before += text.encode()
            # An ignored traceback ends with the exception, the first line without indentation.
            is_exception = text and line.text[0] != " " and not text.startswith((HEADER, IGNORED_EXCEPTION))
            ignored = 0 if is_exception else max(0, ignored - 1)


def _reports_end(text: str, pattern: re.Pattern[str], open_total: float, repeated: Collection[str]) -> bool:
    """Return whether a line reports the end of the run.

    Args:
        text: Text of the line.
        pattern: Pattern of messages that report it.
        open_total: The largest total of a bar that is not full, or of the steps; infinite in the first epoch. A full
            bar of 32 samples is not the end of a run at step 56 of 2290.
        repeated: Totals of unnamed bars that are full more than once; see `_repeated_totals`.
    """
    full = _FULL_BAR.search(text)
    is_full_bar = bool(
        full
        and _RUN_BAR_NAME.search(full["of"] or "")
        and float(full["n"]) >= open_total
        and (full["of"] or full["n"] not in repeated)
    )
    return is_full_bar or bool(pattern.search(text) and not _BAR.search(text))


def _reports_failure(text: str, level: str) -> bool:
    """Return whether a line reports a failure by its level or words; a wait only if it was given up."""
    if level == "error":
        return True
    if _WAITING.search(text) and not _GIVEN_UP.search(text):
        return False
    return bool(_FAILING.search(text)) and not _NO_FAILURE.search(text) and not _BAR.search(text)


def _find_stall(hits: Sequence[Hit]) -> Stall | None:
    """Return the messages that the last lines repeat, if they report a wait or pending work; else None.

    In a short text, lines that all report a wait need no repetition. A message that reports a wait may count seconds or
    attempts. Any other message must repeat its values too, because the monitors of a working run print new values.
    """
    # Each rank may print the same line once.
    keys = [(hit.rank, _repeated_part(hit.text)) for hit in hits]
    before = next((place for place in range(len(keys) - 2, -1, -1) if keys[place] == keys[-1]), len(keys) - 1)
    cycle = set(keys[before:])
    start = next((place + 1 for place in range(len(keys) - 1, -1, -1) if keys[place] not in cycle), 0)
    count, messages = len(keys) - start, tuple(hits[-len(cycle) :])
    waits = [hit for hit in messages if _reports_wait(hit.text)]
    # An idle server and a heartbeat repeat themselves, too; metrics are progress.
    pending = waits or any(_PENDING.search(ZERO_COUNTER.sub("", hit.text)) for hit in messages)
    if not pending or len(cycle) > _MAX_CYCLE or any(_STEP.search(hit.text) for hit in messages):
        return None
    needed = _MIN_REPEATS * len(cycle)
    # A pasted line that reports a wait is enough.
    needed = min(needed, len(hits)) if len(waits) == len(messages) else max(_MIN_STALL, needed)
    if count < needed:
        return None
    return Stall(messages, count, waits[-1] if waits else None)


def _reports_wait(text: str) -> bool:
    """Return whether a line reports a wait by its words, apart from the names of counters at 0."""
    return bool(_WAITING.search(ZERO_COUNTER.sub("", text)))


def _repeated_part(text: str) -> str:
    """Return a message without times, and without the seconds or attempts of a wait."""
    text = _TIME_OR_ADDRESS.sub("", text)
    return _SECONDS_OR_ATTEMPTS.sub("_", text) if _reports_wait(text) else text
