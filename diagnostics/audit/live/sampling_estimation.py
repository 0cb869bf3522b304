"""Estimate an engine's sampling parameters from reported log-probs: search one, then two, on ever finer grids.

`fit_sampling` changes at most two parameters. `interval` returns the confidence interval of one. `middle_of_plateau`
returns the middle of the values of top-p or min-p that keep the same tokens. Searches begin with a subset of the
tokens, and continue on all tokens for the best parameters only, so that the audit of a healthy engine takes little
time.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter, itemgetter

from diagnostics.audit.live.sampling_distribution import Observed, Sampling, trimmed_mean

# For each parameter: lower and upper bound, scale of the grid, and the smallest relevant difference.
RANGES = {
    "temperature": (0.2, 2.5, "log", 0.012),
    "top_p": (0.2, 1.0, "linear", 0.002),
    "top_k": (1, 200, "whole", 1),
    "min_p": (0.001, 0.6, "log", 0.001),
    "repetition_penalty": (0.6, 2.0, "log", 0.004),
    "presence_penalty": (-2.0, 2.0, "linear", 0.01),
    "frequency_penalty": (-2.0, 2.0, "linear", 0.01),
}
# Points of the first grid, of finer grids, and of grids of whole numbers; number of grids.
_POINTS, _FINE_POINTS, _WHOLE_POINTS, _ROUNDS = 17, 9, 40, 6
# A further parameter must reduce the residual by this share and by this number of standard errors.
_MIN_GAIN, _SIGMAS = 0.07, 4.5
# Tokens of the first search, the gain on them below which it is the last, and the parameters tried on all tokens.
_FEW_TOKENS, _MIN_HINT_GAIN, _MAX_CANDIDATES = 96, 0.03, 3


@dataclass(frozen=True)
class Fit:
    """Estimated sampling parameters.

    Attributes:
        sampling: The parameters.
        residual: Mean difference between reported log-probs and those computed with these parameters.
        changed: Parameters that differ from the expected ones.
    """

    sampling: Sampling
    residual: float
    changed: tuple[str, ...]


def fit_sampling(observed: Observed, expected: Sampling, floor: float) -> Fit:
    """Return the expected parameters with at most two of them changed, as few as explain the log-probs.

    Args:
        observed: The sampled tokens, with the reported log-probs and reference logits.
        expected: The parameters to begin with: those of the trainer or of its requests.
        floor: Residual that rounding alone causes.
    """
    start = Fit(expected, observed.residual(expected), ())
    few = observed.subset(max(_FEW_TOKENS, len(observed.ids) // 4))
    optima = ((name, *search(few, expected, name)) for name in RANGES)
    hints = [Fit(expected.replace(name, value), residual, (name,)) for name, value, residual in optima]
    hints.sort(key=attrgetter("residual"))
    if hints[0].residual > (1 - _MIN_HINT_GAIN) * few.residual(expected):
        return start
    fits = [_refine(observed, hint.sampling, hint.changed) for hint in hints[:_MAX_CANDIDATES]]
    best = min(fits, key=attrgetter("residual"))
    is_close = any(_is_close(best.sampling, expected, name) for name in best.changed)
    if is_close or not _improves_fit(observed, expected, best.sampling):
        return start
    if best.residual > 1.3 * floor:
        pair = min(_fit_pairs(observed, few, expected, best), key=attrgetter("residual"))
        best = pair if _improves_fit(observed, best.sampling, pair.sampling) else best
    return _simplify(observed, best, expected)


def _is_close(a: Sampling, b: Sampling, name: str) -> bool:
    """Return whether a parameter differs by less than its smallest relevant difference."""
    return abs(a.value(name) - b.value(name)) < RANGES[name][3]


def _improves_fit(observed: Observed, simple: Sampling, other: Sampling) -> bool:
    """Return whether `other` reduces the residual by at least 7 %, and significantly or to less than a third."""
    gain = observed.differences(simple) - observed.differences(other)
    before, after = observed.residual(simple), observed.residual(other)
    if after > (1 - _MIN_GAIN) * before:
        return False
    error = float(gain.std()) / math.sqrt(len(gain))
    return error == 0 or float(gain.mean()) / error > _SIGMAS or after < before / 3


def search(
    observed: Observed, start: Sampling, name: str, around: float | None = None
) -> tuple[float, float]:
    """Return the best value of one parameter and its residual; each grid is finer than the previous grid.

    Args:
        observed: The sampled tokens, with the reported log-probs and reference logits.
        start: Values of all parameters.
        name: Name of the parameter to search.
        around: Value to search near; None for the whole range.
    """
    low, high, scale, _ = RANGES[name]
    if around is not None:
        width = 0.15 * (high - low) if scale != "log" else 0.3 * around
        low, high = max(low, around - width), min(high, around + width)
    is_whole = scale == "whole"
    points = _grid(low, high, scale, _POINTS if around is None else _FINE_POINTS)
    residual_at = cache(lambda value: observed.residual(start.replace(name, value)))
    best, residual = start.value(name), residual_at(start.value(name))
    for _ in range(3 if is_whole else _ROUNDS):
        least, point = min((residual_at(point), point) for point in points)
        residual, best = min((residual, best), (least, point), key=itemgetter(0))
        index = points.index(point)
        low, high = points[max(0, index - 1)], points[min(len(points) - 1, index + 1)]
        points = _grid(low, high, "whole" if is_whole else "linear", _FINE_POINTS)
        if len(points) < 2:
            break
    return best, residual


def _grid(low: float, high: float, scale: str, count: int) -> list[float]:
    """Return `count` values from `low` to `high`, spaced by `scale`; of whole numbers at most 40, denser near `low`."""
    if scale == "whole":
        shares = [index / (_WHOLE_POINTS - 1) for index in range(_WHOLE_POINTS)]
        return sorted({float(round(low * (high / low) ** share)) for share in shares})
    shares = [index / (count - 1) for index in range(count)]
    if scale == "log":
        return [low * (high / low) ** share for share in shares]
    return [low * (1 - share) + high * share for share in shares]


def _fit_pairs(observed: Observed, few: Observed, expected: Sampling, best: Fit) -> Iterator[Fit]:
    """Yield fits of two changed parameters: a coarse grid on the few tokens, then the best pairs on all tokens.

    One of the two is in `best`, or is the temperature or the repetition penalty.
    """
    part = few.subset(_FEW_TOKENS)
    coarse: dict[frozenset[str], tuple[float, Sampling, tuple[str, str]]] = {}
    for first in dict.fromkeys((*best.changed, "temperature", "repetition_penalty")):
        for value in _grid(*RANGES[first][:3], 12):
            start = expected.replace(first, value)
            for second in (name for name in RANGES if name != first):
                for second_value in _grid(*RANGES[second][:3], 8):
                    sampling = start.replace(second, second_value)
                    candidate = (part.residual(sampling), sampling, (first, second))
                    pair = frozenset((first, second))
                    coarse[pair] = min(coarse.get(pair, candidate), candidate, key=lambda entry: entry[0])
    pairs = sorted(coarse.values(), key=lambda entry: entry[0])[: _MAX_CANDIDATES + 1]
    hints = [_refine(part, sampling, names) for _, sampling, names in pairs]
    for hint in sorted(hints, key=attrgetter("residual"))[:2]:
        yield _refine(observed, hint.sampling, hint.changed)


def _refine(observed: Observed, sampling: Sampling, names: Sequence[str]) -> Fit:
    """Optimise the named parameters in turn, each near its value, at most six times, while the fit improves clearly."""
    residual = observed.residual(sampling)
    for _ in range(6 if len(names) > 1 else 1):
        before = residual
        for name in names:
            value, now = search(observed, sampling, name, around=sampling.value(name))
            if now <= residual:
                sampling, residual = sampling.replace(name, value), now
        if residual > 0.97 * before:
            break
    return Fit(sampling, residual, tuple(names))


def _simplify(observed: Observed, fit: Fit, expected: Sampling) -> Fit:
    """Reset those changed parameters whose change does not improve the fit; keep at least one."""
    sampling, changed = fit.sampling, list(fit.changed)
    for name in fit.changed:
        simpler = sampling.replace(name, expected.value(name))
        is_close = _is_close(sampling, expected, name)
        if len(changed) > 1 and (is_close or not _improves_fit(observed, simpler, sampling)):
            sampling = simpler
            changed.remove(name)
    return replace(fit, sampling=sampling, changed=tuple(changed), residual=observed.residual(sampling))


def interval(observed: Observed, sampling: Sampling, name: str) -> tuple[float, float]:
    """Return the 95 % confidence interval of a parameter: residuals at most 2 standard errors above the best."""
    low, high, scale, least = RANGES[name]
    differences = observed.differences(sampling)
    mean = trimmed_mean(differences)
    slack = mean + 2 * float(differences.clamp(max=4 * mean + 1e-9).std()) / math.sqrt(len(differences))

    def is_compatible(value: float) -> bool:
        return low <= value <= high and observed.residual(sampling.replace(name, value)) <= slack

    step, growth = (1.0, 1.0) if scale == "whole" else (least / 16, 1.6)
    return _extend(sampling.value(name), is_compatible, step, growth)


def middle_of_plateau(observed: Observed, sampling: Sampling, name: str) -> float:
    """Return the middle of the interval in which top_p or min_p keeps the same tokens, or another parameter's value."""
    if name not in ("top_p", "min_p"):
        return sampling.value(name)
    same = observed.residual(sampling) * 1.001 + 1e-12

    def is_compatible(value: float) -> bool:
        return 1e-6 <= value <= 1 - 1e-9 and observed.residual(sampling.replace(name, value)) <= same

    return sum(_extend(sampling.value(name), is_compatible, RANGES[name][3] / 64, 1.3)) / 2


def _extend(
    value: float, is_compatible: Callable[[float], bool], step: float, growth: float
) -> tuple[float, float]:
    """Return the lowest and the highest compatible value, searched in growing steps from a value."""
    ends = []
    for direction in (-1, 1):
        end, size = value, step
        while is_compatible(further := end + direction * size):
            end, size = further, size * growth
        ends.append(end)
    return ends[0], ends[1]
