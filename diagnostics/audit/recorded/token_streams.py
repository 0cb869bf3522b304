"""Check recorded tokens: the loss mask, and the engine's log-probs against the trainer's (P5, P8).

Each cause of a log-prob mismatch has its own pattern. With a shift by one or two tokens, the shifted streams correlate.
With truncated sampling (top-p, …) the engine is never below the trainer. A temperature is a factor. A penalty changes
repeated tokens in the other direction than new ones. With stale weights the difference grows from step to step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Any

from diagnostics.audit.recorded import stats
from diagnostics.audit.recorded.run_data import Recording, RunArtifacts, Sample, Tokens
from diagnostics.audit.results import Estimate, Note, Result, RunnerUp, clean, fault, note, skipped, undecided

_MIN_PAIRS, _MAX_PAIRS = 64, 60_000
# Mean difference of right weights: float32 1e-6, bfloat16 0.006 (measured with vLLM 0.32.0).
_EXACT, _FLOOR = 2e-4, 0.006
# Alarms for a mean difference of a recognised cause, and of none: another bfloat16 kernel may reach half of that.
_MISMATCH_ALARM, _ALARM = 0.024, 0.05


def check_masks(run: RunArtifacts) -> list[Result]:
    """Check which tokens are in the loss against which were sampled."""
    masked = (
        (recording, [row.tokens for row in recording.rows if row.tokens and row.tokens.trained])
        for recording in run.recordings
    )
    results = [_check_mask(recording, samples) for recording, samples in masked if len(samples) >= 8]
    need = "a dump with ids and masks: output.record_every=1 in grpo_core"
    return results or [skipped("masks", "want_tokens", need)]


def _check_mask(recording: Recording, samples: list[Tokens]) -> Result:
    """Report a fault if no sample, or fewer than 10 %, has a token in the loss."""
    trained = sum(sum(tokens.trained) for tokens in samples)
    rows = sum(any(tokens.trained) for tokens in samples)
    values = {"trained": trained, "rows": rows, "count": len(samples)}
    fact = note(
        "masked", "in the loss: {trained} tokens, in {rows} of {count} samples", recording.kind, **values
    )
    if rows == 0:
        return fault(
            "masks/nothing", "no token of {count} samples is in the loss", "NUM042", values, evidence=(fact,)
        )
    if rows < 0.1 * len(samples):
        message = "only {rows} of {count} samples have a token in the loss"
        return fault("masks/most_filtered", message, "NUM042", values, count=trained, evidence=(fact,))
    return clean("masks", values=values, count=trained, evidence=(fact,))


@dataclass(frozen=True, slots=True)
class Pair:
    """The engine's and the trainer's log-prob of one sampled token.

    Attributes:
        repeated: Whether the same id stood before it.
    """

    engine: float
    trainer: float
    step: int
    repeated: bool

    @property
    def difference(self) -> float:
        """Return the engine's log-prob less the trainer's."""
        return self.engine - self.trainer


@dataclass(frozen=True)
class Mismatch:
    """A recognised cause of a log-prob mismatch: its fault, and the residual that it leaves unexplained."""

    family: str
    code: str
    message: str
    values: dict[str, float]
    residual: float
    estimates: tuple[Estimate, ...] = ()


def check_streams(run: RunArtifacts) -> list[Result]:
    """Check each recording that has both log-prob streams."""
    results: list[Result] = []
    for recording in run.recordings:
        rows = [row for row in recording.rows if row.tokens and row.tokens.engine and row.tokens.trainer]
        pairs = _pairs(rows)
        if len(pairs) >= _MIN_PAIRS:
            results.append(_check_pairs(recording, rows, pairs))
    need = "log-probs of engine and trainer in the dump: output.record_every=1 in grpo_core"
    return results or [skipped("streams", "want_both_streams", need)]


def _pairs(rows: list[Sample]) -> list[Pair]:
    """Return the pairs of the newest policy version of each sample."""
    pairs: list[Pair] = []
    for row in rows:
        tokens = row.tokens
        if tokens is None or len(pairs) >= _MAX_PAIRS:
            break
        first = max(0, tokens.prompt)
        earlier_ids = set(tokens.ids[:first])
        newest = max(tokens.versions[first:], default=0)
        for place in range(first, min(len(tokens.engine), len(tokens.trainer), len(tokens.ids))):
            engine, trainer, token = tokens.engine[place], tokens.trainer[place], tokens.ids[place]
            is_current = not tokens.versions or tokens.versions[place] == newest
            if (
                is_current
                and engine is not None
                and trainer is not None
                and max(abs(engine), abs(trainer)) < 1e3
            ):
                pairs.append(Pair(engine, trainer, row.step, token in earlier_ids))
            earlier_ids.add(token)
    return pairs


def _check_pairs(recording: Recording, rows: list[Sample], pairs: list[Pair]) -> Result:
    """Return the fault of the first cause that is recognised, else a result by the mean difference."""
    differences = [abs(pair.difference) for pair in pairs]
    size = stats.mean(differences)
    values = {"size": size, "median": stats.median(differences), "count": len(pairs)}
    text = "engine less trainer: {size:.2g} on average, {median:.2g} median, over {count} tokens"
    fact = note("streams", text, recording.kind, **values)
    fields: dict[str, Any] = {"residual": size, "floor": _FLOOR, "alarm": _ALARM, "count": len(pairs)}
    for recognise in _RECOGNISERS if size > _EXACT else ():
        if mismatch := recognise(rows, pairs, size):
            text = "only one difference can be recognised in two streams: audit again after this fix"
            hint = Note("one_law", text)
            fields |= {
                "residual": mismatch.residual,
                "estimates": mismatch.estimates,
                "evidence": (fact, hint),
            }
            second = RunnerUp("unchanged", size)
            return fault(
                mismatch.family,
                mismatch.message,
                mismatch.code,
                values | mismatch.values,
                runner_up=second,
                **fields,
            )
    fields["evidence"] = (fact,)
    if size <= _FLOOR:
        return clean("streams", **fields)
    if size < _ALARM:
        text = (
            "more tokens, or the engine's type: rounding alone makes {floor:g} in bfloat16, a fault {alarm:g}"
        )
        return undecided("streams", note("want_dtype", text, floor=_FLOOR, alarm=_ALARM), **fields)
    message = "engine and trainer compute different log-probs: {size:.2g} on average over {count} tokens"
    return fault("streams/unlike", message, "NUM043", values, **fields)


def _shift(rows: list[Sample], pairs: list[Pair], _size: float) -> Mismatch | None:
    """Recognise log-probs of the trainer that are shifted by one or two tokens against the engine's."""
    straight = stats.correlation([pair.engine for pair in pairs], [pair.trainer for pair in pairs])
    for shift in (-2, -1, 1, 2) if straight <= 0.8 else ():
        engine, trainer = _shifted(rows, shift)
        match = stats.correlation(engine, trainer)
        if len(engine) >= _MIN_PAIRS and match > max(0.9, straight + 0.3):
            residual = stats.mean([abs(a - b) for a, b in zip(engine, trainer, strict=True)])
            message = "the engine's log-probs stand {shift:+d} tokens away from the trainer's (correlation {found:.3f})"
            values, estimate = {"shift": shift, "found": match}, Estimate("shift", shift)
            return Mismatch("streams/shifted", "NUM044", message, values, residual, (estimate,))
    return None


