"""Check a server's samples: sampling parameters (P5), log-probs of sampled ids (P6, P8), ends (P6), unknown ids (P10).

`check_sampling` estimates the engine's parameters from the reported log-probs and a checkpoint's logits. It reports
each parameter that differs from the one with which the trainer computes log-probs. A parameter other than the
temperature is clean with a notice if --trainer-config states the estimated value for the server's requests. It also
reports log-probs that no parameters explain, and runs `sampled_ids.check_ids`. A result that another fault makes
meaningless is masked. A clean result is undecided if the log-probs may be raw (from before temperature and truncation),
because these do not show the parameters. `check_ends` checks how completions end, `check_vocabulary` checks their ids.
"""

from collections.abc import Sequence
from typing import Any

from diagnostics.audit.live import sampled_ids, sampling_estimation
from diagnostics.audit.live.reference import Reference
from diagnostics.audit.live.sampling_distribution import NAMES, Completion, Observed, Sampling, trimmed_mean
from diagnostics.audit.live.sampling_estimation import Fit
from diagnostics.audit.live.server_settings import TrainerSettings
from diagnostics.audit.results import Estimate, Result, clean, code_of, fault, masked, note, undecided
from diagnostics.audit.training_curves import Curves

# Multiples of the rounding error from which on a residual is a fault, and up to which it is clean.
_ALARM, _UNDECIDED, _FLOAT32_ALARM = 1.8, 1.4, 12.0
_MIN_FLOOR = 2e-6


def check_sampling(
    reference: Reference, completions: Sequence[Completion], dtype: str, trainer: TrainerSettings, mode: str
) -> list[Result]:
    """Check the reported log-probs and the sampling parameters; return the results about parameters, log-probs and ids.

    Args:
        reference: The weights that the engine has.
        completions: Samples with the trainer's sampling parameters.
        dtype: The engine's dtype.
        trainer: The trainer's settings, with the parameters with which it computes.
        mode: The server's logprobs_mode; empty if unknown.
    """
    expected = trainer.sampling
    completions = [completion for completion in completions if completion.ids]
    observed = Observed.compute(reference, completions, dtype)
    native = Observed.compute(reference, completions, dtype, native=True)
    # The stated parameters are tested first: on few tokens, several estimates may explain the log-probs as well.
    start = min((expected, Sampling(**trainer.request)), key=observed.residual)
    fit = sampling_estimation.fit_sampling(observed, start, _rounding_error(observed, native, start))
    results = _check_token_ids(completions)
    fitted = _judge_fit(observed, fit, expected, _rounding_error(observed, native, fit.sampling))
    if results and fitted[0].family == "sampling/law":  # without a fit the parameters are unknown
        fitted = [masked("sampling", "logprobs/token", residual=fitted[0].residual, decisive=True)]
    results += fitted
    by_ids = [sampled_ids.check_ids(completions, observed, fit.sampling, expected)]
    if by_ids[0].is_clean and any(result.is_fault for result in results):
        by_ids = []
    results, by_ids = sampled_ids.replace_refuted_results(observed, fit, expected, mode, results, by_ids)
    if {"sampling/law", "logprobs/raw"} <= {result.family for result in (*results, *by_ids)}:
        by_ids = [masked("logprobs", "sampling/law")]  # other weights sampled these ids
    if not by_ids or by_ids[0].is_clean:
        results = [sampled_ids.make_undecided_if_raw(observed, result, mode) for result in results]
    return [*results, *by_ids]


def _rounding_error(exact: Observed, native: Observed, sampling: Sampling) -> float:
    """Return the mean difference of log-probs computed in the engine's dtype from exact ones."""
    difference = native.logprobs(sampling) - exact.logprobs(sampling)
    return max(trimmed_mean(difference.abs().nan_to_num(0.0, 0.0, 0.0).clamp(max=2.0)), _MIN_FLOOR)


def _check_token_ids(completions: Sequence[Completion]) -> list[Result]:
    """Return a fault if log-probs are reported for other ids than the sampled ones."""
    pairs = [pair for entry in completions for pair in zip(entry.ids, entry.reported_ids, strict=False)]
    wrong = sum(sampled != reported for sampled, reported in pairs)
    values = {"wrong": wrong, "count": len(pairs)}
    return [fault("logprobs/token", values, probe="P8")] if wrong else []


