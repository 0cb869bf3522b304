"""P5, P8, P9: estimate how the engine samples, and check that reported log-probs belong to the sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from diagnostics.audit.live import estimation, sampled_ids
from diagnostics.audit.live.estimation import Fit
from diagnostics.audit.live.reference import Reference
from diagnostics.audit.live.sampled_ids import TOKENS_PER_SAMPLE, TRUNCATION_MESSAGES
from diagnostics.audit.live.sampling_distribution import Completion, Observed, Sampling, trimmed_mean
from diagnostics.audit.model import (
    CLEAN,
    FAULT,
    Estimate,
    Result,
    RunnerUp,
    clean,
    fault,
    masked,
    note,
    undecided,
)  # fmt: skip

ALARM, OPEN = 1.8, 1.4
_LEAST_FLOOR, _FLOAT32_ALARM = 2e-6, 12.0
# A log-prob of another token differs by more than this.
_LEAST_MISPLACED = 0.02
_CODES = {"top_p": "NUM002", "top_k": "NUM002", "min_p": "NUM002", "repetition_penalty": "NUM003"}
_MESSAGES = TRUNCATION_MESSAGES | {
    "temperature": "the engine samples at temperature {value:.3f}; the trainer computes with {expected:.3g}",
    "min_p": "the engine drops tokens below min_p {value:.4g}; the trainer computes with {expected:.4g}",
}
_PENALTY = "the engine applies a {name} of {value:.3f}; the trainer computes with {expected:.3g}"


@dataclass(frozen=True)
class Samples:
    """Completions with the logits of some weights, computed exactly and in the engine's own type, and the best fit."""

    completions: tuple[Completion, ...]
    exact: Observed
    native: Observed
    fit: Fit

    @classmethod
    def compute(
        cls, reference: Reference, completions: Sequence[Completion], dtype: str, expected: Sampling
    ) -> Samples:
        """Compute the logits, and fit the sampling parameters."""
        known = tuple(completion for completion in completions if completion.ids)
        exact, native = (Observed.compute(reference, known, dtype, native=native) for native in (False, True))
        fit = estimation.fit_sampling(exact, expected, _floor(exact, native, expected))
        return cls(known, exact, native, fit)

    def floor(self, sampling: Sampling) -> float:
        """Return the difference that rounding alone makes."""
        return _floor(self.exact, self.native, sampling)


def _floor(exact: Observed, native: Observed, sampling: Sampling) -> float:
    difference = native.logprobs(sampling) - exact.logprobs(sampling)
    return max(trimmed_mean(difference.abs().nan_to_num(0.0, 0.0, 0.0).clamp(max=2.0)), _LEAST_FLOOR)


def check_sampling(
    reference: Reference, completions: Sequence[Completion], dtype: str, expected: Sampling, mode: str = ""
) -> list[Result]:
    """Check the reported log-probs and the sampling parameters.

    Args:
        reference: The weights that the engine holds.
        completions: Samples of the trainer's own request.
        dtype: The type that the engine computes in.
        expected: The parameters by which the trainer computes.
        mode: The server's logprobs_mode; empty if unknown.
    """
    samples = Samples.compute(reference, completions, dtype, expected)
    results = _check_token_ids(samples.completions)
    has_other_tokens = bool(results)
    samples, placement = _check_placement(reference, samples, dtype, expected)
    fitted = _judge_fit(samples, expected)
    if has_other_tokens and fitted[0].family == "sampling/law":  # without a fit the parameters are unknown
        fitted = [masked("sampling", "logprobs/token", residual=fitted[0].residual, decisive=True)]
    results += [*placement, *fitted]
    observed, fit, is_faulty = samples.exact, samples.fit, any(result.outcome == FAULT for result in results)
    by_ids = sampled_ids.check_ids(
        samples.completions, observed, fit.sampling, expected, mode, faulty=is_faulty
    )
    results, by_ids = sampled_ids.separate_raw(observed, fit, expected, mode, results, by_ids)
    if {"sampling/law", "logprobs/raw"} <= {result.family for result in (*results, *by_ids)}:
        by_ids = [masked("logprobs", "sampling/law")]  # other weights sampled these ids
    if not by_ids or by_ids[0].outcome == CLEAN:
        results = [sampled_ids.recheck_raw(observed, result, mode) for result in results]
    return [*results, *by_ids]


