"""P5, P6, P8, P9: estimate how the engine samples, and check that reported log-probs belong to the sampled tokens.

Raw log-probs (vLLM's default) do not depend on the sampling parameters. Then the sampled ids alone can decide, and only
with many tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from diagnostics.audit.live import estimation
from diagnostics.audit.live.estimation import Fit
from diagnostics.audit.live.reference import Reference
from diagnostics.audit.live.sampling_distribution import Completion, Observed, Sampling, trimmed_mean
from diagnostics.audit.model import (
    CLEAN,
    FAULT,
    MASKED,
    NOT_DECIDED,
    Estimate,
    Note,
    Result,
    RunnerUp,
    fault,
    note,
)

ALARM, OPEN = 1.8, 1.4
_LEAST_FLOOR, _FLOAT32_ALARM = 2e-6, 12.0
# --tokens that make one sampled token.
_TOKENS_PER_SAMPLE = 15
# A log-prob of another token differs by more than this.
_LEAST_MISPLACED = 0.02
# Log-probs of two ids that rounding may exchange.
_TIE = 0.2
# Standard errors by which the sampled ids must miss the reported distribution.
_SURE = 5.0
# Raw log-probs: standard error of the temperature that decides, top-p that must be excluded, tokens that should be
# outside.
_ID_ERROR, _ID_TOP_P, _ID_OUTSIDE, _ID_SIGMAS = 0.01, 0.99, 14.0, 6.0
# Temperatures nearer than this, as logarithms, are equal; odds below which the alternative is mentioned.
_SAME, _UNSURE = 0.03, math.log(20)
_CODES = {"top_p": "NUM002", "top_k": "NUM002", "min_p": "NUM002", "repetition_penalty": "NUM003"}
_MESSAGES = {
    "temperature": "the engine samples at temperature {value:.3f}; the trainer computes with {expected:.3g}",
    "top_p": "the engine samples within top_p {value:.4g}; the trainer computes with {expected:.4g}",
    "top_k": "the engine samples from the {value} most likely tokens (top_k); the trainer computes with {expected}",
    "min_p": "the engine drops tokens below min_p {value:.4g}; the trainer computes with {expected:.4g}",
}
_PENALTY = "the engine applies a {name} of {value:.3f}; the trainer computes with {expected:.3g}"


@dataclass(frozen=True)
class Samples:
    """Completions with the logits of some weights: computed exactly, and in the engine's own type."""

    completions: tuple[Completion, ...]
    exact: Observed
    native: Observed

    @classmethod
    def compute(cls, reference: Reference, completions: Sequence[Completion], dtype: str) -> Samples:
        """Compute the logits."""
        known = tuple(each for each in completions if each.ids)
        exact, native = (Observed.compute(reference, known, dtype, native=native) for native in (False, True))
        return cls(known, exact, native)

    def floor(self, sampling: Sampling) -> float:
        """Return the difference that rounding alone makes."""
        difference = self.native.logprobs(sampling) - self.exact.logprobs(sampling)
        return max(trimmed_mean(difference.abs().nan_to_num(0.0, 0.0, 0.0).clamp(max=2.0)), _LEAST_FLOOR)