def _judge_fit(observed: Observed, fit: Fit, expected: Sampling, floor: float) -> list[Result]:
    """Return faults: an unknown cause if the fit is bad, else each changed parameter.

    A parameter that the trainer's settings state is a notice. Without a fault the result is clean, or undecided between
    the thresholds.
    """
    count, times, alarm = len(observed.ids), fit.residual / floor, _FLOAT32_ALARM if floor < 1e-4 else _ALARM
    fields: dict[str, Any] = {
        "residual": fit.residual, "floor": floor, "alarm": alarm * floor, "count": count, "decisive": True,
    }  # fmt: skip
    if times > alarm:
        nearest = {name: fit.sampling.value(name) for name in fit.changed} or {
            "temperature": expected.temperature
        }
        tried = note(
            "tried", nearest=", ".join(f"{name} {value:.3g}" for name, value in nearest.items()), times=times
        )
        fields["evidence"] = (tried, *Curves(()).causes("unexplained"))
        return [fault("sampling/law", **fields)]
    differing = [name for name in NAMES if fit.sampling.value(name) != expected.value(name)]
    if differing:
        return [_parameter_result(observed, fit, expected, name, fields) for name in differing]
    if times > _UNDECIDED and floor >= 1e-4:
        need = note("more_tokens", tokens=3 * sampled_ids.TOKENS_PER_SAMPLE * count)
        return [undecided("sampling", need, **fields)]
    return [clean("sampling", **fields)]


def _parameter_result(
    observed: Observed, fit: Fit, expected: Sampling, name: str, fields: dict[str, Any]
) -> Result:
    """Report one parameter with its value and interval; as a notice if it is as the trainer's settings state."""
    if name not in fit.changed:
        fact = note(
            "notice:stated", name=name, stated=fit.sampling.value(name), code=code_of(f"sampling/{name}")
        )
        return clean(f"sampling/{name}", evidence=(fact,), **fields)
    value: float | int = sampling_estimation.middle_of_plateau(observed, fit.sampling, name)
    low, high = sampling_estimation.interval(observed, fit.sampling, name)
    target: float | int = expected.value(name)
    if name == "top_k":
        value, target = round(value), int(target)
    estimates = (Estimate(name, value, min(low, value), max(high, value), target),)
    values = {"value": value, "expected": "all" if name == "top_k" and not target else target}
    return fault(f"sampling/{name}", values, estimates=estimates, **fields)


def check_ends(completions: Sequence[Completion], tokens: int, stop_ids: set[int]) -> list[Result]:
    """Check that a completion that is short or finishes by `stop` ends with an end token or at a reported stop.

    The result is a fault, undecided without known end tokens, or empty.
    """

    def is_stopped(entry: Completion) -> bool:
        last = {*entry.ids[-1:], *entry.reported_ids[-1:]}
        return bool(last & {*stop_ids, entry.stop_reason}) or isinstance(entry.stop_reason, str)

    early = [entry for entry in completions if len(entry.ids) < tokens or entry.finish_reason == "stop"]
    cut = [entry for entry in early if not is_stopped(entry)]
    if not cut or not stop_ids:
        return [undecided("ends/cut", note("want_stop_ids"), probe="P6", count=len(cut))] if cut else []
    values = {"cut": len(cut), "count": len(completions), "tokens": tokens, "length": len(cut[0].ids)}
    fields: dict[str, Any] = {"count": len(cut), "evidence": tuple(Curves(()).causes("cut"))}
    return [fault("ends/cut", values | {"reason": cut[0].finish_reason}, probe="P6", **fields)]


def check_vocabulary(completions: Sequence[Completion], size: int) -> list[Result]:
    """Return a fault if a sampled id is not below `size`, the tokenizer's number of ids (0 without a tokenizer)."""
    ids = [token for completion in completions for token in completion.ids]
    beyond = sum(token >= size for token in ids)
    if not size or not beyond:
        return []
    return [fault("ids/vocabulary", {"share": beyond / len(ids), "count": len(ids)}, count=len(ids))]