def _check_token_ids(completions: Sequence[Completion]) -> list[Result]:
    """Check that log-probs are reported for the sampled ids."""
    pairs = [
        pair for completion in completions for pair in zip(completion.ids, completion.reported, strict=False)
    ]
    wrong = sum(sampled != reported for sampled, reported in pairs)
    message = "{wrong} of {count} log-probs are of another token than the sampled one"
    values = {"wrong": wrong, "count": len(pairs)}
    return [fault("logprobs/token", message, "", values, probe="P8")] if wrong else []


def _check_placement(
    reference: Reference, samples: Samples, dtype: str, expected: Sampling
) -> tuple[Samples, list[Result]]:
    """Check whether log-probs fit better one token away, or with another prompt; return the realigned samples."""
    floor, before = samples.floor(expected), samples.fit.residual
    if before <= 4 * floor or before < _LEAST_MISPLACED:
        return samples, []
    for shift in (-1, 1):
        shifted = [_shift(completion, shift) for completion in samples.completions]
        moved = Samples.compute(reference, shifted, dtype, expected)
        if moved.fit.residual < 0.25 * before:
            message = "the reported log-probs are those of the token {shift:+d} places away"
            return moved, [fault(
                "logprobs/shift", message, "NUM044", {"shift": shift}, probe="P8", residual=moved.fit.residual,
                floor=floor, estimates=(Estimate("shift", shift, expected=0),), runner_up=RunnerUp("no shift", before),
                count=len(moved.exact.ids),
            )]  # fmt: skip
    return _check_pairing(reference, samples, dtype, expected)


def _shift(completion: Completion, shift: int) -> Completion:
    """Move log-probs to the ids they belong to, and drop ids without one."""
    ids, logprobs, prompt = completion.ids, completion.logprobs, completion.prompt
    if shift < 0:  # each log-prob is that of the id before it
        return Completion(prompt, ids[:-1], logprobs[1:])
    return Completion((*prompt, *ids[:1]), ids[1:], logprobs[:-1])