def check_sampling(
    reference: Reference, completions: Sequence[Completion], dtype: str, expected: Sampling, mode: str = ""
) -> list[Result]:
    """Check what is reported, and how it was sampled.

    Args:
        reference: The weights that the engine holds.
        completions: Samples of the trainer's own request.
        dtype: The type that the engine computes in.
        expected: The parameters by which the trainer computes.
        mode: The server's logprobs_mode; empty if unknown.
    """
    samples = Samples.compute(reference, completions, dtype)
    results = _check_token_ids(samples.completions)
    fit = estimation.fit_sampling(samples.exact, expected, samples.floor(expected))
    realigned, placement = _check_placement(reference, samples, dtype, expected, fit)
    if placement:
        samples, fit = (
            realigned,
            estimation.fit_sampling(realigned.exact, expected, realigned.floor(expected)),
        )
    results += placement
    fitted = _judge_fit(samples.exact, fit, expected, samples.floor(fit.sampling))
    if any(result.family == "logprobs/token" for result in results):
        fitted = [
            _masked(result, "logprobs/token") if result.family == "sampling/law" else result
            for result in fitted
        ]
    results += fitted
    by_ids = _check_ids(
        samples, fit.sampling, expected, mode, faulty=any(each.outcome == FAULT for each in results)
    )
    results, by_ids = _separate_raw(samples.exact, fit, expected, mode, results, by_ids)
    if {"sampling/law", "logprobs/raw"} <= {result.family for result in (*results, *by_ids)}:
        by_ids = [
            Result("logprobs", MASKED, "P6", masked_by="sampling/law")
        ]  # other weights sampled these ids
    if not by_ids or by_ids[0].outcome == CLEAN:
        results = [_without_parameters(samples.exact, result, mode) for result in results]
    return [*results, *by_ids]


def _masked(result: Result, family: str) -> Result:
    return replace(result, family="sampling", outcome=MASKED, message="", masked_by=family)


def _check_token_ids(completions: Sequence[Completion]) -> list[Result]:
    """Check that log-probs are reported for the sampled ids."""
    pairs = [pair for each in completions for pair in zip(each.ids, each.reported, strict=False)]
    wrong = sum(sampled != reported for sampled, reported in pairs)
    if not wrong:
        return []
    values = {"wrong": wrong, "count": len(pairs)}
    message = "{wrong} of {count} log-probs are of another token than the sampled one"
    return [fault("logprobs/token", "P8", message, values=values)]


def _check_placement(
    reference: Reference, samples: Samples, dtype: str, expected: Sampling, fit: Fit
) -> tuple[Samples, list[Result]]:
    """Check whether log-probs fit better one token away, or with another prompt; return the realigned samples."""
    floor = samples.floor(expected)
    if fit.residual <= 4 * floor or fit.residual < _LEAST_MISPLACED:
        return samples, []
    for shift in (-1, 1):
        moved = Samples.compute(reference, [_shift(each, shift) for each in samples.completions], dtype)
        residual = estimation.fit_sampling(moved.exact, expected, floor).residual
        if residual < 0.25 * fit.residual:
            message = "the reported log-probs are those of the token {shift:+d} places away"
            return moved, [
                fault("logprobs/shift", "P8", message, "NUM044", values={"shift": shift}, residual=residual,
                floor=floor,
                      estimates=(Estimate("shift", shift, expected=0),), runner_up=RunnerUp("no shift", fit.residual),
                      count=len(moved.exact.ids))
            ]  # fmt: skip
    return _check_pairing(reference, samples, dtype, expected, floor, fit.residual)


def _shift(completion: Completion, shift: int) -> Completion:
    """Move log-probs to the ids they belong to, and drop ids without one."""
    ids, logprobs, prompt = completion.ids, completion.logprobs, completion.prompt
    if shift < 0:  # each log-prob is that of the id before it
        return replace(completion, ids=ids[:-1], logprobs=logprobs[1:], reported=())
    return replace(completion, prompt=(*prompt, *ids[:1]), ids=ids[1:], logprobs=logprobs[:-1], reported=())


