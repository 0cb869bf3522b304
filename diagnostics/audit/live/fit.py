"""Which law fits, and with what value: looked for between the points of any grid, one parameter at a time, then two."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diagnostics.audit.live.law import Law, trimmed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.audit.live.law import Seen

# Where each parameter is looked for, on which scale, and the least change that is one.
RANGES = {
    "temperature": (0.2, 2.5, "log", 0.012),
    "top_p": (0.2, 1.0, "linear", 0.002),
    "top_k": (1, 200, "whole", 1),
    "min_p": (0.001, 0.6, "log", 0.001),
    "repetition_penalty": (0.6, 2.0, "log", 0.004),
    "presence_penalty": (-2.0, 2.0, "linear", 0.01),
    "frequency_penalty": (-2.0, 2.0, "linear", 0.01),
}
_POINTS, _ROUNDS = 17, 6
# A law with one value more than another has to be so much better, and more surely so than by chance.
BETTER, SURE = 0.07, 4.5
# The first look for two values at once is at some of the tokens alone.
_LOOK, _KINDS = 96, 4


@dataclass(frozen=True)
class Fitted:
    """A law, how far it is off, and which of its values are not the expected ones.

    Attributes:
        next_best: The explanation that is second, with how far it is off.
    """

    law: Law
    residual: float
    changed: tuple[str, ...]
    next_best: tuple[str, float] | None = None


def fit(seen: Seen, expected: Law, floor: float) -> Fitted:
    """The simplest law that fits as well as any, starting from the expected one."""
    here = Fitted(expected, seen.residual(expected), ())
    singles = sorted((_single(seen, expected, name) for name in RANGES), key=lambda each: each.residual)
    second = _second(singles)
    if not _surely(seen, here.law, singles[0].law) or not _matters(singles[0], expected):
        return replace(here, next_best=(singles[0].changed[0], singles[0].residual))
    best = singles[0]
    if best.residual > 1.3 * floor:
        # Of pairs none is simpler than another: the nearest is held against the single value.
        told = sorted(_pairs(seen, expected, best), key=lambda each: each.residual)
        pair = told[0]
        if pair.residual < (1 - BETTER) * best.residual and _surely(seen, best.law, pair.law):
            after = told[1] if len(told) > 1 else best
            second, best = (" and ".join(after.changed), after.residual), pair
    return _pruned(seen, replace(best, next_best=second), expected)


def _second(singles: list[Fitted]) -> tuple[str, float] | None:
    return next(((each.changed[0], each.residual) for each in singles[1:]), None)


def _matters(found: Fitted, expected: Law) -> bool:
    return all(abs(found.law.get(name) - expected.get(name)) >= RANGES[name][3] for name in found.changed)


def _surely(seen: Seen, simple: Law, other: Law) -> bool:
    """Whether the second is closer token by token, and by enough of it."""
    gain = seen.off(simple) - seen.off(other)
    before, after = seen.residual(simple), seen.residual(other)
    if after > (1 - BETTER) * before:
        return False
    deviation = float(gain.std()) / math.sqrt(len(gain))
    return deviation == 0 or float(gain.mean()) / deviation > SURE or after < before / 3


def _single(seen: Seen, start: Law, name: str, others: tuple[str, ...] = ()) -> Fitted:
    """The best value of one parameter."""
    value, residual = zoom(seen, start, name)
    return Fitted(start.with_(name, value), residual, (*others, name))


def zoom(seen: Seen, start: Law, name: str, around: float | None = None) -> tuple[float, float]:
    """The value that is closest, looked for on finer and finer points; of a flat bottom its middle."""
    low, high, scale, _ = RANGES[name]
    if around is not None:
        width = 0.15 * (high - low) if scale != "log" else 0.3
        low = max(low, around - width if scale != "log" else around * (1 - width))
        high = min(high, around + width if scale != "log" else around * (1 + width))
    points = list(_points(low, high, scale, _POINTS if scale != "whole" else 40))
    best, residual = start.get(name), seen.residual(start)
    for _ in range(_ROUNDS if scale != "whole" else 3):
        told = [(seen.residual(start.with_(name, point)), point) for point in points]
        least, found = min(told)
        if least < residual:
            residual, best = least, found
        place = next(i for i, (_, point) in enumerate(told) if point == found)
        low, high = points[max(0, place - 1)], points[min(len(points) - 1, place + 1)]
        points = list(
            _points(low, high, "linear" if scale != "whole" else scale, 9 if scale != "whole" else 40)
        )
        if len(points) < 2:
            break
    return best, residual


def _points(low: float, high: float, scale: str, count: int) -> Iterator[float]:
    if scale == "whole":
        # Nearer to one another where they are few: 5 of 200 is as far from 10 as 50 is from 100.
        yield from sorted({round(low * (high / low) ** (place / (count - 1))) for place in range(count)})
        return
    for place in range(count):
        share = place / (count - 1)
        yield low * (high / low) ** share if scale == "log" else low + (high - low) * share


def _pairs(seen: Seen, expected: Law, best: Fitted) -> Iterator[Fitted]:
    """Two values at once: coarsely on some tokens, then each in turn on all."""
    part = seen.part(_LOOK)
    tried = []
    first_names = dict.fromkeys((*best.changed, "temperature", "repetition_penalty"))
    for one in first_names:
        low, high, scale, _ = RANGES[one]
        for value in _points(low, high, scale, 12):
            start = expected.with_(one, value)
            for other, (low2, high2, scale2, _) in RANGES.items():
                if other == one:
                    continue
                for value2 in _points(low2, high2, scale2, 8):
                    law = start.with_(other, value2)
                    tried.append((part.residual(law), one, other, law))
    tried.sort(key=lambda each: each[0])
    kinds = set()
    for _, one, other, law in tried:
        kind = frozenset((one, other))
        if kind in kinds:
            continue
        kinds.add(kind)
        yield _polished(seen, law, (one, other))
        if len(kinds) == _KINDS:
            return


def _polished(seen: Seen, law: Law, names: tuple[str, ...]) -> Fitted:
    residual = seen.residual(law)
    for _ in range(6):
        before = residual
        for name in names:
            value, now = zoom(seen, law, name, around=law.get(name))
            if now <= residual:
                law, residual = law.with_(name, value), now
        if residual > 0.97 * before:
            break
    return Fitted(law, residual, names)


def _pruned(seen: Seen, found: Fitted, expected: Law) -> Fitted:
    """Without values that make no difference."""
    law, changed = found.law, list(found.changed)
    for name in tuple(changed):
        simpler = law.with_(name, expected.get(name))
        close = abs(law.get(name) - expected.get(name)) < RANGES[name][3]
        if len(changed) > 1 and (close or not _surely(seen, simpler, law)):
            law = simpler
            changed.remove(name)
    return replace(found, law=law, changed=tuple(changed), residual=seen.residual(law))


def interval(seen: Seen, found: Law, name: str) -> tuple[float, float]:
    """Where the value may lie: the law is as good there, but for what chance makes of it."""
    low, high, scale, least = RANGES[name]
    off = seen.off(found)
    slack = trimmed(off) + 2 * float(off.clamp(max=4 * trimmed(off) + 1e-9).std()) / math.sqrt(len(off))
    ends = []
    value = found.get(name)
    for direction, limit in ((-1, low), (1, high)):
        step = 1.0 if scale == "whole" else least / 16
        end = value
        while (limit - end - direction * step) * direction >= 0:
            if seen.residual(found.with_(name, end + direction * step)) > slack:
                break
            end += direction * step
            step = step if scale == "whole" else 1.6 * step
        ends.append(end)
    return ends[0], ends[1]


def middle(seen: Seen, found: Law, name: str) -> float:
    """Of a cut, whose residual is flat between the shares of two tokens, the middle of the flat."""
    _, _, scale, least = RANGES[name]
    if name not in ("top_p", "min_p") or scale == "whole":
        return found.get(name)
    best, value = seen.residual(found) * 1.001 + 1e-12, found.get(name)
    ends = []
    for direction in (-1, 1):
        end, step = value, least / 64
        while seen.residual(found.with_(name, min(1.0, max(1e-6, end + direction * step)))) <= best:
            end += direction * step
            step *= 1.3
            if not 1e-6 < end < 1:
                break
        ends.append(min(1.0, max(1e-6, end)))
    return sum(ends) / 2
