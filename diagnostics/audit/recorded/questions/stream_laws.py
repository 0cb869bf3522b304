"""P8 and what P5 can tell without logits: the engine's log-probs against the trainer's, token by token.

Both must be recorded. Without the logits a law is told by its trace: a shift by correlation, a cut distribution by one
side, a temperature by the slope, a penalty by tokens that came before, old weights by their growth over steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING

from diagnostics.audit.model import (
    CLEAN,
    FAULT,
    NOT_ASKED,
    NOT_DECIDED,
    Estimate,
    Fact,
    ProbeAnswer,
    RunnerUp,
)
from diagnostics.audit.recorded.questions import figures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from diagnostics.audit.recorded.rows import Recording, Remains, Row

PROBE = "P5/P8"
_ENOUGH, _MOST = 64, 60_000
# Mean difference of right weights: float32 1e-6, bfloat16 0.006 (measured with vLLM 0.32.0).
_EXACT, _FLOOR = 2e-4, 0.006
# Of a law that leaves a trace, and of a difference without any, whose arithmetic nobody knows: a bfloat16 engine of
# another kernel than the trainer's may well come to half of it.
_TRACE, _ALARM = 0.024, 0.05
# What a law may be behind.
_OF_LAWS = {
    "streams", "streams/temperature", "streams/nucleus", "streams/repetition", "streams/unlike"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """One sampled token, twice.

    Attributes:
        off: The engine's log-prob less the trainer's.
        share: How far into its completion it stands, 0 to 1.
        again: Whether the same id stood before it.
    """

    engine: float
    trainer: float
    step: int
    share: float
    again: bool

    @property
    def off(self) -> float:
        """The engine's less the trainer's."""
        return self.engine - self.trainer


def ask(
    remains: Remains, fitted: Callable[[Recording], list[ProbeAnswer]] | None = None
) -> Iterator[ProbeAnswer]:
    """One answer a recording that has both streams, or one of each value that logits tell.

    Args:
        remains: What was read.
        fitted: The faults of a recording by the weights that its samples are of; None: there are none.
    """
    asked = False
    for recording in remains.recordings:
        rows = [row for row in recording.rows if row.tokens and row.tokens.engine and row.tokens.trainer]
        pairs = _pairs(rows)
        if len(pairs) >= _ENOUGH:
            asked = True
            told = _judged(recording, rows, pairs)
            of_law = told.outcome != CLEAN and told.family in _OF_LAWS
            yield from (fitted(recording) if fitted and of_law else []) or [told]
    if not asked:
        yield ProbeAnswer("streams", NOT_ASKED, PROBE, wanted=(Fact("want_both_streams"),))


def _pairs(rows: list[Row]) -> list[Pair]:
    found: list[Pair] = []
    for row in rows:
        held = row.tokens
        if held is None or len(found) >= _MOST:
            break
        seen = set(held.ids[: max(0, held.prompt)])
        first = max(0, held.prompt)
        newest = max(held.versions[first:], default=0) if held.versions else 0
        for place in range(first, min(len(held.engine), len(held.trainer), len(held.ids))):
            engine, trainer = held.engine[place], held.trainer[place]
            fresh = not held.versions or held.versions[place] == newest
            if (
                engine is not None
                and trainer is not None
                and fresh
                and abs(engine) < 1e3
                and abs(trainer) < 1e3
            ):
                share = (place - first) / max(1, len(held.ids) - first)
                found.append(Pair(engine, trainer, row.step, share, held.ids[place] in seen))
            seen.add(held.ids[place])
    return found


def _judged(recording: Recording, rows: list[Row], pairs: list[Pair]) -> ProbeAnswer:
    off = [pair.off for pair in pairs]
    size = figures.mean([abs(each) for each in off])
    values = {"size": size, "median": figures.median([abs(each) for each in off]), "count": len(pairs)}
    facts = (Fact("streams", values, recording.kind),)
    if size <= _EXACT:
        return _answer("streams", CLEAN, pairs, size, facts)
    for law in (_shifted, _temperature, _nucleus, _repetition, _drifting, _somewhere):
        if found := law(rows, pairs, size):
            family, code, named, estimate, left = found
            return ProbeAnswer(
                f"streams/{family}",
                FAULT,
                PROBE,
                code,
                values | named,
                estimate,
                left,
                _FLOOR,
                _ALARM,
                RunnerUp("unchanged", size),
                len(pairs),
                # What one law makes can't be taken out of two streams: that takes the logits.
                facts=(*facts, Fact("one_law")),
            )
    if size <= _FLOOR:
        return _answer("streams", CLEAN, pairs, size, facts)
    if size < _ALARM:
        wanted = (Fact("want_dtype", {"floor": _FLOOR, "alarm": _ALARM}),)
        return _answer("streams", NOT_DECIDED, pairs, size, facts, wanted)
    return ProbeAnswer(
        "streams/unlike",
        FAULT,
        PROBE,
        "NUM043",
        values,
        (),
        size,
        _FLOOR,
        _ALARM,
        count=len(pairs),
        facts=facts,
    )


def _answer(
    family: str,
    outcome: str,
    pairs: list[Pair],
    size: float,
    facts: tuple[Fact, ...],
    wanted: tuple[Fact, ...] = (),
) -> ProbeAnswer:
    return ProbeAnswer(
        family,
        outcome,
        PROBE,
        residual=size,
        floor=_FLOOR,
        alarm=_ALARM,
        count=len(pairs),
        facts=facts,
        wanted=wanted,
    )


Law = tuple[str, str, dict[str, float], tuple[Estimate, ...], float]


def _shifted(rows: list[Row], pairs: list[Pair], _size: float) -> Law | None:
    """The trainer's numbers are found one or two places beside the engine's."""
    straight = figures.correlation([pair.engine for pair in pairs], [pair.trainer for pair in pairs])
    if straight > 0.8:
        return None
    for shift in (-2, -1, 1, 2):
        one: list[float] = []
        other: list[float] = []
        for row in rows:
            held = row.tokens
            if held is None or len(one) > _MOST:
                break
            for place in range(max(0, held.prompt), len(held.engine)):
                beside = place + shift
                engine = held.engine[place]
                trainer = held.trainer[beside] if 0 <= beside < len(held.trainer) else None
                if engine is not None and trainer is not None:
                    one.append(engine)
                    other.append(trainer)
        if len(one) >= _ENOUGH and (found := figures.correlation(one, other)) > max(0.9, straight + 0.3):
            left = figures.mean([abs(a - b) for a, b in zip(one, other, strict=True)])
            return "shifted", "NUM044", {"shift": shift, "found": found}, (Estimate("shift", shift),), left
    return None


def _temperature(_rows: list[Row], pairs: list[Pair], size: float) -> Law | None:
    """The trainer's log-probs are the engine's by a factor: one of them left the temperature out."""
    if size < _TRACE:
        return None
    found, _, left = figures.slope([pair.engine for pair in pairs], [pair.trainer for pair in pairs])
    back, _, _ = figures.slope([pair.trainer for pair in pairs], [pair.engine for pair in pairs])
    middle = (found / back) ** 0.5 if found > 0 and back > 0 else 1.0
    before = figures.mean([pair.off**2 for pair in pairs])
    if abs(middle - 1) < 0.12 or found * back < 0.8 or left * 2 > before:
        return None
    # Without the logits it is no more than near: the more certain a model is, the nearer to 1 it looks.
    estimate = Estimate("temperature_ratio", round(1 / middle, 2), expected=1.0)
    return "temperature", "NUM001", {"slope": middle}, (estimate,), left**0.5


def _nucleus(_rows: list[Row], pairs: list[Pair], size: float) -> Law | None:
    """The engine's are above the trainer's, never below by more than rounding: it samples from what a cut leaves."""
    below = -min(pair.off for pair in pairs)
    rounding = max(1e-3, sorted(-pair.off for pair in pairs)[-max(1, len(pairs) // 200)])
    above = [pair.off for pair in pairs if pair.off > 3 * rounding]
    if size < 3 * _EXACT or len(above) < 0.2 * len(pairs) or rounding > 0.2 * figures.mean(above):
        return None
    most = max(above)
    values = {"above": len(above) / len(pairs), "below": below, "most": most}
    return "nucleus", "NUM002", values, (Estimate("mass_kept", exp(-most), None, None, 1.0),), rounding


def _repetition(_rows: list[Row], pairs: list[Pair], size: float) -> Law | None:
    """Tokens that stood before are off the other way than new ones."""
    again = [pair.off for pair in pairs if pair.again]
    new = [pair.off for pair in pairs if not pair.again]
    if min(len(again), len(new)) < 32 or size < _FLOOR:
        return None
    apart = figures.mean(new) - figures.mean(again)
    error = (figures.spread(again) ** 2 / len(again) + figures.spread(new) ** 2 / len(new)) ** 0.5
    if apart < 6 * error or apart < 0.5 * size:
        return None
    values = {"again": figures.mean(again), "new": figures.mean(new)}
    return "repetition", "NUM003", values, (), size


def _drifting(_rows: list[Row], pairs: list[Pair], size: float) -> Law | None:
    """Nothing in the first step, and more with every step: the engine keeps older weights."""
    steps: dict[int, list[float]] = {}
    for pair in pairs:
        steps.setdefault(pair.step, []).append(abs(pair.off))
    told = [figures.mean(steps[step]) for step in sorted(steps) if len(steps[step]) >= 16]
    if len(told) < 3 or size < _FLOOR:
        return None
    first, last = told[0], figures.mean(told[-max(1, len(told) // 4) :])
    if first > min(_FLOOR, size / 4) or last < 4 * max(first, _EXACT):
        return None
    return "stale", "SYN024", {"first": first, "last": last, "steps": len(told)}, (), size


def _somewhere(_rows: list[Row], pairs: list[Pair], size: float) -> Law | None:
    """Most tokens agree, and some are far off; or those behind a place are."""
    sizes = sorted(abs(pair.off) for pair in pairs)
    middle = sizes[len(sizes) // 2]
    far = [pair for pair in pairs if abs(pair.off) > max(0.1, 20 * middle)]
    if middle > _FLOOR or size < _FLOOR or len(far) < max(8, len(pairs) // 500):
        return None
    late = [pair for pair in far if pair.share > 0.5]
    begin = [abs(pair.off) for pair in pairs if pair.share <= 0.25]
    values = {"share": len(far) / len(pairs), "middle": middle}
    if len(late) > 0.95 * len(far) and begin and max(begin) < 0.1:
        return "position", "NUM043", values, (), size
    return "some", "NUM043", values, (), size