def _check_pairing(
    reference: Reference, samples: Samples, dtype: str, expected: Sampling, floor: float, before: float
) -> tuple[Samples, list[Result]]:
    """Check whether samples fit other prompts better (P9)."""
    prompts = list(dict.fromkeys(each.prompt for each in samples.completions))
    if len(prompts) < 2:
        return samples, []
    best, moved = [], 0
    for each in samples.completions:
        candidates = [replace(each, prompt=prompt) for prompt in prompts]
        residuals = [Observed.compute(reference, [one], dtype).residual(expected) for one in candidates]
        place = residuals.index(min(residuals))
        moved += (
            candidates[place].prompt != each.prompt
            and residuals[place] < 0.5 * residuals[prompts.index(each.prompt)]
        )
        best.append(candidates[place])
    if moved < max(2, len(best) // 4):
        return samples, []
    again = Samples.compute(reference, best, dtype)
    residual = estimation.fit_sampling(again.exact, expected, floor).residual
    if residual > 0.5 * before:
        return samples, []
    message = "samples are paired with other prompts: {moved} of {count} fit another prompt better"
    return again, [
        fault("pairing", "P9", message, "TOK019", values={"moved": moved, "count": len(best)}, residual=residual,
              floor=floor, runner_up=RunnerUp("as returned", before), count=len(again.exact.ids))
    ]  # fmt: skip


def _judge_fit(observed: Observed, fit: Fit, expected: Sampling, floor: float) -> list[Result]:
    """Report the estimated parameters; a residual above the alarm is unexplained, never a named value."""
    slack = _FLOAT32_ALARM if floor < 1e-4 else ALARM
    times = fit.residual / floor
    clean = Result(
        "sampling", CLEAN, "P5", residual=fit.residual, floor=floor, alarm=slack * floor, count=len(observed.ids),
        runner_up=RunnerUp(*fit.runner_up) if fit.runner_up else None, decisive=True,
    )  # fmt: skip
    if times > slack:
        return [_biased(observed, fit, expected, clean) or _unexplained(fit, clean, times)]
    if fit.changed:
        return [_name_parameter(observed, fit, expected, name, clean) for name in fit.changed]
    if times > OPEN and floor >= 1e-4:
        tokens = 3 * _TOKENS_PER_SAMPLE * len(observed.ids)
        return [
            replace(
                clean, outcome=NOT_DECIDED, needed=(note("more_tokens", "--tokens {tokens}", tokens=tokens),)
            )
        ]
    return [clean]


def _biased(observed: Observed, fit: Fit, expected: Sampling, clean: Result) -> Result | None:
    for start in (fit.sampling, expected):
        biased = estimation.fit_bias(observed, start)
        if biased is None or biased.bias is None or clean.alarm is None:
            continue
        residual = observed.residual(biased)
        if residual < 0.5 * fit.residual and residual <= max(clean.alarm, 4 * (clean.floor or 0)):
            token, value = biased.bias
            return replace(
                clean, family="sampling/bias", outcome=FAULT, values={"id": token, "value": value}, residual=residual,
                message=f"the engine adds {value:+.2f} to the logit of token {token}",
                estimates=(Estimate("id", token), Estimate("bias", value, expected=0.0)),
            )  # fmt: skip
    return None


def _unexplained(fit: Fit, clean: Result, times: float) -> Result:
    """Report log-probs that no parameters explain, with the pairs that were tried."""
    pairs = "; ".join(f"{names} {residual:.2g}" for names, residual in fit.tried) or "none"
    best = (
        " and ".join(f"{name} {fit.sampling.value(name):.3g}" for name in fit.changed)
        or "the expected parameters"
    )
    values = {"times": times, "pairs": pairs, "best": best}
    message = ("unexplained: no sampling parameters fit the engine's log-probs; the best,"
               " {best}, leave" " {times:.1f} times what"
               " rounding makes; pairs tried: {pairs}")  # fmt: skip
    return replace(
        clean, family="sampling/law", outcome=FAULT, values=values, message=message.format(**values)
    )


def _name_parameter(observed: Observed, fit: Fit, expected: Sampling, name: str, clean: Result) -> Result:
    value: float | int = estimation.flat_middle(observed, fit.sampling, name)
    low, high = estimation.interval(observed, fit.sampling, name)
    before: float | int = expected.value(name)
    if name == "top_k":
        value, before = round(value), int(before)
    shown = "all" if name == "top_k" and not before else before
    values = {"value": value, "expected": shown}
    message = _MESSAGES.get(name, _PENALTY).format(name=name.replace("_", " "), **values)
    return replace(
        clean, family=f"sampling/{name}", outcome=FAULT, message=message, code=_CODES.get(name, ""), values=values,
        estimates=(Estimate(name, value, min(low, value), max(high, value), before),),
    )  # fmt: skip


def _check_ids(
    samples: Samples, sampling: Sampling, expected: Sampling, mode: str, *, faulty: bool
) -> list[Result]:
    """Check the sampled ids themselves against the distribution of what is reported (P6)."""
    observed, count = samples.exact, len(samples.exact.ids)
    whole = observed.distribution(sampling)
    top = whole.max(1).values
    gap = top - whole.gather(1, observed.places)[:, 0]
    chance = float(top.sum())
    if bool((gap <= _TIE).all()) and float((gap == 0).double().mean()) > 0.9 and chance < -12:
        values = {"count": count, "chance": math.exp(max(chance, -700.0))}
        message = "greedy sampling: all {count} tokens are the most likely ones (by chance {chance:.1g})"
        return [fault("sampling/greedy", "P6", message, "CFG115", values=values, count=count)]
    if repeated := _check_seeds(samples):
        return [repeated]
    total, mean, error = observed.surprise(sampling)
    z = (total - mean) / max(error, 1e-9)
    text = "the sampled ids are {z:+.1f} standard errors from temperature {temperature:.3g} (logprobs_mode: {mode})"
    seen = note("surprise", text, z=z, temperature=sampling.temperature, mode=mode or "unknown")
    if abs(z) > _SURE:
        return [_raw_fault(observed, sampling, expected, seen)]
    return [] if faulty else [Result("logprobs", CLEAN, "P6", evidence=(seen,), count=count)]


def _check_seeds(samples: Samples) -> Result | None:
    """Check whether samples of a prompt are equal more often than chance allows."""
    same, log_chance, place = 0, 0.0, 0
    previous: dict[tuple[int, ...], tuple[int, ...]] = {}
    logprobs = samples.exact.logprobs(Sampling())
    for each in samples.completions:
        if previous.get(each.prompt) == each.ids:
            same += 1
            log_chance += float(logprobs[place : place + len(each.ids)].sum())
        previous[each.prompt] = each.ids
        place += len(each.ids)
    if same < 2 or log_chance > -20:
        return None
    values = {"same": same, "count": len(samples.completions)}
    message = "one seed for all samples: {same} of {count} repeat the one before them"
    return fault("sampling/seed", "P6", message, values=values, count=len(samples.completions))


def _separate_raw(
    observed: Observed, fit: Fit, expected: Sampling, mode: str, results: list[Result], by_ids: list[Result]
) -> tuple[list[Result], list[Result]]:
    """Decide between raw log-probs and sampling at temperature 1, which report the same, by the sampled ids."""
    sampling = fit.sampling
    heat = math.log(expected.temperature / sampling.temperature)
    neutral = replace(sampling, temperature=1.0) == Sampling() and abs(math.log(sampling.temperature)) < _SAME
    if fit.changed != ("temperature",) or not neutral or abs(heat) < _SAME:
        return results, by_ids
    odds = float((observed.logprobs(expected.untruncated) - observed.logprobs(sampling)).sum())
    is_raw = mode.startswith("raw") or (odds > 0 and not mode.startswith("processed"))
    doubt: tuple[Note, ...] = ()
    if not mode and abs(odds) <= _UNSURE:
        text = ("or the engine samples at temperature {temperature:.3g}: odds 1 to {odds:.2g}" if is_raw
                else "or raw log-probs of temperature {temperature:.3g}: odds 1 to {odds:.2g}")  # fmt: skip
        temperature = sampling.temperature if is_raw else expected.temperature
        doubt = (
            note(
                "raw_unsure" if is_raw else "law_unsure",
                text,
                odds=math.exp(abs(odds)),
                temperature=temperature,
            ),
        )
    if is_raw:
        results = [Result("sampling", MASKED, "P5",
            masked_by="logprobs/raw") if each.family == "sampling/temperature" else each
                   for each in results]  # fmt: skip
        others = [each for each in by_ids if each.topic != "logprobs"]
        return results, [*others, _raw_fault(observed, sampling, expected, *doubt)]
    results = [replace(each, evidence=(*each.evidence, *doubt)) if each.family == "sampling/temperature" else each
               for each in results]  # fmt: skip
    return results, [each for each in by_ids if each.family != "logprobs/raw"]


def _raw_fault(observed: Observed, sampling: Sampling, expected: Sampling, *evidence: Note) -> Result:
    value, error = _temperature_of_ids(observed, sampling)
    message = (
        "the reported log-probs are those of temperature {reported:.2f}, the samples those of {value:.2f}"
    )
    estimate = Estimate(
        "sampled at temperature", value, value - 2 * error, value + 2 * error, expected.temperature
    )
    return fault("logprobs/raw", "P6", message, "NUM001", values={"value": value, "reported": sampling.temperature},
                 estimates=(estimate,), evidence=evidence, count=len(observed.ids))  # fmt: skip


def _temperature_of_ids(observed: Observed, sampling: Sampling) -> tuple[float, float]:
    """Return the temperature under which the sampled ids are likeliest, and its standard error."""
    free = sampling.untruncated

    def likelihood(log_temperature: float) -> float:
        return float(observed.logprobs(free.replace("temperature", math.exp(log_temperature))).sum())

    low, high = math.log(0.05), math.log(5.0)
    for _ in range(40):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (left, high) if likelihood(left) < likelihood(right) else (low, right)
    best, step = (low + high) / 2, 0.02
    bend = (likelihood(best - step) - 2 * likelihood(best) + likelihood(best + step)) / step**2
    return math.exp(best), math.exp(best) / math.sqrt(max(-bend, 1e-9))


def _without_parameters(observed: Observed, result: Result, mode: str) -> Result:
    """Recheck a clean result if the log-probs may be raw: those carry no sampling parameters."""
    reported_neutral = observed.residual(Sampling()) <= (result.alarm or 0.0)
    if (
        result.family != "sampling"
        or result.outcome != CLEAN
        or mode.startswith("processed")
        or not reported_neutral
    ):
        return result
    return (
        _truncation_of_ids(observed, result)
        or _bias_of_ids(observed, result)
        or _decide_by_ids(observed, result)
    )


def _decide_by_ids(observed: Observed, result: Result) -> Result:
    """Return clean only if the ids bound temperature and top-p closely; else say how many tokens would."""
    count = len(observed.ids)
    temperature, error = _temperature_of_ids(observed, Sampling())
    outside = _mass_outside(observed, top_p=_ID_TOP_P)
    factor = max((error / _ID_ERROR) ** 2, _ID_OUTSIDE / max(outside, 0.01))
    text = "raw log-probs carry no sampling parameters; by the ids temperature {value:.3f} (standard error {error:.3f})"
    seen = note("raw_logprobs", text, value=temperature, error=error)
    if factor <= 1:
        return replace(result, evidence=(*result.evidence, seen))
    tokens = math.ceil(factor * count * _TOKENS_PER_SAMPLE / 1000) * 1000
    need = note(
        "more_tokens",
        "--tokens {tokens}, or a server started with --logprobs-mode processed_logprobs",
        tokens=tokens,
    )
    return replace(result, outcome=NOT_DECIDED, evidence=(*result.evidence, seen), needed=(need,))


def _shares(observed: Observed) -> tuple[Any, Any]:
    """Return the sorted probabilities at each position, and for each the probability of likelier ids."""
    ordered = observed.distribution(Sampling()).exp().sort(dim=1, descending=True).values
    return ordered, ordered.cumsum(1) - ordered


def _mass_outside(observed: Observed, *, top_p: float = 1.0, top_k: int = 0) -> float:
    """Return how many sampled tokens should lie outside of a truncation."""
    ordered, before = _shares(observed)
    inside = ordered * (before < top_p)
    if top_k:
        inside = inside[:, :top_k]
    return float((1 - inside.sum(1)).clamp(min=0).sum())


def _truncation_of_ids(observed: Observed, result: Result) -> Result | None:
    """Report a truncation if no sampled id lies outside of it although many should."""
    distribution = observed.distribution(Sampling())
    likelier = distribution > distribution.gather(1, observed.places)
    top_p = float((distribution.exp() * likelier).sum(1).max())
    top_k = int(likelier.sum(1).max()) + 1
    candidates = [
        ("top_p", top_p, _mass_outside(observed, top_p=top_p)),
        ("top_k", top_k, _mass_outside(observed, top_k=top_k)),
    ]
    name, value, outside = max(candidates, key=lambda each: each[2])
    if outside < _ID_OUTSIDE:
        return None
    values: dict[str, Any] = {"value": value, "expected": 1.0 if name == "top_p" else "all"}
    return replace(
        result, family=f"sampling/{name}", outcome=FAULT, probe="P6", code="NUM002", values=values, residual=None,
        message=_MESSAGES[name].format(**values), estimates=(Estimate(name, value,
        expected=1.0 if name == "top_p" else 0),),
        evidence=(note("outside", "{outside:.0f} tokens should lie outside of it, and none does", outside=outside),),
    )  # fmt: skip


def _bias_of_ids(observed: Observed, result: Result) -> Result | None:
    """Report an id that is sampled far more or less often than its probability allows."""
    import torch

    shares = observed.distribution(Sampling()).exp()
    size = int(observed.columns.max()) + 1
    expected = torch.zeros(size, dtype=torch.float64).index_add_(
        0, observed.columns.flatten(), shares.flatten()
    )
    variance = torch.zeros_like(expected).index_add_(
        0, observed.columns.flatten(), (shares * (1 - shares)).flatten()
    )
    counts = torch.bincount(observed.ids, minlength=size).double()
    z = ((counts - expected) / variance.clamp(min=1.0).sqrt()).masked_fill(expected < 5, 0.0)
    token = int(z.abs().argmax())
    if abs(float(z[token])) < _ID_SIGMAS:
        return None
    value = math.log((float(counts[token]) + 0.5) / float(expected[token]))
    values = {"id": token, "value": value, "count": int(counts[token]), "expected": float(expected[token])}
    message = (
        "the engine's logit of token {id} is biased (about {value:+.1f}): sampled {count} times, expected"
        " {expected:.0f}"
    )
    return replace(result, family="sampling/bias", outcome=FAULT, probe="P6", values=values, residual=None,
                   message=message.format(**values), estimates=(Estimate("id", token), Estimate("bias", value,
                   expected=0.0)))  # fmt: skip


def hidden_by(family: str) -> list[Result]:
    """Return masked results, because unknown weights hide the sampling parameters."""
    return [
        Result(topic, MASKED, probe, masked_by=family, decisive=True)
        for topic, probe in (("sampling", "P5"), ("logprobs", "P6"))
    ]


def check_vocabulary(completions: Sequence[Completion], size: int) -> list[Result]:
    """Check that the tokenizer has all sampled ids; size 0 if there is no tokenizer."""
    ids = [token for each in completions for token in each.ids]
    beyond = sum(token >= size for token in ids)
    if not size or not beyond:
        return []
    message = "the engine samples ids that the tokenizer does not have: {share:.0%} of {count}"
    return [
        fault(
            "ids/vocabulary",
            "P10",
            message,
            "TOK001",
            values={"share": beyond / len(ids), "count": len(ids)},
            count=len(ids),
        )
    ]
