"""What is kept of a run that goes on, and the questions that its last steps can answer: those of a run's records."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING

from diagnostics.audit.model import CLEAN, FAULT, NOT_ASKED, NOT_DECIDED, Fact, ProbeAnswer
from diagnostics.audit.recorded.questions import (
    advantages,
    contradictions,
    data_order,
    figures,
    loss_masks,
    samples,
    stream_laws,
)
from diagnostics.audit.recorded.rows import Recording, Remains, Series, groups_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diagnostics.audit.recorded.rows import Logged, Row

# Lines of metrics at the beginning, and the last ones; samples of the last steps, so many where a step has fewer;
# groups of which the spread is kept, and how many without any are no chance.
LINES, ROWS, MOST_ROWS, GROUPS, FLAT = 8, 128, 512, 256, 48
# Tokens of all these for streams and masks; samples of a step whose advantages are computed again, in a hundred ways.
TOKENS, AGAIN_ROWS = 8192, 256
# The mismatch that comes of arithmetic, by the metric, and what is more than that beside what the run began with.
_DRIFTS = (("probs_diff", 1e-4, 10.0, 0.02), ("mismatch_kl", 1e-5, 20.0, 0.005))
_SPREAD = ("rewards/constant", "rewards/no_spread")


class Lines:
    """The metrics of one file: its first lines and its last."""

    def __init__(self) -> None:
        self.first: list[Logged] = []
        self.last: deque[Logged] = deque(maxlen=LINES)
        self.count = 0

    def add(self, row: Logged) -> None:
        """One more."""
        if len(self.first) < LINES:
            self.first.append(row)
        self.last.append(row)
        self.count += 1

    def both(self) -> tuple[Logged, ...]:
        """The first and the last, none twice."""
        if self.count <= LINES:
            return tuple(self.first)
        return (*self.first, *itertools.islice(self.last, max(0, 2 * LINES - self.count), None))


class Window:
    """The last steps of a run."""

    def __init__(self) -> None:
        self._lines: dict[str, Lines] = {}
        self._steps: deque[list[Row]] = deque()
        self._kind, self._whole = "", False
        # Of each group its lowest and its highest reward.
        self._groups: deque[tuple[float, float]] = deque(maxlen=GROUPS)
        self._lowest, self._highest = float("inf"), float("-inf")

    def forget(self, source: str) -> None:
        """A file has begun anew: what it had is of another run."""
        self._lines.pop(source, None)

    def metrics(self, source: str, row: Logged) -> None:
        """A line of metrics."""
        self._lines.setdefault(source, Lines()).add(row)

    def samples(self, kind: str, rows: Sequence[Row]) -> None:
        """All samples of a step, or as many whole groups of it as are looked at."""
        kept: list[Row] = []
        for group in groups_of(list(rows)):
            told = [each for each in map(samples.total, group) if each is not None]
            if len(told) == len(group) > 1:
                self._groups.append((min(told), max(told)))
                self._lowest, self._highest = min(self._lowest, *told), max(self._highest, *told)
            if len(kept) + len(group) <= MOST_ROWS or not kept:
                kept += group
        self._kind, self._whole = kind, len(kept) == len(rows) <= AGAIN_ROWS
        self._steps.append(kept)
        while len(self._steps) > 1 and sum(map(len, self._steps)) - len(self._steps[0]) >= ROWS:
            self._steps.popleft()

    def of_metrics(self) -> Iterator[ProbeAnswer]:
        """Contradictions within the last lines, a mismatch that grows, and symptoms."""
        for name, lines in self._lines.items():
            yield from contradictions.ask(Remains(series=(Series(name, tuple(lines.last)),)))
            yield from _drifting(lines)
            if lines.count >= 2 * LINES:
                yield contradictions.curves(Remains(series=(Series(name, lines.both()),)), ())

    def of_samples(self, *, dear: bool) -> Iterator[ProbeAnswer]:
        """Duplicates, ends, spread, masks and streams of the last steps; `dear`: advantages and pairing, too."""
        rows = tuple(row for step in self._steps for row in step)
        series = tuple(Series(name, tuple(lines.last)) for name, lines in self._lines.items())
        remains = Remains((Recording(self._kind, rows),), series)
        yield from (each for each in samples.ask(remains) if each.family not in _SPREAD)
        yield self._spread()
        some = Remains((Recording(self._kind, tuple(self._some())),))
        yield from loss_masks.ask(some)
        yield from stream_laws.ask(some)
        if dear:
            # Of a part of a step a baseline over the batch would be another.
            if self._whole:
                yield from advantages.ask(Remains((Recording(self._kind, tuple(self._steps[-1])),)))
            yield from filter(_is_of_pairs, data_order.ask(remains))

    def _some(self) -> Iterator[Row]:
        """Of each step as many samples as its share of TOKENS holds."""
        for step in self._steps:
            left = TOKENS // len(self._steps)
            for row in step:
                if row.tokens is None or left <= 0:
                    break
                left -= len(row.tokens.ids)
                yield row

    def _spread(self) -> ProbeAnswer:
        """Whether any of the last groups has a spread; those of a task that is solved by now need none."""
        if len(self._groups) < FLAT:
            return ProbeAnswer("rewards", NOT_ASKED, samples.PROBE)
        told = list(self._groups)[-FLAT:]
        solved = all(low >= self._highest for low, _ in told) and self._lowest < self._highest
        if solved or any(low < high for low, high in told):
            return ProbeAnswer("rewards", CLEAN, samples.PROBE, count=len(told))
        lowest, highest = min(low for low, _ in told), max(high for _, high in told)
        values = {
            "share": 1.0, "groups": len(told), "hard": sum(low <= lowest for low, _ in told),
            "easy": sum(low >= highest for low, _ in told) if highest > lowest else 0,
            "lowest": lowest, "highest": highest,
        }  # fmt: skip
        family = _SPREAD[highest > lowest]
        return ProbeAnswer(family, FAULT, samples.PROBE, "REW004", values, count=len(told))


def _is_of_pairs(answer: ProbeAnswer) -> bool:
    return answer.family.partition("/")[0] == "pairing"


def _drifting(lines: Lines) -> Iterator[ProbeAnswer]:
    """Trainer and engine agreed at first, and less and less since: by the run's own beginning, not by a fixed limit."""
    if lines.count < 2 * LINES:
        return
    for name, floor, times, least in _DRIFTS:
        first, last = (
            [abs(row.values[name]) for row in rows if name in row.values]
            for rows in (lines.first, lines.last)
        )
        if len(first) < LINES // 2 or len(last) < LINES // 2:
            continue
        began, now = figures.median(first), figures.median(last)
        if now >= max(least, times * max(began, floor)):
            values = {"what": name, "first": began, "last": now}
            row = lines.last[-1]
            yield ProbeAnswer(
                "metrics/drifting", NOT_DECIDED, contradictions.PROBE, "NUM043", values, residual=now, floor=began,
                alarm=max(least, times * max(began, floor)), count=lines.count,
                facts=(Fact("curve", values, row.place),), wanted=(Fact("want_server"),),
            )  # fmt: skip
