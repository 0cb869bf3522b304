"""P1, P3, P4: whether the engine holds the checkpoint's weights, and if not, which weights instead.

The engine scores ids that the audit chose, so neither sampling parameters nor templates matter. Other checkpoints of
small models are all computed. A large one takes a quarter of the audit; few ids rule out most, and a checkpoint further
away than one that is ruled out is not computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diagnostics.audit.live import precision, weight_versions
from diagnostics.audit.live.precision import Scores
from diagnostics.audit.live.reference import ROUNDED, TRUNCATED, Reference, Sequences
from diagnostics.audit.live.weight_versions import PartialUpdate, Slope
from diagnostics.audit.model import (
    CLEAN,
    NO_VALUES,
    NOT_DECIDED,
    Estimate,
    Note,
    Result,
    RunnerUp,
    clean,
    fault,
    note,
    undecided,
)

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
        return self.weights is not None and self.result.is_explained


def identify_weights(
    reference: Reference, against: Sequence[Reference], sequences: Sequences, engine: Any,
    dtype: str = "", staleness: int = 0,
) -> Identification:  # fmt: skip
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
    # If no weights explain the difference, truncating kernels may: all of it except the noise floor.
    truncating = replace(scores, dtype=TRUNCATED, exact=reference.scores(sequences, TRUNCATED))
    truncated = _identify(truncating, against, staleness)
    both_open = is_open and truncated.result.outcome == NOT_DECIDED
    return truncated if truncated.explained and not both_open else rounded


def _identify(scores: Scores, against: Sequence[Reference], staleness: int) -> Identification:
    """Identify the weights in one type."""
    siblings, left_out = _compute_others(scores, against)
    weights: Reference | None = scores.reference
    floor = scores.floor
    version, sibling, slopes = _find_version(scores, siblings)
    if version is not None:
        result, weights, floor = (
            allow_staleness(version, against, staleness),
            sibling,
            version.floor or floor,
        )
    elif scores.residual > scores.limit:
        result, weights = _find_other_weights(scores, siblings)
    elif scores.at_floor:
        result = clean("weights", **_result_fields(scores))
    else:
        need = note("more_tokens", "--tokens {tokens}", tokens=len(scores.engine) * 5)
        result = undecided("weights", need, **_result_fields(scores))
    text = "the engine computes in {dtype}; the checkpoint is stored in {kept}"
    dtype = note("type", text, dtype=scores.dtype, kept=scores.reference.dtype)
    result = replace(result, evidence=(*result.evidence, dtype, *left_out, *slopes))
    distances = {sibling.name: scores.residual_of(exact) for sibling, exact in siblings}
    pictures = {
        "difference": [round(value, 7) for value in scores.difference.tolist()[:2000]],
        "position": [round(value, 7) for value in scores.mean_by_position().tolist()],
        "versions": {scores.reference.name: scores.residual, **distances}, "floor": scores.floor,
    }  # fmt: skip
    return Identification(result, weights, scores.dtype, floor, pictures)


def _compute_others(
    scores: Scores, against: Sequence[Reference]
) -> tuple[list[tuple[Reference, Any]], list[Note]]:
    """Compute other checkpoints, one in memory at a time; return their log-probs, and why some were left out."""
    least_distance, reference = max(scores.residual, scores.floor), scores.reference
    computed: list[tuple[Reference, Any]] = []
    notes: list[Note] = []
    ruled_out: list[Reference] = []
    for sibling in against:
        if nearer := next(
            (excluded for excluded in ruled_out if _is_behind(sibling, excluded, reference)), None
        ):
            text = "{name} was not computed: {nearer}, between it and the checkpoint, is ruled out; --against forces it"
            notes.append(note("not_compared", text, name=sibling.name, nearer=nearer.name))
        elif not reference.has_same_tensors(sibling):
            notes.append(
                note("does_not_fit", "{name} has other tensors, and was left out", name=sibling.name)
            )
        elif (
            reference.large
            and scores.at_floor
            and (distance := _distance(scores, sibling)) > _FAR * least_distance
        ):
            ruled_out.append(sibling)
            text = "{name} was computed for {count} ids only: {apart:.2g} away, {times:.0f} times what rounding makes"
            values = {
                "name": sibling.name,
                "count": _FEW,
                "apart": distance,
                "times": distance / scores.floor,
            }
            notes.append(note("away", text, **values))
        else:
            computed.append((sibling, sibling.scores(scores.sequences, scores.dtype)))
        sibling.release()
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
    """Return the other checkpoint that the engine has loaded, if the differences identify one."""
    candidates: list[tuple[float, Slope, Reference]] = []
    notes = []
    for sibling, exact in others:
        slope = weight_versions.project(scores.difference, exact - scores.exact)
        kind, text = (
            "slope",
            "towards {name}: {slope:+.3f} of the way, standard error {error:.3f} ({apart:.2g} apart)",
        )
        if slope.distance == 0 or slope.error > 0.2:
            kind, text = "too_near", "{name} cannot be told from it by so few tokens ({apart:.2g} apart)"
        else:
            candidates.append((scores.residual_of(exact), slope, sibling))
        values = {"name": sibling.name, "slope": slope.value, "error": slope.error, "apart": slope.distance}
        notes.append(note(kind, text, **values))
    if not candidates:
        return None, None, notes
    residual, slope, sibling = min(candidates, key=lambda entry: entry[0])
    is_there = slope.value > 0.5 and abs(slope.value - 1) < max(0.1, _SIGMAS * slope.error)
    is_there = is_there and residual < scores.residual
    own_scores = scores
    if is_there and residual > scores.limit:
        own_scores = replace(scores, floor=precision.floor_with(sibling, scores))
    if not is_there or residual > own_scores.limit or slope.value <= _SIGMAS * slope.error:
        return None, None, notes
    second = min([scores.residual, *(entry[0] for entry in candidates if entry[2] is not sibling)])
    interval = (slope.value - 2 * slope.error, slope.value + 2 * slope.error)
    result = version_fault(
        sibling, scores.reference, probe="P3", residual=residual, floor=own_scores.floor, alarm=own_scores.limit,
        runner_up=RunnerUp("the next nearest", second), count=len(scores.engine),
        estimates=(Estimate("slope", slope.value, *interval, 0.0),),
    )  # fmt: skip
    return result, sibling, notes


def version_fault(
    other: Reference, reference: Reference, *, estimates: tuple[Estimate, ...] = (), **fields: Any
) -> Result:
    """Report that the engine holds another checkpoint's weights."""
    message, code = (
        "the engine holds the weights of {name}, not the checkpoint's",
        "SYN003" if other.name == "base" else "",
    )
    estimates = (Estimate("version", other.name, expected=reference.name), *estimates)
    return fault(
        "weights/version", message, code, {"name": other.name}, estimates=estimates, decisive=True, **fields
    )


