"""The little statistics that the questions share; of numbers whose squares are none any more they are infinite."""

from __future__ import annotations

import math
from math import inf, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def fsum(values: Iterable[float]) -> float:
    """The sum; infinite where one on the way to it is too large, which a file of others may ask for."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return inf


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return fsum(values) / len(values) if values else 0.0


def spread(values: Sequence[float], ddof: int = 0) -> float:
    """The standard deviation; exactly 0 where all are equal."""
    if len(values) <= ddof or min(values) == max(values):
        return 0.0
    middle = mean(values)
    return sqrt(fsum((value - middle) ** 2 for value in values) / (len(values) - ddof))


def median(values: Sequence[float]) -> float:
    """The median; 0 of nothing."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's; 0 where one of them does not vary.

    >>> round(correlation([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]), 6)
    1.0
    """
    a, b = mean(one), mean(other)
    down = sqrt(fsum((x - a) ** 2 for x in one) * fsum((y - b) ** 2 for y in other))
    if not down or down == inf:
        return 0.0
    return fsum((x - a) * (y - b) for x, y in zip(one, other, strict=True)) / down


def slope(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """The line through points by least squares: slope, its error of one sigma, and what is left (mean square)."""
    a, b = mean(one), mean(other)
    across = fsum((x - a) ** 2 for x in one)
    if not across or len(one) < 3:
        return 0.0, float("inf"), float("inf")
    found = fsum((x - a) * (y - b) for x, y in zip(one, other, strict=True)) / across
    left = fsum((y - b - found * (x - a)) ** 2 for x, y in zip(one, other, strict=True))
    return found, sqrt(left / (len(one) - 2) / across), left / len(one)


def share_interval(hits: int, count: int) -> tuple[float, float]:
    """Wilson's interval of 95 % of a share."""
    if not count:
        return 0.0, 1.0
    z, p = 1.96, hits / count
    middle, wide = p + z * z / (2 * count), z * sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    return max(0.0, (middle - wide) / (1 + z * z / count)), min(1.0, (middle + wide) / (1 + z * z / count))
