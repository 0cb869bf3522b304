"""Check recorded tokens: the loss mask, and the engine's log-probs against the trainer's.

`check_masks` needs 8 masks, `check_streams` 64 tokens of the newest policy version of their sample, with log-probs of
engine and trainer; otherwise the check is skipped. One cause of a mismatch shows in the numbers: if the engine samples
a truncated distribution (top-p, …), its log-probs are not below the trainer's, except for rounding. Other causes need
an audit of the live server.
"""

from dataclasses import replace
from typing import Any

from diagnostics.audit.recorded import stats
from diagnostics.audit.recorded.run_data import Recording
from diagnostics.audit.results import Result, clean, fault, note, undecided

_MIN_TOKENS, _MAX_TOKENS = 64, 60_000
# Mean difference of right weights: float32 1e-6, bfloat16 0.006 (measured with vLLM 0.32.0).
_EXACT, _FLOOR = 2e-4, 0.006
# Alarm for a mean difference: another bfloat16 kernel may reach half of that.
_ALARM = 0.05


def check_masks(recording: Recording) -> Result | None:
    """Check that the loss mask selects some tokens; None for fewer than 8 masks."""
    masks = [row.tokens.in_loss for row in recording.rows if row.tokens and row.tokens.in_loss]
    trained = sum(map(sum, masks))
    if len(masks) < 8:
        return None
    return clean("masks", count=trained) if trained else fault("masks/nothing", {"count": len(masks)})


def _differences(recording: Recording) -> list[float]:
    """Return the engine's log-prob minus the trainer's for the tokens of the newest policy version of each sample.

    Tokens with a log-prob of -1000 or less are left out, and samples after the first 60,000 tokens.
    """
    differences: list[float] = []
    for tokens in filter(None, (row.tokens for row in recording.rows)):
        if len(differences) >= _MAX_TOKENS:
            break
        newest = max(tokens.policy_versions, default=0)
        for index in range(min(len(tokens.engine_logprobs), len(tokens.trainer_logprobs))):
            engine, trainer = tokens.engine_logprobs[index], tokens.trainer_logprobs[index]
            is_current = not tokens.policy_versions or tokens.policy_versions[index] == newest
            if is_current and engine is not None and trainer is not None and max(-engine, -trainer) < 1e3:
                differences.append(engine - trainer)
    return differences


def check_streams(recording: Recording) -> Result | None:
    """Report a truncated distribution if the log-probs show it; otherwise compare their mean difference with rounding.

    Between the largest rounding and the alarm the result is undecided. None for fewer than 64 tokens.
    """
    if len(differences := _differences(recording)) < _MIN_TOKENS:
        return None
    mean_difference, count = stats.mean(list(map(abs, differences))), len(differences)
    fields: dict[str, Any] = {"residual": mean_difference, "floor": _FLOOR, "alarm": _ALARM, "count": count}
    if cause := _truncation(differences, mean_difference):
        return replace(cause, **fields)
    if mean_difference <= _FLOOR:
        return clean("streams", **fields)
    if mean_difference < _ALARM:
        return undecided("streams", note("want_dtype", floor=_FLOOR, alarm=_ALARM), **fields)
    return fault("streams/unlike", {"size": mean_difference, "count": count}, **fields)


def _truncation(differences: list[float], mean_difference: float) -> Result | None:
    """Return a fault if many engine log-probs are above the trainer's and, except for rounding, none is below."""
    count = len(differences)
    rounding = max(1e-3, -sorted(differences)[max(1, count // 200) - 1])
    above = [difference for difference in differences if difference > 3 * rounding]
    if mean_difference < 3 * _EXACT or len(above) < 0.2 * count or rounding > 0.2 * stats.mean(above):
        return None
    return fault("streams/nucleus", {"above": len(above) / count})