def _shifted(rows: list[Sample], shift: int) -> tuple[list[float], list[float]]:
    """Pair each log-prob of the engine with the trainer's `shift` tokens later; return two lists."""
    pairs: list[tuple[float, float]] = []
    for tokens in (row.tokens for row in rows if row.tokens):
        if len(pairs) > _MAX_PAIRS:
            break
        first, last = max(0, tokens.prompt, -shift), min(len(tokens.engine), len(tokens.trainer) - shift)
        both = ((tokens.engine[place], tokens.trainer[place + shift]) for place in range(first, last))
        pairs += [(a, b) for a, b in both if a is not None and b is not None]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _temperature(_rows: list[Sample], pairs: list[Pair], size: float) -> Mismatch | None:
    """Recognise log-probs that differ by a factor: one side leaves the temperature out."""
    engine, trainer = [pair.engine for pair in pairs], [pair.trainer for pair in pairs]
    slope, _, residual = stats.fit_line(engine, trainer)
    inverse, _, _ = stats.fit_line(trainer, engine)
    factor = (slope / inverse) ** 0.5 if slope > 0 and inverse > 0 else 1.0
    before = stats.mean([pair.difference**2 for pair in pairs])
    if size < _MISMATCH_ALARM or abs(factor - 1) < 0.12 or slope * inverse < 0.8 or residual * 2 > before:
        return None
    # Approximate without logits: the surer a model is, the nearer to 1 the factor looks.
    estimate = Estimate("temperature_ratio", round(1 / factor, 2), expected=1.0)
    message = "the trainer's log-probs are about {slope:.2f} times the engine's: one side leaves the temperature out"
    return Mismatch("streams/temperature", "NUM001", message, {"slope": factor}, residual**0.5, (estimate,))


