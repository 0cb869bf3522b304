"""Check a server's samples: sampling parameters (P5), log-probs of the sampled ids (P6, P8), ids of the tokenizer.

`check_sampling` estimates the engine's parameters from the reported log-probs and a checkpoint's logits. It reports
each parameter that differs from the trainer's, a logit bias on one id, or log-probs that no parameters explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diagnostics.audit.live import sampled_ids, sampling_estimation
from diagnostics.audit.live.reference import Reference
from diagnostics.audit.live.sampling_distribution import Completion, Observed, Sampling, trimmed_mean
from diagnostics.audit.live.sampling_estimation import Fit
from diagnostics.audit.results import Estimate, Result, RunnerUp, clean, fault, masked, note, undecided

# Increase of --tokens that gives one more sampled token.
_TOKENS_PER_SAMPLE = 15
# Multiples of the rounding error from which on a residual is a fault, and up to which it is clean.
_ALARM, _OPEN, _FLOAT32_ALARM = 1.8, 1.4, 12.0
_LEAST_FLOOR = 2e-6
# A bias on a rare id changes its log-prob by more than this.
_LEAST_RARE_BIAS = 0.7
_CODES = {"top_p": "NUM002", "top_k": "NUM002", "min_p": "NUM002", "repetition_penalty": "NUM003"}
_MESSAGES = {
    "top_p": "the engine samples within top_p {value:.4g}; the trainer computes with {expected:.4g}",
    "top_k": "the engine samples from the {value} most likely tokens (top_k); the trainer computes with {expected}",
    "temperature": "the engine samples at temperature {value:.3f}; the trainer computes with {expected:.3g}",
    "min_p": "the engine drops tokens below min_p {value:.4g}; the trainer computes with {expected:.4g}",
}
_PENALTY = "the engine applies a {name} of {value:.3f}; the trainer computes with {expected:.3g}"


def check_sampling(
    reference: Reference, completions: Sequence[Completion], dtype: str, expected: Sampling, mode: str = ""
) -> list[Result]:
    """Check the reported log-probs and the sampling parameters; return the results about parameters, log-probs and ids.

    Args:
        reference: The weights that the engine has.
        completions: Samples with the trainer's sampling parameters.
        dtype: The engine's dtype.
        expected: The parameters with which the trainer computes.
        mode: The server's logprobs_mode; empty if unknown.
    """
    completions = [completion for completion in completions if completion.ids]
    observed, native = (
        Observed.compute(reference, completions, dtype, native=flag) for flag in (False, True)
    )
    fit = sampling_estimation.fit_sampling(observed, expected, _rounding_error(observed, native, expected))
    results = _check_token_ids(completions)
    fitted = _judge_fit(observed, fit, expected, _rounding_error(observed, native, fit.sampling))
    if results and fitted[0].family == "sampling/law":  # without a fit the parameters are unknown
        fitted = [masked("sampling", "logprobs/token", residual=fitted[0].residual, decisive=True)]
    results += fitted
    by_ids = [sampled_ids.check_ids(completions, observed, fit.sampling, expected, mode)]
    if by_ids[0].is_clean and any(result.is_fault for result in results):
        by_ids = []
    results, by_ids = sampled_ids.replace_refuted_results(observed, fit, expected, mode, results, by_ids)
    if {"sampling/law", "logprobs/raw"} <= {result.family for result in (*results, *by_ids)}:
        by_ids = [masked("logprobs", "sampling/law")]  # other weights sampled these ids
    if not by_ids or by_ids[0].is_clean:
        results = [sampled_ids.recheck_raw(observed, result, mode) for result in results]
    return [*results, *by_ids]


def _rounding_error(exact: Observed, native: Observed, sampling: Sampling) -> float:
    """Return the mean difference of log-probs computed in the engine's dtype from exact ones."""
    difference = native.logprobs(sampling) - exact.logprobs(sampling)
    return max(trimmed_mean(difference.abs().nan_to_num(0.0, 0.0, 0.0).clamp(max=2.0)), _LEAST_FLOOR)


