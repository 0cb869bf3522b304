"""Check recorded tokens: the loss mask, and the engine's log-probs against the trainer's.

Three causes of a log-prob mismatch have recognisable patterns. If the streams are shifted by one or two tokens, they
correlate after shifting back. With truncated sampling (top-p, …) the engine is never below the trainer. With stale
weights the difference grows from step to step. Other causes need an audit of the live server.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp
from typing import Any, NamedTuple

from diagnostics.audit.recorded import stats
from diagnostics.audit.recorded.run_data import Recording, RunArtifacts, Sample, Tokens
from diagnostics.audit.results import Estimate, Note, Result, RunnerUp, clean, fault, note, skipped, undecided

_MIN_PAIRS, _MAX_PAIRS = 64, 60_000
# Mean difference of right weights: float32 1e-6, bfloat16 0.006 (measured with vLLM 0.32.0).
_EXACT, _FLOOR = 2e-4, 0.006
# Alarm for a mean difference: another bfloat16 kernel may reach half of that.
_ALARM = 0.05


def check_masks(run: RunArtifacts) -> list[Result]:
    """Check that the loss mask of each recording with at least 8 masks selects some tokens."""
    masked = (
        (recording, [row.tokens for row in recording.rows if row.tokens and row.tokens.trained])
        for recording in run.recordings
    )
    results = [_check_mask(recording, samples) for recording, samples in masked if len(samples) >= 8]
    need = "a dump with ids and masks: output.record_every=1 in grpo_core"
    return results or [skipped("masks", "want_tokens", need)]


def _check_mask(recording: Recording, samples: list[Tokens]) -> Result:
    """Report a fault if no sample has a token in the loss."""
    trained = sum(sum(tokens.trained) for tokens in samples)
    rows = sum(any(tokens.trained) for tokens in samples)
    values = {"trained": trained, "rows": rows, "count": len(samples)}
    text = "in the loss: {trained} tokens, in {rows} of {count} samples"
    fact = note("masked", text, recording.kind, **values)
    if rows == 0:
        message = "no token of {count} samples is in the loss"
        return fault("masks/nothing", message, "NUM042", values, evidence=(fact,))
    return clean("masks", values=values, count=trained, evidence=(fact,))


class Pair(NamedTuple):
    """The engine's and the trainer's log-prob of one sampled token, their difference, and the step."""

    engine: float
    trainer: float
    difference: float
    step: int


def check_streams(run: RunArtifacts) -> list[Result]:
    """Compare the engine's log-probs with the trainer's in each recording that has at least 64 tokens with both."""
    results: list[Result] = []
    for recording in run.recordings:
        rows = [row for row in recording.rows if row.tokens and row.tokens.engine and row.tokens.trainer]
        if len(pairs := _pairs(rows)) >= _MIN_PAIRS:
            results.append(_check_pairs(recording, rows, pairs))
    need = "log-probs of engine and trainer in the dump: output.record_every=1 in grpo_core"
    return results or [skipped("streams", "want_both_streams", need)]


def _pairs(rows: list[Sample], shift: int = 0) -> list[Pair]:
    """Pair each engine log-prob with the trainer's `shift` tokens later, for tokens of the newest policy version."""
    pairs: list[Pair] = []
    for row in rows:
        tokens = row.tokens
        if tokens is None or len(pairs) >= _MAX_PAIRS:
            break
        newest = max(tokens.versions[max(0, tokens.prompt_length) :], default=0)
        first, last = (
            max(0, tokens.prompt_length, -shift),
            min(len(tokens.engine), len(tokens.trainer) - shift),
        )
        for place in range(first, last):
            engine, trainer = tokens.engine[place], tokens.trainer[place + shift]
            is_current = not tokens.versions or tokens.versions[place] == newest
            if is_current and engine is not None and trainer is not None and max(-engine, -trainer) < 1e3:
                pairs.append(Pair(engine, trainer, engine - trainer, row.step))
    return pairs


