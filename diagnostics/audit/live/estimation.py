"""Estimate sampling parameters from log-probs: one parameter, then pairs, by refined grids; and a bias on one id."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from diagnostics.audit.live.sampling_distribution import Observed, Sampling, trimmed_mean

# Range, scale and least difference that counts, of each parameter.
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
# A further parameter must reduce the residual by this share, and by so many standard errors.
_BETTER, _SIGMAS = 0.07, 4.5
# Tokens of the coarse search for pairs, and pairs that are refined.
_COARSE_TOKENS, _REFINED = 96, 4
# Share of the tokens' probability below which an id's bias cannot be estimated.
_LEAST_SHARE = 0.5


@dataclass(frozen=True)
class Fit:
    """Estimated sampling parameters.

    Attributes:
        changed: Parameters that are not the expected ones.
        runner_up: Second best explanation and its residual.
        tried: Pairs of parameters that were tried, with their residuals.
    """

    sampling: Sampling
    residual: float
    changed: tuple[str, ...]
    runner_up: tuple[str, float] | None = None
    tried: tuple[tuple[str, float], ...] = ()


def fit_sampling(observed: Observed, expected: Sampling, floor: float) -> Fit:
    """Fit the parameters: the fewest changes from the expected ones that fit as well as any."""
    start = Fit(expected, observed.residual(expected), ())
    singles = sorted((_fit_one(observed, expected, name) for name in RANGES), key=lambda fit: fit.residual)
    best, second = singles[0], singles[1]
    if not _improves_fit(observed, expected, best.sampling) or not _differs(best, expected):
        return replace(start, runner_up=(best.changed[0], best.residual))
    best = replace(best, runner_up=(second.changed[0], second.residual))
    if best.residual > 1.3 * floor:
        pairs = sorted(_fit_pairs(observed, expected, best), key=lambda fit: fit.residual)
        tried = tuple((" and ".join(pair.changed), pair.residual) for pair in pairs)
        if _improves_fit(observed, best.sampling, pairs[0].sampling):
            best = replace(pairs[0], runner_up=[*tried[1:], (best.changed[0], best.residual)][0])
        best = replace(best, tried=tried)
    return _simplify(observed, best, expected)


def _differs(fit: Fit, expected: Sampling) -> bool:
    return all(
        abs(fit.sampling.value(name) - expected.value(name)) >= RANGES[name][3] for name in fit.changed
    )


def _improves_fit(observed: Observed, simple: Sampling, other: Sampling) -> bool:
    """Return whether `other` fits significantly better than `simple`, over all tokens and by a minimum share."""
    gain = observed.differences(simple) - observed.differences(other)
    before, after = observed.residual(simple), observed.residual(other)
    if after > (1 - _BETTER) * before:
        return False
    error = float(gain.std()) / math.sqrt(len(gain))
    return error == 0 or float(gain.mean()) / error > _SIGMAS or after < before / 3


def _fit_one(observed: Observed, start: Sampling, name: str) -> Fit:
    value, residual = search(observed, start, name)
    return Fit(start.replace(name, value), residual, (name,))


def search(
    observed: Observed, start: Sampling, name: str, around: float | None = None
) -> tuple[float, float]:
    """Return the best value of one parameter and its residual; each grid refines the one before.

    Args:
        observed: The tokens.
        start: The other parameters.
        name: The parameter.
        around: Value to search near; None for the whole range.
    """
    low, high, scale, _ = RANGES[name]
    if around is not None:
        width = 0.15 * (high - low) if scale != "log" else 0.3 * around
        low, high = max(low, around - width), min(high, around + width)
    is_whole = scale == "whole"
    points = list(_grid(low, high, scale, 40 if is_whole else _POINTS))
    best, residual = start.value(name), observed.residual(start)
    for _ in range(3 if is_whole else _ROUNDS):
        residuals = [(observed.residual(start.replace(name, point)), point) for point in points]
        least, point = min(residuals)
        if least < residual:
            residual, best = least, point
        place = points.index(point)
        low, high = points[max(0, place - 1)], points[min(len(points) - 1, place + 1)]
        points = list(_grid(low, high, "whole", 40) if is_whole else _grid(low, high, "linear", 9))
        if len(points) < 2:
            break
    return best, residual


def _grid(low: float, high: float, scale: str, count: int) -> Iterator[float]:
    if scale == "whole":  # denser at small numbers: 5 differs from 10 as 50 does from 100
        yield from sorted({round(low * (high / low) ** (place / (count - 1))) for place in range(count)})
        return
    for place in range(count):
        share = place / (count - 1)
        yield low * (high / low) ** share if scale == "log" else low + (high - low) * share


def _fit_pairs(observed: Observed, expected: Sampling, best: Fit) -> Iterator[Fit]:
    """Fit pairs of parameters: on a coarse grid with some tokens, then each in turn with all tokens."""
    part = observed.subset(_COARSE_TOKENS)
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
    for _, sampling, names in sorted(coarse.values(), key=lambda entry: entry[0])[:_REFINED]:
        yield _refine(observed, sampling, names)


def _refine(observed: Observed, sampling: Sampling, names: tuple[str, ...]) -> Fit:
    residual = observed.residual(sampling)
    for _ in range(6):
        before = residual
        for name in names:
            value, now = search(observed, sampling, name, around=sampling.value(name))
            if now <= residual:
                sampling, residual = sampling.replace(name, value), now
        if residual > 0.97 * before:
            break
    return Fit(sampling, residual, names)


def _simplify(observed: Observed, fit: Fit, expected: Sampling) -> Fit:
    """Reset parameters that make no difference."""
    sampling, changed = fit.sampling, list(fit.changed)
    for name in fit.changed:
        simpler = sampling.replace(name, expected.value(name))
        is_close = abs(sampling.value(name) - expected.value(name)) < RANGES[name][3]
        if len(changed) > 1 and (is_close or not _improves_fit(observed, simpler, sampling)):
            sampling = simpler
            changed.remove(name)
    return replace(fit, sampling=sampling, changed=tuple(changed), residual=observed.residual(sampling))


def interval(observed: Observed, sampling: Sampling, name: str) -> tuple[float, float]:
    """Return the confidence interval of a parameter: values whose residual is not significantly worse."""
    low, high, scale, least = RANGES[name]
    differences = observed.differences(sampling)
    mean = trimmed_mean(differences)
    slack = mean + 2 * float(differences.clamp(max=4 * mean + 1e-9).std()) / math.sqrt(len(differences))
    ends = []
    for direction, limit in ((-1, low), (1, high)):
        step = 1.0 if scale == "whole" else least / 16
        end = sampling.value(name)
        while (limit - end - direction * step) * direction >= 0:
            if observed.residual(sampling.replace(name, end + direction * step)) > slack:
                break
            end += direction * step
            step *= 1.0 if scale == "whole" else 1.6
        ends.append(end)
    return ends[0], ends[1]


def middle_of_plateau(observed: Observed, sampling: Sampling, name: str) -> float:
    """Return the middle of the interval on which top_p or min_p keeps the same tokens; other parameters unchanged."""
    value = sampling.value(name)
    if name not in ("top_p", "min_p"):
        return value
    best = observed.residual(sampling) * 1.001 + 1e-12
    ends = []
    for direction in (-1, 1):
        end, step = value, RANGES[name][3] / 64
        while 1e-6 < (further := end + direction * step) < 1:
            if observed.residual(sampling.replace(name, further)) > best:
                break
            end, step = further, step * 1.3
        ends.append(end)
    return sum(ends) / 2


def fit_bias(observed: Observed, sampling: Sampling) -> Sampling | None:
    """Return the parameters with the logit bias that fits best; None if no id has enough probability.

    If the logit of id b is raised by x, every other log-prob falls by log(1 + p_b (e^x - 1)): a line through the origin
    in p_b with slope e^x - 1.
    """
    import torch

    excess = (observed.logprobs(sampling) - observed.reported).clamp(-3, 3).exp() - 1
    size = int(observed.columns.max()) + 1
    shares = torch.zeros(len(observed.ids), size, dtype=torch.float64)
    shares.scatter_(1, observed.columns, observed.distribution(sampling).exp())
    is_own = torch.zeros_like(shares, dtype=torch.bool).scatter_(1, observed.ids[:, None], True)
    shares = shares.masked_fill(is_own, 0.0)
    norms = shares.square().sum(0).clamp(min=1e-12)
    slopes = ((shares * excess[:, None]).sum(0) / norms).clamp(min=-1.0)
    residuals = (excess[:, None] - shares * slopes).masked_fill(is_own, 0.0).square().sum(0)
    residuals = residuals.masked_fill(shares.sum(0) < _LEAST_SHARE, float("inf"))
    token = int(residuals.argmin())
    if math.isinf(float(residuals[token])):
        return None
    value = math.log(max(float(slopes[token]) + 1, math.exp(-20.0)))
    for steps in ((-0.1, -0.03, 0.0, 0.03, 0.1), tuple(step / 100 for step in range(-5, 6))):
        biases = [replace(sampling, bias=(token, value + step)) for step in steps]
        best = min(biases, key=observed.residual)
        value = best.bias[1] if best.bias else value
    return replace(sampling, bias=(token, value))
