"""Check whether the sampled ids fit the distribution whose log-probs the engine reports, and if not, why.

This is probe P6 of docs/audit.md. `check_ids` finds greedy sampling, one seed for all samples, and ids sampled at
another temperature. Raw log-probs are those before temperature and truncation, vLLM's default. With them, only the
sampled ids show the temperature. Sampled ids can prove a fault, but not that the sampling is clean:
`make_undecided_if_raw` makes a clean result undecided if the log-probs may be raw. If the log-probs fit temperature 1,
either they are raw, or the engine samples at 1. `replace_refuted_results` decides which, by the server's logprobs_mode
or the sampled ids.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from diagnostics.audit.live.sampling_distribution import Completion, Observed, Sampling
from diagnostics.audit.live.sampling_estimation import Fit
from diagnostics.audit.results import NOT_DECIDED, Estimate, Result, clean, fault, masked, note

# Rounding may exchange two ids whose log-probs differ by at most this.
_MAX_TIE = 0.2
# Number of standard errors between sampled ids and reported distribution that counts as a fault.
_FAULT_SIGMAS = 5.0
# Difference of temperatures that the number of tokens in a note could show.
_MIN_SHIFT = 0.05
TOKENS_PER_SAMPLE = 15
"""Increase of --tokens that gives one more sampled token."""
# Temperatures nearer than this, as logarithms, are equal.
_MAX_LOG_RATIO = 0.03


def check_ids(
    completions: Sequence[Completion], observed: Observed, sampling: Sampling, expected: Sampling
) -> Result:
    """Check for greedy sampling, repeated seeds, and a temperature that differs from that of the log-probs (raw).

    Args:
        completions: The samples.
        observed: The sampled tokens, with the reported log-probs and reference logits.
        sampling: The parameters that explain the reported log-probs.
        expected: The parameters with which the trainer computes.
    """
    count, distribution = len(observed.ids), observed.distribution(sampling)
    top = distribution.max(1).values
    gap = top - distribution.gather(1, observed.sampled_columns)[:, 0]
    chance = float(top.sum())
    if bool((gap <= _MAX_TIE).all()) and float((gap == 0).double().mean()) > 0.9 and chance < -12:
        values = {"count": count, "chance": math.exp(max(chance, -700.0))}
        return fault("sampling/greedy", values, probe="P6", count=count)
    if repeated := _check_seeds(completions, observed):
        return repeated
    total, mean, error = observed.total_logprob(sampling)
    if abs(total - mean) > _FAULT_SIGMAS * max(error, 1e-9):
        return _raw_fault(observed, sampling, expected)
    return clean("logprobs", count=count)


def _check_seeds(completions: Sequence[Completion], observed: Observed) -> Result | None:
    """Return a fault if samples of one prompt repeat the previous sample more often than chance explains; else None."""
    same, log_chance = 0, 0.0
    previous: dict[tuple[int, ...], tuple[int, ...]] = {}
    logprobs = observed.logprobs(Sampling())
    for index, completion in enumerate(completions):
        if previous.get(completion.prompt) == completion.ids:
            same += 1
            log_chance += float(logprobs[observed.samples == index].sum())
        previous[completion.prompt] = completion.ids
    if same < 2 or log_chance > -20:
        return None
    values = {"same": same, "count": len(completions)}
    return fault("sampling/seed", values, probe="P6", count=len(completions))


def replace_refuted_results(
    observed: Observed, fit: Fit, expected: Sampling, mode: str, results: list[Result], by_ids: list[Result]
) -> tuple[list[Result], list[Result]]:
    """Decide whether log-probs that fit temperature 1 are raw, and replace the results that assume the opposite.

    The logprobs_mode decides, or else the sampled ids. Results of other fits stay unchanged.

    Returns:
        The results about the parameters and those about the ids, with the refuted ones replaced or removed.
    """
    sampling, family = fit.sampling, "sampling/temperature"
    is_neutral = replace(sampling, temperature=1.0) == Sampling() and _is_near(sampling.temperature, 1.0)
    is_expected = _is_near(expected.temperature, sampling.temperature)
    if fit.changed != ("temperature",) or not is_neutral or is_expected:
        return results, by_ids
    odds = float((observed.logprobs(expected.untruncated) - observed.logprobs(sampling)).sum())
    if mode.startswith("processed") or (odds <= 0 and not mode.startswith("raw")):
        return results, [result for result in by_ids if result.family != "logprobs/raw"]
    hidden = masked("sampling", "logprobs/raw")
    remaining = [result for result in by_ids if result.topic != "logprobs"]
    results = [hidden if result.family == family else result for result in results]
    return results, [*remaining, _raw_fault(observed, sampling, expected)]


def _is_near(a: float, b: float) -> bool:
    return abs(math.log(a / b)) < _MAX_LOG_RATIO


def _raw_fault(observed: Observed, sampling: Sampling, expected: Sampling) -> Result:
    """Report log-probs of another temperature than that of the sampled ids."""
    value, error = _fit_temperature(observed, sampling)
    interval = (value - 2 * error, value + 2 * error)
    estimate = Estimate("sampled at temperature", value, *interval, expected.temperature)
    values = {"value": value, "reported": sampling.temperature}
    return fault("logprobs/raw", values, estimates=(estimate,), count=len(observed.ids))


def _fit_temperature(observed: Observed, sampling: Sampling) -> tuple[float, float]:
    """Return the maximum-likelihood temperature of the sampled ids, and its standard error."""
    free = sampling.untruncated

    def likelihood(logarithm: float) -> float:
        return float(observed.logprobs(free.replace("temperature", math.exp(logarithm))).sum())

    best, width = 0.0, math.log(5.0)
    for _ in range(5):
        best = max((best + width * index / 8 for index in range(-8, 9)), key=likelihood)
        width /= 8
    step = 0.02
    bend = (likelihood(best - step) - 2 * likelihood(best) + likelihood(best + step)) / step**2
    return math.exp(best), math.exp(best) / math.sqrt(max(-bend, 1e-9))


def make_undecided_if_raw(observed: Observed, result: Result, mode: str) -> Result:
    """Make a clean result undecided if the log-probs may be raw, because raw log-probs show no sampling parameters."""
    may_be_raw = not mode.startswith("processed") and observed.residual(Sampling()) <= (result.alarm or 0.0)
    if result.family != "sampling" or not result.is_clean or not may_be_raw:
        return result
    value, error = _fit_temperature(observed, Sampling())
    more = math.ceil(len(observed.ids) * (_FAULT_SIGMAS * error / _MIN_SHIFT) ** 2) * TOKENS_PER_SAMPLE
    low, high = value - 2 * error, value + 2 * error
    need = note("raw_logprobs", low=low, high=high, count=len(observed.ids), shift=_MIN_SHIFT, tokens=more)
    return replace(result, outcome=NOT_DECIDED, needed=(need,))
