"""Statistics of lists of numbers from untrusted files: sum, mean, median, deviation, last run of flags, linear fit.

An overflow raises no exception: a sum, mean or deviation is then infinite, and the results of `fit_line` may be NaN.
"""

import math
from collections.abc import Iterable, Sequence
from math import inf, sqrt


def fsum(values: Iterable[float]) -> float:
    """Return the sum without rounding between terms; +infinity for any overflow, or infinities of both signs."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return inf


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 of an empty list."""
    return fsum(values) / len(values) if values else 0.0


def deviation(values: Sequence[float], ddof: int = 0) -> float:
    """Return the standard deviation with the divisor `len(values) - ddof`; 0 for `ddof` values or fewer.

    It is exactly 0 if all values are equal.
    """
    if len(values) <= ddof or min(values) == max(values):
        return 0.0
    center = mean(values)
    return sqrt(fsum((value - center) ** 2 for value in values) / (len(values) - ddof))


def median(values: Sequence[float]) -> float:
    """Return the median; 0 of an empty list.

    >>> median([4.0, 1.0, 2.0]), median([1.0, 2.0])
    (2.0, 1.5)
    """
    ordered = sorted(values)
    # Halves are added, because the sum of two large numbers overflows.
    return ordered[(len(ordered) - 1) // 2] / 2 + ordered[len(ordered) // 2] / 2 if ordered else 0.0


def start_of_last_run(flags: Sequence[bool]) -> int:
    """Return the index at which the last run of true flags begins; gaps of at most two false flags belong to it.

    The result is the number of flags if the last three are false, or none is true.

    >>> start_of_last_run([True, False, False, False, True, False, True])
    4
    """
    start, misses = len(flags), 0
    for index in range(len(flags) - 1, -1, -1):
        start, misses = (index, 0) if flags[index] else (start, misses + 1)
        if misses > 2:
            break
    return start


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float, float]:
    """Fit a line by least squares; return its slope, the slope's standard error, and the mean squared residual.

    Without two different x or with fewer than 3 points, the slope is 0 and the errors are infinite.
    """
    a, b = mean(xs), mean(ys)
    variance = fsum((x - a) ** 2 for x in xs)
    if not variance or len(xs) < 3:
        return 0.0, inf, inf
    slope = fsum((x - a) * (y - b) for x, y in zip(xs, ys, strict=True)) / variance
    residual = fsum((y - b - slope * (x - a)) ** 2 for x, y in zip(xs, ys, strict=True))
    return slope, sqrt(residual / (len(xs) - 2) / variance), residual / len(xs)
