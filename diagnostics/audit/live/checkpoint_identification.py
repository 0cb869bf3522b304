"""P1, P3, P4: whether the engine holds the checkpoint's weights, and if not, which weights instead.

The engine scores ids that the audit chose, so neither sampling parameters nor templates matter. Other checkpoints
of small models are all computed. A large one takes a quarter of the audit; few ids rule out most, and a checkpoint
further
away than one that is ruled out is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diagnostics.audit.live import precision, weight_versions
from diagnostics.audit.live.precision import Scores
from diagnostics.audit.live.reference import Reference
from diagnostics.audit.live.truncation_error import ROUNDED, TRUNCATED
from diagnostics.audit.live.weight_versions import Slope
from diagnostics.audit.model import CLEAN, FAULT, NOT_DECIDED, Estimate, Note, Result, RunnerUp, note

# Ids that rule a large checkpoint out, and the distance that does. An engine nearer to another checkpoint than to
# this one is off by more than half of their distance.
_FEW, _FAR = 64, 2.5
_SIGMAS = 4.0
Others = Sequence[tuple[Reference, Any]]


@dataclass
class Identification:
    """The result, and what later checks need.

    Attributes:
        weights: The weights that the engine computes with; None if unknown.
        floor: Difference that rounding makes.
        pictures: Differences by position, for an HTML page.
    """

    result: Result
    weights: Reference | None
    dtype: str
    floor: float
    pictures: dict[str, Any] = field(default_factory=dict)

    @property
    def explained(self) -> bool:
        """Return whether some weights leave no more than rounding does."""
        residual, alarm = self.result.residual, self.result.alarm
        return self.weights is not None and residual is not None and alarm is not None and residual <= alarm


def identify_weights(
    reference: Reference,
    against: Sequence[Reference],
    sequences: Sequence[Sequence[int]],
    engine: Any,
    dtype: str = "",
    staleness: int = 0,
) -> Identification:
    """Compare the engine's scores with the checkpoint and with others.

    Args:
        reference: The weights that it should hold.
        against: Weights that it may hold, the likeliest first.
        sequences: The scored ids.
        engine: Its log-prob of each id but the first of each sequence, concatenated.
        dtype: The type it computes in; empty if unknown.
        staleness: How many of the others, the nearest first, the trainer allows.
    """
    scores = precision.compare_in_best_type(reference, sequences, engine, dtype)
    rounded = _identify(scores, against, staleness)
    is_open = rounded.result.outcome == NOT_DECIDED
    if scores.dtype != ROUNDED or (rounded.explained and not is_open):
        return rounded
    # What no weights explain may be kernels that truncate; they must then explain all but the same floor.
    truncating = replace(scores, dtype=TRUNCATED, exact=reference.scores(sequences, TRUNCATED))
    truncated = _identify(truncating, against, staleness)
    both_open = is_open and truncated.result.outcome == NOT_DECIDED
    return truncated if truncated.explained and not both_open else rounded


def _identify(scores: Scores, against: Sequence[Reference], staleness: int) -> Identification:
    """Identify the weights in one type."""
    others, skipped = _compute_others(scores, against)
    result = Result("weights", CLEAN, "P1", residual=scores.residual, floor=scores.floor, alarm=scores.limit,
                    count=len(scores.engine), decisive=True)  # fmt: skip
    weights: Reference | None = scores.reference
    version, other, slopes = _find_version(scores, others)
    floor = scores.floor
    if version is not None:
        result, weights, floor = allow_staleness(version, against, staleness), other, version.floor or floor
    elif scores.residual > scores.limit:
        result, weights = _find_other_weights(result, scores, others)
    elif not scores.at_floor:
        need = note("more_tokens", "--tokens {tokens}", tokens=len(scores.engine) * 5)
        result = replace(result, outcome=NOT_DECIDED, needed=(need,))
    dtype = note("type", "the engine computes in {dtype}; the checkpoint is stored in {kept}", dtype=scores.dtype,
                 kept=scores.reference.dtype)  # fmt: skip
    result = replace(result, evidence=(*result.evidence, dtype, *skipped, *slopes))
    return Identification(result, weights, scores.dtype, floor, _pictures(scores, others))


def _pictures(scores: Scores, others: Others) -> dict[str, Any]:
    distances = {other.name: scores.residual_of(exact) for other, exact in others}
    return {
        "difference": [round(value, 7) for value in scores.difference.tolist()[:2000]],
        "position": [round(value, 7) for value in scores.mean_by_position().tolist()],
        "versions": {scores.reference.name: scores.residual, **distances},
        "floor": scores.floor,
    }


def _compute_others(
    scores: Scores, against: Sequence[Reference]
) -> tuple[list[tuple[Reference, Any]], list[Note]]:
    """Compute other checkpoints, one in memory at a time; return their log-probs, and why some were left out."""
    near, reference = max(scores.residual, scores.floor), scores.reference
    computed: list[tuple[Reference, Any]] = []
    notes: list[Note] = []
    ruled_out: list[Reference] = []
    for other in against:
        if nearer := next((each for each in ruled_out if _is_behind(other, each, reference)), None):
            text = (
                "{name} was not computed: {nearer}, between it and the checkpoint, is ruled out; --against"
                " {name} forces it"
            )
            notes.append(note("not_compared", text, name=other.name, nearer=nearer.name))
        elif not reference.fits(other):
            notes.append(note("does_not_fit", "{name} has other tensors, and was left out", name=other.name))
        elif reference.large and scores.at_floor and (distance := _distance(scores, other)) > _FAR * near:
            ruled_out.append(other)
            text = "{name} was computed for {count} ids only: {apart:.2g} away, {times:.0f} times what rounding makes"
            notes.append(
                note("away", text, name=other.name, count=_FEW, apart=distance, times=distance / scores.floor)
            )
        else:
            computed.append((other, other.scores(scores.sequences, scores.dtype)))
        other.release()
    return computed, notes


def _distance(scores: Scores, other: Reference) -> float:
    exact = other.scores([scores.sequences[0][: _FEW + 1]], scores.dtype)
    return float((exact - scores.exact[: len(exact)]).abs().mean())


def _is_behind(other: Reference, nearer: Reference, reference: Reference) -> bool:
    """Return whether training passed one checkpoint between another and the reference."""
    if other.step is None or nearer.step is None or reference.step is None:
        return False
    return other.step < nearer.step < reference.step or reference.step < nearer.step < other.step


def _find_version(scores: Scores, others: Others) -> tuple[Result | None, Reference | None, list[Note]]:
    """Return which of the other checkpoints the engine holds, if their differences tell."""
    candidates: list[tuple[float, Slope, Reference]] = []
    notes = []
    for other, exact in others:
        slope = weight_versions.project(scores.difference, exact - scores.exact)
        values = {"name": other.name, "slope": slope.value, "error": slope.error, "apart": slope.distance}
        if slope.distance == 0 or slope.error > 0.2:
            notes.append(
                note(
                    "too_near", "{name} cannot be told from it by so few tokens ({apart:.2g} apart)", **values
                )
            )
            continue
        candidates.append((scores.residual_of(exact), slope, other))
        text = "towards {name}: {slope:+.3f} of the way, standard error {error:.3f} ({apart:.2g} apart)"
        notes.append(note("slope", text, **values))
    if not candidates:
        return None, None, notes
    residual, slope, other = min(candidates, key=lambda each: each[0])
    is_nearer = residual < scores.residual and slope.value > 0.5
    is_nearer = is_nearer and abs(slope.value - 1) < max(0.1, _SIGMAS * slope.error)
    there = (
        replace(scores, floor=precision.floor_with(other, scores))
        if is_nearer and residual > scores.limit
        else scores
    )
    if not is_nearer or residual > there.limit or slope.value <= _SIGMAS * slope.error:
        return None, None, notes
    rest = [each[0] for each in candidates if each[2] is not other]
    interval = (slope.value - 2 * slope.error, slope.value + 2 * slope.error)
    result = Result(
        "weights/version", FAULT, "P3", f"the engine holds the weights of {other.name}, not the checkpoint's",
        "SYN003" if other.name == "base" else "", {"name": other.name},
        (Estimate("version", other.name, expected=scores.reference.name), Estimate("slope", slope.value, *interval,
        0.0)),
        residual, there.floor, there.limit, RunnerUp("the next nearest", min([*rest, scores.residual])),
        len(scores.engine),
        decisive=True,
    )  # fmt: skip
    return result, other, notes


def allow_staleness(result: Result, others: Sequence[Reference], staleness: int) -> Result:
    """Turn a version that the trainer's staleness allows into a clean result."""
    if result.values.get("name") not in [other.name for other in others[:staleness]]:
        return result
    seen = note("stale_allowed", "the engine holds {name}, which max_staleness allows", **result.values)
    return replace(result, family="weights", outcome=CLEAN, message="", code="", evidence=(seen,))


