"""Check recorded tokens: the loss mask, and the engine's log-probs against the trainer's.

`check_masks` needs 8 masks, `check_streams` 64 tokens with log-probs of both; otherwise the check is skipped. One cause
of a mismatch shows in the numbers: if the engine samples a truncated distribution (top-p, …), its log-probs are not
below the trainer's, except for rounding. Other causes need an audit of the live server.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp
from typing import Any

from diagnostics.audit.recorded import stats
from diagnostics.audit.recorded.run_data import Recording, RunArtifacts, Sample, Tokens
from diagnostics.audit.results import Estimate, Result, clean, fault, note, skipped, undecided

_MIN_TOKENS, _MAX_TOKENS = 64, 60_000
# Mean difference of right weights: float32 1e-6, bfloat16 0.006 (measured with vLLM 0.32.0).
_EXACT, _FLOOR = 2e-4, 0.006
# Alarm for a mean difference: another bfloat16 kernel may reach half of that.
_ALARM = 0.05


def check_masks(run: RunArtifacts) -> list[Result]:
    """Check that the loss mask of each recording with at least 8 masks selects some tokens."""
    results = []
    for recording in run.recordings:
        samples = [row.tokens for row in recording.rows if row.tokens and row.tokens.in_loss]
        results += [_check_mask(recording, samples)] if len(samples) >= 8 else []
    need = "a dump with ids and masks: output.record_every=1 in grpo_core"
    return results or [skipped("masks", "want_tokens", need)]


def _check_mask(recording: Recording, samples: list[Tokens]) -> Result:
    """Report a fault if no sample has a token in the loss."""
    trained = sum(sum(tokens.in_loss) for tokens in samples)
    rows = sum(any(tokens.in_loss) for tokens in samples)
    values = {"trained": trained, "rows": rows, "count": len(samples)}
    text = "in the loss: {trained} tokens, in {rows} of {count} samples"
    fact = note("masked", text, recording.kind, **values)
    if rows == 0:
        message = "no token of {count} samples is in the loss"
        return fault("masks/nothing", message, values, evidence=(fact,))
    return clean("masks", values=values, count=trained, evidence=(fact,))


def check_streams(run: RunArtifacts) -> list[Result]:
    """Compare the engine's log-probs with the trainer's in each recording that has at least 64 tokens with both."""
    results: list[Result] = []
    for recording in run.recordings:
        rows = [row for row in recording.rows if row.tokens and row.tokens.trainer_logprobs]
        if len(differences := _differences(rows)) >= _MIN_TOKENS:
            results.append(_check_differences(recording, differences))
    need = "log-probs of engine and trainer in the dump: output.record_every=1 in grpo_core"
    return results or [skipped("streams", "want_both_streams", need)]


def _differences(rows: list[Sample]) -> list[float]:
    """Return the engine's log-prob minus the trainer's for the tokens of the newest policy version of each sample."""
    differences: list[float] = []
    for row in rows:
        tokens = row.tokens
        if tokens is None or len(differences) >= _MAX_TOKENS:
            break
        newest = max(tokens.policy_versions, default=0)
        for index in range(min(len(tokens.engine_logprobs), len(tokens.trainer_logprobs))):
            engine, trainer = tokens.engine_logprobs[index], tokens.trainer_logprobs[index]
            is_current = not tokens.policy_versions or tokens.policy_versions[index] == newest
            if is_current and engine is not None and trainer is not None and max(-engine, -trainer) < 1e3:
                differences.append(engine - trainer)
    return differences


def _check_differences(recording: Recording, differences: list[float]) -> Result:
    """Report a truncated distribution if the differences show it; otherwise compare their mean size with rounding.

    Between the largest rounding and the alarm the result is undecided.
    """
    sizes = list(map(abs, differences))
    mean_difference, count = stats.mean(sizes), len(sizes)
    values = {"size": mean_difference, "median": stats.median(sizes), "count": count}
    text = "engine less trainer: {size:.2g} on average, {median:.2g} median, over {count} tokens"
    fact = note("streams", text, recording.kind, **values)
    fields: dict[str, Any] = {"floor": _FLOOR, "alarm": _ALARM, "count": count, "evidence": (fact,)}
    fields |= {"residual": mean_difference}
    if mean_difference <= _EXACT:
        return clean("streams", **fields)
    if cause := _truncation(differences, mean_difference):
        return replace(cause, **fields)
    if mean_difference <= _FLOOR:
        return clean("streams", **fields)
    if mean_difference < _ALARM:
        text = "the engine's type: rounding alone makes {floor:g} in bfloat16, a fault {alarm:g}"
        return undecided("streams", note("want_dtype", text, floor=_FLOOR, alarm=_ALARM), **fields)
    message = "engine and trainer compute different log-probs: {size:.2g} on average over {count} tokens"
    return fault("streams/unlike", message, values, **fields)


def _truncation(differences: list[float], mean_difference: float) -> Result | None:
    """Return a fault if many engine log-probs are above the trainer's and, except for rounding, none is below."""
    count = len(differences)
    rounding = max(1e-3, -sorted(differences)[max(1, count // 200) - 1])
    above = [difference for difference in differences if difference > 3 * rounding]
    if mean_difference < 3 * _EXACT or len(above) < 0.2 * count or rounding > 0.2 * stats.mean(above):
        return None
    message = "the engine samples with top-p, top-k or min-p: {above:.0%} of its log-probs are too high, none too low"
    estimate = Estimate("mass_kept", exp(-max(above)), expected=1.0)
    return fault("streams/nucleus", message, {"above": len(above) / count}, estimates=(estimate,))