def _check_token_ids(completions: Sequence[Completion]) -> list[Result]:
    """Check that the log-probs are reported for the sampled ids."""
    pairs = [pair for entry in completions for pair in zip(entry.ids, entry.reported, strict=False)]
    wrong = sum(sampled != reported for sampled, reported in pairs)
    message = "{wrong} of {count} log-probs are of another token than the sampled one"
    values = {"wrong": wrong, "count": len(pairs)}
    return [fault("logprobs/token", message, "", values, probe="P8")] if wrong else []


def _judge_fit(observed: Observed, fit: Fit, expected: Sampling, floor: float) -> list[Result]:
    """Return faults: an unknown cause if the fit is bad, else each changed parameter, else a bias on a rare id.

    Without a fault the result is clean, or undecided between the thresholds.
    """
    count, times, alarm = len(observed.ids), fit.residual / floor, _FLOAT32_ALARM if floor < 1e-4 else _ALARM
    fields: dict[str, Any] = {
        "residual": fit.residual, "floor": floor, "alarm": alarm * floor, "count": count, "decisive": True,
        "runner_up": RunnerUp(*fit.runner_up) if fit.runner_up else None,
    }  # fmt: skip
    if times > alarm:
        return [_unexplained_fault(fit, times, fields)]
    if fit.changed:
        return [_parameter_fault(observed, fit, expected, name, fields) for name in fit.changed]
    if rare := sampling_estimation.find_rare_bias(observed, fit.sampling, max(_LEAST_RARE_BIAS, 30 * floor)):
        token, value, times_sampled = rare
        fields["evidence"] = (note("rare_id", "the id was sampled {count} times", count=times_sampled),)
        fields["estimates"] = (Estimate("id", token), Estimate("bias", value, expected=0.0))
        message = "the engine adds {value:+.2f} to the logit of token {id}"
        return [fault("sampling/bias", message, "", {"id": token, "value": value}, **fields)]
    if times > _OPEN and floor >= 1e-4:
        need = note("more_tokens", "--tokens {tokens}", tokens=3 * _TOKENS_PER_SAMPLE * count)
        return [undecided("sampling", need, **fields)]
    return [clean("sampling", **fields)]


def _unexplained_fault(fit: Fit, times: float, fields: dict[str, Any]) -> Result:
    """Report log-probs that no parameters explain."""
    changed = " and ".join(f"{name} {fit.sampling.value(name):.3g}" for name in fit.changed)
    message = "no sampling parameters fit the engine's log-probs; the best, {best}, leave {times:.1f} times rounding"
    values = {"times": times, "best": changed or "the expected parameters"}
    return fault("sampling/law", message, "", values, **fields)


def _parameter_fault(
    observed: Observed, fit: Fit, expected: Sampling, name: str, fields: dict[str, Any]
) -> Result:
    """Report one parameter with its value and interval."""
    value: float | int = sampling_estimation.middle_of_plateau(observed, fit.sampling, name)
    low, high = sampling_estimation.interval(observed, fit.sampling, name)
    target: float | int = expected.value(name)
    if name == "top_k":
        value, target = round(value), int(target)
    estimates = (Estimate(name, value, min(low, value), max(high, value), target),)
    values = {"value": value, "expected": "all" if name == "top_k" and not target else target}
    message = _MESSAGES.get(name, _PENALTY.replace("{name}", name.replace("_", " ")))
    return fault(f"sampling/{name}", message, _CODES.get(name, ""), values, estimates=estimates, **fields)


def check_vocabulary(completions: Sequence[Completion], size: int) -> list[Result]:
    """Check that all sampled ids are below `size`, the tokenizer's number of ids; 0 if there is no tokenizer."""
    ids = [token for completion in completions for token in completion.ids]
    beyond = sum(token >= size for token in ids)
    if not size or not beyond:
        return []
    message = "the engine samples ids that the tokenizer does not have: {share:.0%} of {count}"
    values = {"share": beyond / len(ids), "count": len(ids)}
    return [fault("ids/vocabulary", message, "TOK001", values, count=len(ids))]