def _find_other_weights(result: Result, scores: Scores, others: Others) -> tuple[Result, Reference | None]:
    """Explain weights that are no known checkpoint's: an adapter's factor, a partial update, between two, or newer."""
    if scores.reference.has_adapter:
        factor = weight_versions.find_adapter_factor(scores)
        if factor.residual <= scores.limit:
            return _adapter_fault(result, scores, factor), factor.weights
    slopes = [
        (weight_versions.project(scores.difference, exact - scores.exact), other) for other, exact in others
    ]
    slopes = sorted((pair for pair in slopes if pair[0].distance > 0), key=lambda pair: pair[0].residual)
    second = min([scores.residual, *(slope.residual for slope, _ in slopes)])
    if partial := _partial_update(result, scores, [other for other, _ in others], second):
        return partial
    known = [(scores.reference, scores.exact), *others]
    if newer := weight_versions.find_newer(known, scores.engine):
        return _newer_fault(result, newer, second), None
    references = [other for other, _ in known]
    # Weights move only nearly on a line: half of the difference must lie on it.
    for slope, other in slopes:
        if slope.error < 0.2 and slope.residual < 0.5 * scores.residual:
            oldest = weight_versions.is_oldest(other, references)
            return _way_fault(result, scores, slope, other, oldest=oldest), None
    nearest = min(known, key=lambda pair: scores.residual_of(pair[1]))[0]
    oldest = nearest is not scores.reference and weight_versions.is_oldest(nearest, references)
    return _unknown_fault(result, scores, (_go_back(nearest),) if oldest else ()), None