def _check_pairing(
    reference: Reference, samples: Samples, dtype: str, expected: Sampling
) -> tuple[Samples, list[Result]]:
    """Check whether samples fit other prompts better (P9)."""
    prompts = list(dict.fromkeys(completion.prompt for completion in samples.completions))
    if len(prompts) < 2:
        return samples, []
    best, moved = [], 0
    for completion in samples.completions:
        candidates = [replace(completion, prompt=prompt) for prompt in prompts]
        residuals = [
            Observed.compute(reference, [candidate], dtype).residual(expected) for candidate in candidates
        ]
        place, own_place = residuals.index(min(residuals)), prompts.index(completion.prompt)
        moved += place != own_place and residuals[place] < 0.5 * residuals[own_place]
        best.append(candidates[place])
    if moved < max(2, len(best) // 4):
        return samples, []
    again = Samples.compute(reference, best, dtype, expected)
    if again.fit.residual > 0.5 * samples.fit.residual:
        return samples, []
    message = "samples are paired with other prompts: {moved} of {count} fit another prompt better"
    return again, [fault(
        "pairing", message, "TOK019", {"moved": moved, "count": len(best)}, probe="P9", residual=again.fit.residual,
        floor=samples.floor(expected), runner_up=RunnerUp("as returned", samples.fit.residual),
        count=len(again.exact.ids),
    )]  # fmt: skip


def _judge_fit(samples: Samples, expected: Sampling) -> list[Result]:
    """Report the estimated parameters; a residual above the alarm is unexplained, never a named value."""
    fit, observed, floor = samples.fit, samples.exact, samples.floor(samples.fit.sampling)
    count, times = len(observed.ids), samples.fit.residual / floor
    slack = _FLOAT32_ALARM if floor < 1e-4 else ALARM
    fields: dict[str, Any] = {
        "residual": fit.residual, "floor": floor, "alarm": slack * floor, "count": count, "decisive": True,
        "runner_up": RunnerUp(*fit.runner_up) if fit.runner_up else None,
    }  # fmt: skip
    if times > slack:
        return [_bias_fault(observed, fit, expected, fields) or _unexplained_fault(fit, times, fields)]
    if fit.changed:
        return [_parameter_fault(observed, fit, expected, name, fields) for name in fit.changed]
    if times > OPEN and floor >= 1e-4:
        need = note("more_tokens", "--tokens {tokens}", tokens=3 * TOKENS_PER_SAMPLE * count)
        return [undecided("sampling", need, **fields)]
    return [clean("sampling", **fields)]


def _bias_fault(observed: Observed, fit: Fit, expected: Sampling, fields: dict[str, Any]) -> Result | None:
    """Report a bias on one id, if that explains what the parameters leave."""
    for start in (fit.sampling, expected):
        biased = estimation.fit_bias(observed, start)
        if biased is None or biased.bias is None:
            continue
        residual = observed.residual(biased)
        if residual < 0.5 * fit.residual and residual <= max(fields["alarm"], 4 * fields["floor"]):
            token, value = biased.bias
            estimates = (Estimate("id", token), Estimate("bias", value, expected=0.0))
            message, values = (
                "the engine adds {value:+.2f} to the logit of token {id}",
                {"id": token, "value": value},
            )
            return fault(
                "sampling/bias",
                message,
                "",
                values,
                **fields | {"residual": residual, "estimates": estimates},
            )
    return None


def _unexplained_fault(fit: Fit, times: float, fields: dict[str, Any]) -> Result:
    """Report log-probs that no parameters explain, with the pairs that were tried."""
    pairs = "; ".join(f"{names} {residual:.2g}" for names, residual in fit.tried) or "none"
    best = (
        " and ".join(f"{name} {fit.sampling.value(name):.3g}" for name in fit.changed)
        or "the expected parameters"
    )
    message = ("unexplained: no sampling parameters fit the engine's log-probs; the best, {best}, leave {times:.1f}"
               " times what rounding makes; pairs tried: {pairs}")  # fmt: skip
    return fault("sampling/law", message, "", {"times": times, "pairs": pairs, "best": best}, **fields)


def _parameter_fault(
    observed: Observed, fit: Fit, expected: Sampling, name: str, fields: dict[str, Any]
) -> Result:
    """Report one parameter with its value and interval."""
    value: float | int = estimation.middle_of_plateau(observed, fit.sampling, name)
    low, high = estimation.interval(observed, fit.sampling, name)
    target: float | int = expected.value(name)
    if name == "top_k":
        value, target = round(value), int(target)
    estimates = (Estimate(name, value, min(low, value), max(high, value), target),)
    values = {"value": value, "expected": "all" if name == "top_k" and not target else target}
    message = _MESSAGES.get(name, _PENALTY.replace("{name}", name.replace("_", " ")))
    return fault(f"sampling/{name}", message, _CODES.get(name, ""), values, estimates=estimates, **fields)


def hidden_by(family: str) -> list[Result]:
    """Return masked results, because unknown weights hide the sampling parameters."""
    return [masked(topic, family, decisive=True) for topic in ("sampling", "logprobs")]


def check_vocabulary(completions: Sequence[Completion], size: int) -> list[Result]:
    """Check that the tokenizer has all sampled ids; size 0 if there is no tokenizer."""
    ids = [token for completion in completions for token in completion.ids]
    beyond = sum(token >= size for token in ids)
    if not size or not beyond:
        return []
    message = "the engine samples ids that the tokenizer does not have: {share:.0%} of {count}"
    values = {"share": beyond / len(ids), "count": len(ids)}
    return [fault("ids/vocabulary", message, "TOK001", values, count=len(ids))]