def _truncation(_rows: list[Sample], pairs: list[Pair], size: float) -> Mismatch | None:
    """Recognise engine log-probs that are never below the trainer's: the engine truncates the distribution."""
    below = sorted(-pair.difference for pair in pairs)
    rounding = max(1e-3, below[-max(1, len(pairs) // 200)])
    above = [pair.difference for pair in pairs if pair.difference > 3 * rounding]
    if size < 3 * _EXACT or len(above) < 0.2 * len(pairs) or rounding > 0.2 * stats.mean(above):
        return None
    values = {"above": len(above) / len(pairs), "below": below[-1], "most": max(above)}
    message = ("the engine's log-probs are above the trainer's ({above:.0%} of tokens, none below): it samples from a"
               " truncated distribution (top-p, top-k or min-p)")  # fmt: skip
    estimate = Estimate("mass_kept", exp(-max(above)), expected=1.0)
    return Mismatch("streams/nucleus", "NUM002", message, values, rounding, (estimate,))


def _repetition(_rows: list[Sample], pairs: list[Pair], size: float) -> Mismatch | None:
    """Recognise a penalty: repeated tokens differ in the other direction than new ones."""
    repeated = [pair.difference for pair in pairs if pair.repeated]
    new = [pair.difference for pair in pairs if not pair.repeated]
    if min(len(repeated), len(new)) < 32 or size < _FLOOR:
        return None
    gap = stats.mean(new) - stats.mean(repeated)
    error = (stats.deviation(repeated) ** 2 / len(repeated) + stats.deviation(new) ** 2 / len(new)) ** 0.5
    if gap < 6 * error or gap < 0.5 * size:
        return None
    message = ("repeated tokens have a lower log-prob than the trainer's ({again:+.3f}), new ones a higher one"
               " ({new:+.3f}): a repetition penalty")  # fmt: skip
    values = {"again": stats.mean(repeated), "new": stats.mean(new)}
    return Mismatch("streams/repetition", "NUM003", message, values, size)


def _drift(_rows: list[Sample], pairs: list[Pair], size: float) -> Mismatch | None:
    """Recognise a difference that grows from step to step: the engine keeps older weights."""
    steps: dict[int, list[float]] = {}
    for pair in pairs:
        steps.setdefault(pair.step, []).append(abs(pair.difference))
    means = [stats.mean(steps[step]) for step in sorted(steps) if len(steps[step]) >= 16]
    if len(means) < 3 or size < _FLOOR:
        return None
    first, last = means[0], stats.mean(means[-max(1, len(means) // 4) :])
    if first > min(_FLOOR, size / 4) or last < 4 * max(first, _EXACT):
        return None
    message = ("the engine agrees in the first step ({first:.2g}) and drifts away ({last:.2g} after {steps} steps):"
               " it keeps older weights")  # fmt: skip
    return Mismatch(
        "streams/stale", "SYN024", message, {"first": first, "last": last, "steps": len(means)}, size
    )


_RECOGNISERS = (_shift, _temperature, _truncation, _repetition, _drift)