def _fault(result: Result, kind: str, message: str, **fields: Any) -> Result:
    values = fields.get("values", {})
    return replace(
        result, family=f"weights/{kind}", outcome=FAULT, message=message.format(**values), **fields
    )


def _adapter_fault(result: Result, scores: Scores, factor: weight_versions.AdapterFactor) -> Result:
    interval = (factor.value - 2 * factor.error, factor.value + 2 * factor.error)
    return _fault(result, "adapter", "the engine adds the adapter to its base {times:.2f} times", probe="P3",
                  values={"times": factor.value}, estimates=(Estimate("adapter", factor.value, *interval, 1.0),),
                  residual=factor.residual, runner_up=RunnerUp("the adapter once", scores.residual))  # fmt: skip


def _partial_update(
    result: Result, scores: Scores, others: Sequence[Reference], second: float
) -> tuple[Result, Reference] | None:
    best: tuple[weight_versions.PartialUpdate, Reference] | None = None
    for other in others[: 1 if scores.reference.large else len(others)]:
        update = weight_versions.find_partial_update(scores, other)
        limit = best[0].residual if best else min(scores.limit, scores.residual)
        if update and update.stale and update.residual < limit:
            best = (update, other)
        other.release()
    if best is None:
        return None
    update, other = best
    text = "{name}: {share:+.2f} of the other, standard error {error:.2f} (0: it arrived)"
    groups = [
        note("group", text, name=name, share=share, error=error)
        for name, (share, error) in update.shares.items()
    ]
    message = "tensors of the checkpoint did not arrive: {tensors} are still those of {name}"
    estimates = (
        Estimate("tensors", update.stale),
        Estimate("version", other.name, expected=scores.reference.name),
    )
    return _fault(result, "partial", message, probe="P4", values={"tensors": ", ".join(update.stale),
        "name": other.name},
                  estimates=estimates, residual=update.residual, runner_up=RunnerUp("no single checkpoint", second),
                  evidence=tuple(groups)), update.mixed  # fmt: skip


