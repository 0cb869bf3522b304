"""Find out why reported log-probs fit no sampling parameters (P6): which known mistake reproduces them.

`explain_logprobs` tries a shift by one token, log-probs of another sample, rounding, one bias on several ids, and
log-probs of another checkpoint. A fault that none explains lists what was excluded.
"""

from __future__ import annotations

from dataclasses import replace

from diagnostics.audit.live.sampling_distribution import Observed, Sampling, trimmed_mean
from diagnostics.audit.results import Result, note
from diagnostics.audit.training_curves import Curves

# Share of the tokens of a sample that a mistake must reproduce; steps of rounded log-probs.
_MOST_TOKENS, _STEPS = 0.8, (1.0, 0.5, 0.25, 0.2, 0.125, 0.1, 0.0625, 0.05, 0.01, 0.001)


def explain_logprobs(
    result: Result, observed: Observed, expected: Sampling, others: dict[str, Observed]
) -> Result:
    """Return the fault with the mistake that reproduces the log-probs, or with a list of what was excluded.

    Args:
        result: The fault: log-probs that no sampling parameters explain.
        observed: The sampled tokens, with the reported log-probs and reference logits.
        expected: The parameters with which the trainer computes.
        others: The same tokens with the logits of other weights, by name.
    """
    message, symptom = _find_mistake(observed, expected, result.alarm or 0.0, others)
    text = "excluded: a shift by one token, another sample, rounding, one bias on several ids, log-probs of {names}"
    excluded = () if message else (note("excluded", text, names=", ".join(others)),)
    evidence = (*excluded, *Curves(()).causes(symptom))
    return replace(result, message=message or result.message, evidence=evidence)


def _find_mistake(
    observed: Observed, expected: Sampling, limit: float, others: dict[str, Observed]
) -> tuple[str, str]:
    """Return the message and the symptom in `curve_causes.toml` of the mistake that reproduces the log-probs."""
    reported, computed = observed.reported, observed.logprobs(expected)
    masks = [observed.samples == index for index in observed.samples.unique()]
    rows = [(reported[mask], computed[mask]) for mask in masks]
    wrong = [index for index, (a, b) in enumerate(rows) if trimmed_mean((a - b).abs()) > limit]
    affected = f"the log-probs of {len(wrong)} of {len(rows)} samples"

    def rows_match(index: int, other: int, by: int = 0) -> bool:
        a, b = rows[index][0][max(0, by) :], rows[other][1][max(0, -by) :]
        size = min(len(a), len(b))
        return float(((a[:size] - b[:size]).abs() <= 4 * limit).double().mean()) >= _MOST_TOKENS

    for by, place in ((1, "before"), (-1, "after")):
        if wrong and all(rows_match(index, index, by) for index in wrong):
            return f"{affected} are shifted: each token has that of the token {place}", "mispaired"
    if wrong and all(any(rows_match(a, b) for b in range(len(rows)) if b != a) for a in wrong):
        return f"{affected} are those of another sample", "mispaired"
    for step in _STEPS:
        is_multiple = bool(((reported / step - (reported / step).round()).abs() < 1e-4).all())
        if is_multiple and float((reported - computed).abs().max()) <= step / 2 + 4 * limit:
            return f"the log-probs are rounded to multiples of {step:g}", "lost_digits"
    if bias := _find_biases(observed, expected, limit):
        return f"the engine adds {bias[0]:+.2f} to the logits of these ids: {bias[1]}", "bias"
    for name, other in others.items():
        if other.residual(expected) <= limit:
            return f"the log-probs are those of {name}; other weights sampled the tokens", "other_weights"
    return "", "unexplained"


def _find_biases(observed: Observed, sampling: Sampling, limit: float) -> tuple[float, str] | None:
    """Return the shift of logits and the shifted ids; None if one number for some ids does not explain all."""
    import torch

    difference = observed.reported - observed.logprobs(sampling)
    shares = observed.distribution(sampling).exp()
    candidates = [observed.ids[sign * difference > 4 * limit].unique() for sign in (1, -1)]
    for ids in sorted(candidates, key=len):  # a bias on some ids is one of the other sign on all others
        is_shifted, mass = torch.isin(observed.ids, ids), (shares * torch.isin(observed.kept_ids, ids)).sum(1)
        if len(ids) and not bool(is_shifted.all()):
            growth = (((-difference).exp() - 1) / mass)[~is_shifted].median().clamp(min=-0.99999)
            value = (growth + 1).log()
            predicted = is_shifted * value - (1 + mass * growth).log()
            if trimmed_mean((difference - predicted).abs()) <= max(limit, 0.02):
                return float(value), ", ".join(map(str, ids.tolist()))
    return None