def allow_staleness(result: Result, others: Sequence[Reference], staleness: int) -> Result:
    """Turn a version that the trainer's staleness allows into a clean result."""
    if result.values.get("name") not in [sibling.name for sibling in others[:staleness]]:
        return result
    fact = note("stale_allowed", "the engine holds {name}, which max_staleness allows", **result.values)
    return replace(result, family="weights", outcome=CLEAN, message="", code="", evidence=(fact,))


def _result_fields(scores: Scores) -> dict[str, Any]:
    """Return the numbers of a comparison with the checkpoint itself."""
    return {"residual": scores.residual, "floor": scores.floor, "alarm": scores.limit, "count": len(scores.engine),
            "decisive": True}  # fmt: skip


def _fault(
    scores: Scores, family: str, message: str, values: Mapping[str, Any] = NO_VALUES, **fields: Any
) -> Result:
    return fault(family, message, "", values, **_result_fields(scores) | fields)


def _find_other_weights(scores: Scores, others: Others) -> tuple[Result, Reference | None]:
    """Explain weights that are no known checkpoint's: an adapter's factor, a partial update, between two, or newer."""
    reference, project = scores.reference, weight_versions.project
    if reference.has_adapter:
        factor = weight_versions.find_adapter_factor(scores)
        if factor.residual <= scores.limit:
            return _adapter_fault(scores, factor), factor.weights
    slopes = [(project(scores.difference, exact - scores.exact), sibling) for sibling, exact in others]
    slopes = sorted((pair for pair in slopes if pair[0].distance > 0), key=lambda pair: pair[0].residual)
    second = min([scores.residual, *(slope.residual for slope, _ in slopes)])
    if partial := _find_partial_update(scores, [sibling for sibling, _ in others]):
        return _partial_fault(scores, *partial, second), partial[0].mixed
    known = [(reference, scores.exact), *others]
    if newer := weight_versions.find_newer(known, scores.engine):
        return _newer_fault(scores, newer, second), None
    references = [sibling for sibling, _ in known]
    # Weights move only nearly on a line: half of the difference must lie on it.
    for slope, sibling in slopes:
        if slope.error < 0.2 and slope.residual < 0.5 * scores.residual:
            return _way_fault(scores, slope, sibling, references), None
    nearest = min(known, key=lambda pair: scores.residual_of(pair[1]))[0]
    is_oldest = nearest is not reference and weight_versions.is_oldest(nearest, references)
    return _unknown_fault(scores, _go_back(nearest) if is_oldest else ()), None


def _adapter_fault(scores: Scores, factor: weight_versions.AdapterFactor) -> Result:
    value, error = factor.value, factor.error
    return _fault(
        scores, "weights/adapter", "the engine adds the adapter to its base {times:.2f} times", {"times": value},
        probe="P3", estimates=(Estimate("adapter", value, value - 2 * error, value + 2 * error, 1.0),),
        residual=factor.residual, runner_up=RunnerUp("the adapter once", scores.residual),
    )  # fmt: skip


