"""Check recorded tokens: the loss mask, and the engine's log-probs against the trainer's.

One cause of a mismatch shows in the numbers: with truncated sampling (top-p, …) the engine is never below the trainer.
Other causes need an audit of the live server.
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
    """The engine's and the trainer's log-prob of one sampled token."""

    engine: float
    trainer: float

    @property
    def difference(self) -> float:
        """The engine's log-prob minus the trainer's."""
        return self.engine - self.trainer


def check_streams(run: RunArtifacts) -> list[Result]:
    """Compare the engine's log-probs with the trainer's in each recording that has at least 64 tokens with both."""
    results: list[Result] = []
    for recording in run.recordings:
        rows = [row for row in recording.rows if row.tokens and row.tokens.engine and row.tokens.trainer]
        if len(pairs := _pairs(rows)) >= _MIN_PAIRS:
            results.append(_check_pairs(recording, pairs))
    need = "log-probs of engine and trainer in the dump: output.record_every=1 in grpo_core"
    return results or [skipped("streams", "want_both_streams", need)]


def _pairs(rows: list[Sample]) -> list[Pair]:
    """Pair each engine log-prob with the trainer's, for tokens of the newest policy version."""
    pairs: list[Pair] = []
    for row in rows:
        tokens = row.tokens
        if tokens is None or len(pairs) >= _MAX_PAIRS:
            break
        newest = max(tokens.versions[max(0, tokens.prompt_length) :], default=0)
        for place in range(max(0, tokens.prompt_length), min(len(tokens.engine), len(tokens.trainer))):
            engine, trainer = tokens.engine[place], tokens.trainer[place]
            is_current = not tokens.versions or tokens.versions[place] == newest
            if is_current and engine is not None and trainer is not None and max(-engine, -trainer) < 1e3:
                pairs.append(Pair(engine, trainer))
    return pairs


def _check_pairs(recording: Recording, pairs: list[Pair]) -> Result:
    """Report a truncated distribution if the differences show it; otherwise judge their mean size."""
    differences = [abs(pair.difference) for pair in pairs]
    mean_difference = stats.mean(differences)
    values = {"size": mean_difference, "median": stats.median(differences), "count": len(pairs)}
    text = "engine less trainer: {size:.2g} on average, {median:.2g} median, over {count} tokens"
    fact = note("streams", text, recording.kind, **values)
    fields: dict[str, Any] = {"floor": _FLOOR, "alarm": _ALARM, "count": len(pairs), "evidence": (fact,)}
    fields |= {"residual": mean_difference}
    if mean_difference <= _EXACT:
        return clean("streams", **fields)
    if cause := _truncation(pairs, mean_difference):
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