def _check_pairs(recording: Recording, rows: list[Sample], pairs: list[Pair]) -> Result:
    """Return the fault of the first recognised cause; otherwise judge the mean absolute difference."""
    differences = [abs(pair.difference) for pair in pairs]
    mean_difference = stats.mean(differences)
    values = {"size": mean_difference, "median": stats.median(differences), "count": len(pairs)}
    text = "engine less trainer: {size:.2g} on average, {median:.2g} median, over {count} tokens"
    fact = note("streams", text, recording.kind, **values)
    fields: dict[str, Any] = {"floor": _FLOOR, "alarm": _ALARM, "count": len(pairs), "evidence": (fact,)}
    fields |= {"residual": mean_difference}
    if mean_difference <= _EXACT:
        return clean("streams", **fields)
    if cause := _shift(rows, pairs) or _truncation(pairs, mean_difference) or _drift(pairs, mean_difference):
        text = "only one difference can be recognised in two streams: audit again after this fix"
        fields |= {
            "evidence": (fact, Note("one_law", text)),
            "runner_up": RunnerUp("unchanged", mean_difference),
        }
        return replace(cause, **fields)
    if mean_difference <= _FLOOR:
        return clean("streams", **fields)
    if mean_difference < _ALARM:
        text = (
            "more tokens, or the engine's type: rounding alone makes {floor:g} in bfloat16, a fault {alarm:g}"
        )
        return undecided("streams", note("want_dtype", text, floor=_FLOOR, alarm=_ALARM), **fields)
    message = "engine and trainer compute different log-probs: {size:.2g} on average over {count} tokens"
    return fault("streams/unlike", message, "NUM043", values, **fields)


def _shift(rows: list[Sample], pairs: list[Pair]) -> Result | None:
    """Recognise log-probs of the trainer that are shifted by one or two tokens against the engine's."""
    straight = _correlation(pairs)
    for shift in (-2, -1, 1, 2) if straight <= 0.8 else ():
        shifted = _pairs(rows, shift)
        match = _correlation(shifted)
        if len(shifted) >= _MIN_PAIRS and match > max(0.9, straight + 0.3):
            message = "the engine's log-probs stand {shift:+d} tokens away from the trainer's (correlation {match:.3f})"
            values, estimates = {"shift": shift, "match": match}, (Estimate("shift", shift),)
            return fault("streams/shifted", message, "NUM044", values, estimates=estimates)
    return None


def _correlation(pairs: list[Pair]) -> float:
    return stats.correlation([pair.engine for pair in pairs], [pair.trainer for pair in pairs])


def _truncation(pairs: list[Pair], mean_difference: float) -> Result | None:
    """Recognise engine log-probs that are never below the trainer's: the engine samples a truncated distribution."""
    below = sorted(-pair.difference for pair in pairs)
    rounding = max(1e-3, below[-max(1, len(pairs) // 200)])
    above = [pair.difference for pair in pairs if pair.difference > 3 * rounding]
    if mean_difference < 3 * _EXACT or len(above) < 0.2 * len(pairs) or rounding > 0.2 * stats.mean(above):
        return None
    message = ("the engine's log-probs are above the trainer's ({above:.0%} of tokens, none below): it samples from a"
               " truncated distribution (top-p, top-k or min-p)")  # fmt: skip
    values, estimates = (
        {"above": len(above) / len(pairs)},
        (Estimate("mass_kept", exp(-max(above)), expected=1.0),),
    )
    return fault("streams/nucleus", message, "NUM002", values, estimates=estimates)


def _drift(pairs: list[Pair], mean_difference: float) -> Result | None:
    """Recognise a difference that grows with each step: the engine keeps older weights."""
    steps: dict[int, list[float]] = {}
    for pair in pairs:
        steps.setdefault(pair.step, []).append(abs(pair.difference))
    means = [stats.mean(steps[step]) for step in sorted(steps) if len(steps[step]) >= 16]
    if len(means) < 3 or mean_difference < _FLOOR:
        return None
    first, last = means[0], stats.mean(means[-max(1, len(means) // 4) :])
    if first > min(_FLOOR, mean_difference / 4) or last < 4 * max(first, _EXACT):
        return None
    message = ("the engine agrees in the first step ({first:.2g}) and drifts away ({last:.2g} after {steps} steps):"
               " it keeps older weights")  # fmt: skip
    return fault("streams/stale", message, "SYN024", {"first": first, "last": last, "steps": len(means)})