def _way_estimate(value: float, error: float) -> tuple[Estimate, ...]:
    return (Estimate("way", value, value - 2 * error, value + 2 * error, 1.0),)


def _newer_fault(result: Result, newer: weight_versions.Newer, second: float) -> Result:
    slope = newer.slope
    message = (
        "the engine's weights are newer than every checkpoint: {slope:.2f} of the way from {before} to"
        " {name} and beyond"
    )
    hint = Note(
        "went_on", "not a fault if the trainer went on since; audit with the checkpoint that was synced last"
    )
    return _fault(result, "newer", message, probe="P3", residual=slope.residual, evidence=(hint,),
                  values={"name": newer.newest, "before": newer.before, "slope": slope.value},
                  estimates=_way_estimate(slope.value, slope.error), runner_up=RunnerUp("the nearest checkpoint",
                  second))  # fmt: skip


_WAYS = {
    "older": "the engine's weights are older than {name}, the oldest compared: {slope:.2f} times as far back",
    "past": "the engine's weights lie beyond {name}, {slope:.2f} times as far from the checkpoint",
    "beyond": "the engine's weights lie {slope:.2f} times as far from {name} as the checkpoint does",
    "between": "the engine's weights lie {slope:.2f} of the way from {name} to the checkpoint",
}


def _way_fault(result: Result, scores: Scores, slope: Slope, other: Reference, *, oldest: bool) -> Result:
    """Report weights on the line through two checkpoints; between them the way counts from the other one."""
    if slope.value > 1:
        kind, way = "older" if oldest else "past", slope.value
    else:
        kind, way = "beyond" if slope.value < 0 else "between", 1 - slope.value
    return _fault(result, kind, _WAYS[kind], probe="P3", values={"slope": way, "name": other.name},
        residual=slope.residual,
                  estimates=_way_estimate(way, slope.error), runner_up=RunnerUp("the checkpoint", scores.residual),
                  evidence=(_go_back(other),) if kind == "older" else ())  # fmt: skip


def _go_back(other: Reference) -> Note:
    text = "{name} is the oldest compared and the nearest: audit again with an older one as --against DIR, or the base"
    return note("go_back", text, name=other.name)


def _unknown_fault(result: Result, scores: Scores, hints: tuple[Note, ...]) -> Result:
    """Report weights that nothing compared explains; from which position on, if they agree before."""
    mean = scores.mean_by_position()
    shortest = len(mean)
    head, tail = float(mean[: max(4, shortest // 8)].mean()), float(mean[-shortest // 4 :].mean())
    text = "scored ids are off by {off:.2g}, {times:.1f} times what rounding makes ({floor:.2g})"
    seen = note("off", text, off=scores.residual, floor=scores.floor, times=scores.factor)
    if head < scores.limit < tail:
        place = next(n for n in range(shortest) if float(mean[n : n + 8].mean()) > scores.limit)
        message = "the engine computes as the checkpoint up to token {place}, and differently after it"
        return _fault(result, "position", message, values={"place": place}, evidence=(seen,))
    message = "the engine computes with other weights than the checkpoint's, and with none of those compared"
    return _fault(result, "unknown", message, evidence=(seen, *hints))