def _find_partial_update(
    scores: Scores, others: Sequence[Reference]
) -> tuple[PartialUpdate, Reference] | None:
    best: tuple[PartialUpdate, Reference] | None = None
    for sibling in others[: 1 if scores.reference.large else len(others)]:
        update = weight_versions.find_partial_update(scores, sibling)
        limit = best[0].residual if best else min(scores.limit, scores.residual)
        if update and update.stale and update.residual < limit:
            best = (update, sibling)
        sibling.release()
    return best


def _partial_fault(scores: Scores, update: PartialUpdate, other: Reference, second: float) -> Result:
    text = "{name}: {share:+.2f} of the other, standard error {error:.2f} (0: it arrived)"
    shares = ((name, share, error) for name, (share, error) in update.shares.items())
    groups = tuple(note("group", text, name=name, share=share, error=error) for name, share, error in shares)
    message = "tensors of the checkpoint did not arrive: {tensors} are still those of {name}"
    version = Estimate("version", other.name, expected=scores.reference.name)
    return _fault(
        scores, "weights/partial", message, {"tensors": ", ".join(update.stale), "name": other.name}, probe="P4",
        estimates=(Estimate("tensors", update.stale), version), residual=update.residual, evidence=groups,
        runner_up=RunnerUp("no single checkpoint", second),
    )  # fmt: skip


def _way_estimate(value: float, error: float) -> tuple[Estimate, ...]:
    return (Estimate("way", value, value - 2 * error, value + 2 * error, 1.0),)


def _newer_fault(scores: Scores, newer: weight_versions.Newer, second: float) -> Result:
    slope = newer.slope
    message = (
        "the engine's weights are newer than every checkpoint: {slope:.2f} of the way from {before} to {name}"
    )
    text = "not a fault if the trainer went on since; audit with the checkpoint that was synced last"
    return _fault(
        scores, "weights/newer", message, {"name": newer.newest, "before": newer.before, "slope": slope.value},
        probe="P3", residual=slope.residual, evidence=(Note("went_on", text),),
        estimates=_way_estimate(slope.value, slope.error), runner_up=RunnerUp("the nearest checkpoint", second),
    )  # fmt: skip


_WAYS = {
    "weights/older": "the engine's weights are older than {name}, the oldest compared: {slope:.2f} times as far back",
    "weights/past": "the engine's weights lie beyond {name}, {slope:.2f} times as far from the checkpoint",
    "weights/beyond": "the engine's weights lie {slope:.2f} times as far from {name} as the checkpoint does",
    "weights/between": "the engine's weights lie {slope:.2f} of the way from {name} to the checkpoint",
}


def _way_fault(scores: Scores, slope: Slope, other: Reference, known: Sequence[Reference]) -> Result:
    """Report weights on the line through two checkpoints; between them the way counts from the other one."""
    family, way = "weights/beyond" if slope.value < 0 else "weights/between", 1 - slope.value
    if slope.value > 1:
        family, way = (
            "weights/older" if weight_versions.is_oldest(other, known) else "weights/past",
            slope.value,
        )
    return _fault(
        scores, family, _WAYS[family], {"slope": way, "name": other.name}, probe="P3", residual=slope.residual,
        estimates=_way_estimate(way, slope.error), runner_up=RunnerUp("the checkpoint", scores.residual),
        evidence=_go_back(other) if family == "weights/older" else (),
    )  # fmt: skip


def _go_back(other: Reference) -> tuple[Note, ...]:
    text = "{name} is the oldest compared and the nearest: audit again with an older one as --against DIR, or the base"
    return (note("go_back", text, name=other.name),)


def _unknown_fault(scores: Scores, hints: tuple[Note, ...]) -> Result:
    """Report weights that nothing compared explains; from which position on, if they agree before."""
    mean = scores.mean_by_position()
    shortest = len(mean)
    head, tail = float(mean[: max(4, shortest // 8)].mean()), float(mean[-shortest // 4 :].mean())
    text = "scored ids are off by {off:.2g}, {times:.1f} times what rounding makes ({floor:.2g})"
    fact = note("off", text, off=scores.residual, floor=scores.floor, times=scores.factor)
    if head < scores.limit < tail:
        place = next(n for n in range(shortest) if float(mean[n : n + 8].mean()) > scores.limit)
        message = "the engine computes as the checkpoint up to token {place}, and differently after it"
        return _fault(scores, "weights/position", message, {"place": place}, evidence=(fact,))
    message = "the engine computes with other weights than the checkpoint's, and with none of those compared"
    return _fault(scores, "weights/unknown", message, evidence=(fact, *hints))
