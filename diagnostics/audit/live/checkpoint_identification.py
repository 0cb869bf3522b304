"""Identify the weights that the engine holds: the checkpoint's (P1), or which other weights (P3, P4).

The engine scores ids that the audit chose, so neither sampling parameters nor templates matter. All sibling checkpoints
of a small model are computed. Of a large model a few ids rule out most of them, and a checkpoint further away in
training than one that is ruled out is not computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diagnostics.audit.live import weight_comparison
from diagnostics.audit.live.reference import Reference, Sequences
from diagnostics.audit.live.weight_comparison import Newer, PartialUpdate, Scores, Slope, project
from diagnostics.audit.results import (
    CLEAN,
    NO_VALUES,
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
_FEW_IDS, _FAR = 64, 2.5
_SIGMAS, _RELATED, _MOST_ERROR = 4.0, 3.0, 0.2
# Multiple of the rounding error that kernels may make which cut numbers off; measured: 2.5.
_TRUNCATES = 4.0
Siblings = Sequence[tuple[Reference, Any]]


@dataclass
class Identification:
    """The result, and what later checks need.

    Attributes:
        weights: The weights that the engine computes with; None if unknown.
        floor: Difference that rounding makes.
    """

    result: Result
    weights: Reference | None
    dtype: str
    floor: float

    @property
    def explained(self) -> bool:
        """Return whether some weights leave no more than rounding does."""
        return self.weights is not None and self.result.is_explained


def identify_weights(
    reference: Reference,
    against: Sequence[Reference],
    sequences: Sequences,
    engine: Any,
    dtype: str = "",
    staleness: int = 0,
    *,
    truncates: bool = False,
) -> Identification:
    """Compare the engine's scores with the checkpoint and with other checkpoints.

    Args:
        reference: The weights that it should hold.
        against: Weights that it may hold, the likeliest first.
        sequences: The scored ids.
        engine: Its log-prob of each id but the first of each sequence, concatenated.
        dtype: The type it computes in; empty if unknown.
        staleness: How many of the siblings, the nearest first, the trainer allows.
        truncates: Whether the engine's kernels may cut numbers off instead of rounding them.
    """
    scores = weight_comparison.compare_in_best_type(reference, sequences, engine, dtype)
    siblings, left_out = _compute_others(scores, against)
    weights: Reference | None = scores.reference
    floor = scores.floor
    version, sibling, slopes = _find_version(scores, siblings)
    if version is not None:
        result, weights = allow_staleness(version, against, staleness), sibling
        floor = version.floor or floor
    elif scores.residual > scores.limit:
        result, weights = _find_other_weights(scores, siblings)
    elif scores.at_floor:
        result = clean("weights", **_result_fields(scores))
    else:
        need = note("more_tokens", "--tokens {tokens}", tokens=len(scores.engine) * 5)
        result = undecided("weights", need, **_result_fields(scores))
    text = "the engine computes in {dtype}; the checkpoint is stored in {stored}"
    fact = note("type", text, dtype=scores.dtype, stored=scores.reference.dtype)
    result = replace(result, evidence=(*result.evidence, fact, *left_out, *slopes))
    if truncates and result.family == "weights/unknown" and scores.residual < _TRUNCATES * scores.floor:
        need = note(
            "newer_release",
            "vLLM 0.12 or newer: CPU builds of this release cut numbers off instead of rounding",
        )
        result, weights = undecided("weights", need, **_result_fields(scores)), None
    return Identification(result, weights, scores.dtype, floor)


def _compute_others(scores: Scores, against: Sequence[Reference]) -> tuple[Siblings, list[Note]]:
    """Compute the other checkpoints, one in memory at a time; return their log-probs, and why some were left out."""
    reference = scores.reference
    computed: list[tuple[Reference, Any]] = []
    ruled_out: list[Reference] = []
    notes: list[Note] = []
    for sibling in against:
        if nearer := next((item for item in ruled_out if _is_behind(sibling, item, reference)), None):
            text = "{name} was not computed: {nearer}, between it and the checkpoint, is ruled out; --against forces it"
            notes.append(note("not_compared", text, name=sibling.name, nearer=nearer.name))
        elif not reference.has_same_tensors(sibling):
            notes.append(
                note("does_not_fit", "{name} has other tensors, and was left out", name=sibling.name)
            )
        elif (distance := _far_distance(scores, sibling)) is not None:
            ruled_out.append(sibling)
            text = "{name} was computed for {count} ids only: {apart:.2g} away, {times:.0f} times what rounding makes"
            times = distance / scores.floor
            notes.append(note("away", text, name=sibling.name, count=_FEW_IDS, apart=distance, times=times))
        else:
            computed.append((sibling, scores.scores_of(sibling)))
        sibling.release()
    return computed, notes


def _far_distance(scores: Scores, sibling: Reference) -> float | None:
    """Return the distance of another large checkpoint if a few ids rule it out, because the engine is at this one."""
    if not (scores.reference.large and scores.at_floor):
        return None
    exact = sibling.scores([scores.sequences[0][: _FEW_IDS + 1]], scores.dtype)
    distance = float((exact - scores.exact[: len(exact)]).abs().mean())
    return distance if distance > _FAR * max(scores.residual, scores.floor) else None


def _is_behind(sibling: Reference, nearer: Reference, reference: Reference) -> bool:
    """Return whether training passed one checkpoint between another and the reference."""
    if sibling.step is None or nearer.step is None or reference.step is None:
        return False
    return sibling.step < nearer.step < reference.step or reference.step < nearer.step < sibling.step


def _find_version(scores: Scores, siblings: Siblings) -> tuple[Result | None, Reference | None, list[Note]]:
    """Return the other checkpoint that the engine has loaded, if the differences identify one."""
    candidates: list[tuple[float, Slope, Reference]] = []
    notes = []
    for sibling, exact in siblings:
        slope = project(scores.difference, exact - scores.exact)
        values = {"name": sibling.name, "slope": slope.value, "error": slope.error, "apart": slope.distance}
        if slope.distance == 0 or slope.error > _MOST_ERROR:
            text = "{name} cannot be told from it by so few tokens ({apart:.2g} apart)"
            notes.append(note("too_near", text, **values))
            continue
        text = "towards {name}: {slope:+.3f} of the way, standard error {error:.3f} ({apart:.2g} apart)"
        notes.append(note("slope", text, **values))
        candidates.append((scores.residual_of(exact), slope, sibling))
    if not candidates:
        return None, None, notes
    residual, slope, sibling = min(candidates, key=lambda entry: entry[0])
    is_there = slope.value > 0.5 and abs(slope.value - 1) < max(0.1, _SIGMAS * slope.error)
    if not is_there or residual >= scores.residual or slope.value <= _SIGMAS * slope.error:
        return None, None, notes
    if residual > scores.limit:
        scores = replace(scores, floor=weight_comparison.floor_with(sibling, scores))
        if residual > scores.limit:
            return None, None, notes
    second = min([scores.residual, *(entry[0] for entry in candidates if entry[2] is not sibling)])
    result = version_fault(
        sibling,
        scores.reference,
        probe="P3",
        residual=residual,
        floor=scores.floor,
        alarm=scores.limit,
        runner_up=RunnerUp("the next nearest", second),
        count=len(scores.engine),
        estimates=(_estimate("slope", slope.value, slope.error, 0.0),),
    )
    return result, sibling, notes


def _estimate(name: str, value: float, error: float, expected: float = 1.0) -> Estimate:
    """Return an estimate with the interval of two standard errors."""
    return Estimate(name, value, value - 2 * error, value + 2 * error, expected)


def version_fault(
    sibling: Reference, reference: Reference, *, estimates: tuple[Estimate, ...] = (), **fields: Any
) -> Result:
    """Report that the engine holds another checkpoint's weights."""
    message = "the engine holds the weights of {name}, not the checkpoint's"
    code = "SYN003" if sibling.name == "base" else ""
    estimates = (Estimate("version", sibling.name, expected=reference.name), *estimates)
    fields |= {"estimates": estimates, "decisive": True}
    return fault("weights/version", message, code, {"name": sibling.name}, **fields)


def allow_staleness(result: Result, siblings: Sequence[Reference], staleness: int) -> Result:
    """Turn a version that the trainer's staleness allows into a clean result."""
    if result.values.get("name") not in [sibling.name for sibling in siblings[:staleness]]:
        return result
    fact = note("stale_allowed", "the engine holds {name}, which max_staleness allows", **result.values)
    return replace(result, family="weights", outcome=CLEAN, message="", code="", evidence=(fact,))


def _result_fields(scores: Scores) -> dict[str, Any]:
    """Return the numbers of a comparison with the checkpoint itself."""
    return {
        "residual": scores.residual,
        "floor": scores.floor,
        "alarm": scores.limit,
        "count": len(scores.engine),
        "decisive": True,
    }


def _fault(
    scores: Scores, family: str, message: str, values: Mapping[str, Any] = NO_VALUES, **fields: Any
) -> Result:
    return fault(family, message, "", values, **_result_fields(scores) | fields)


def _find_other_weights(scores: Scores, siblings: Siblings) -> tuple[Result, Reference | None]:
    """Explain weights that are no known checkpoint's: an adapter's factor, a partial update, between two, or newer."""
    reference = scores.reference
    if reference.has_adapter:
        factor = weight_comparison.find_adapter_factor(scores)
        if factor.residual <= scores.limit:
            return _adapter_fault(scores, factor), factor.weights
    slopes = [(project(scores.difference, exact - scores.exact), sibling) for sibling, exact in siblings]
    slopes = [pair for pair in slopes if pair[0].distance > 0]
    # A part of a checkpoint's difference lies on the way to it.
    related = [sibling for slope, sibling in slopes if abs(slope.value) > _RELATED * slope.error]
    slopes.sort(key=lambda pair: pair[0].residual)
    second = min([scores.residual, *(slope.residual for slope, _ in slopes)])
    if partial := _find_partial_update(scores, related):
        return _partial_fault(scores, *partial, second), partial[0].mixed
    known = [(reference, scores.exact), *siblings]
    if newer := weight_comparison.find_newer(known, scores.engine):
        return _newer_fault(scores, newer, second), None
    references = [sibling for sibling, _ in known]
    # Weights move only nearly on a line: half of the difference must lie on it.
    for slope, sibling in slopes:
        if slope.error < _MOST_ERROR and slope.residual < 0.5 * scores.residual:
            return _way_fault(scores, slope, sibling, references), None
    nearest = min(known, key=lambda pair: scores.residual_of(pair[1]))[0]
    is_oldest = nearest is not reference and weight_comparison.is_oldest(nearest, references)
    return _unknown_fault(scores, _go_back(nearest) if is_oldest else ()), None


def _adapter_fault(scores: Scores, factor: weight_comparison.AdapterFactor) -> Result:
    return _fault(
        scores,
        "weights/adapter",
        "the engine adds the adapter to its base {times:.2f} times",
        {"times": factor.value},
        probe="P3",
        estimates=(_estimate("adapter", factor.value, factor.error),),
        residual=factor.residual,
        runner_up=RunnerUp("the adapter once", scores.residual),
    )


def _find_partial_update(
    scores: Scores, siblings: Sequence[Reference]
) -> tuple[PartialUpdate, Reference] | None:
    """Return the partial update that explains the scores best; for a large model only with the nearest checkpoint."""
    best: tuple[PartialUpdate, Reference] | None = None
    for sibling in siblings[: 1 if scores.reference.large else len(siblings)]:
        update = weight_comparison.find_partial_update(scores, sibling)
        limit = best[0].residual if best else min(scores.limit, scores.residual)
        if update and update.stale and update.residual < limit:
            best = (update, sibling)
        sibling.release()
    return best


def _partial_fault(scores: Scores, update: PartialUpdate, sibling: Reference, second: float) -> Result:
    text = "{name}: {share:+.2f} of the other, standard error {error:.2f} (0: it arrived)"
    shares = ((name, share, error) for name, (share, error) in update.shares.items())
    groups = tuple(note("group", text, name=name, share=share, error=error) for name, share, error in shares)
    message = "tensors of the checkpoint did not arrive: {tensors} are still those of {name}"
    version = Estimate("version", sibling.name, expected=scores.reference.name)
    return _fault(
        scores,
        "weights/partial",
        message,
        {"tensors": ", ".join(update.stale), "name": sibling.name},
        probe="P4",
        estimates=(Estimate("tensors", update.stale), version),
        residual=update.residual,
        evidence=groups,
        runner_up=RunnerUp("no single checkpoint", second),
    )


def _newer_fault(scores: Scores, newer: Newer, second: float) -> Result:
    slope = newer.slope
    message = (
        "the engine's weights are newer than every checkpoint: {slope:.2f} of the way from {before} to {name}"
    )
    text = "not a fault if the trainer went on since; audit with the checkpoint that was synced last"
    return _fault(
        scores,
        "weights/newer",
        message,
        {"name": newer.newest, "before": newer.before, "slope": slope.value},
        probe="P3",
        residual=slope.residual,
        evidence=(Note("went_on", text),),
        estimates=(_estimate("way", slope.value, slope.error),),
        runner_up=RunnerUp("the nearest checkpoint", second),
    )


_WAYS = {
    "weights/older": "the engine's weights are older than {name}, the oldest compared: {slope:.2f} times as far back",
    "weights/past": "the engine's weights lie beyond {name}, {slope:.2f} times as far from the checkpoint",
    "weights/beyond": "the engine's weights lie {slope:.2f} times as far from {name} as the checkpoint does",
    "weights/between": "the engine's weights lie {slope:.2f} of the way from {name} to the checkpoint",
}


def _way_fault(scores: Scores, slope: Slope, sibling: Reference, known: Sequence[Reference]) -> Result:
    """Report weights on the line through two checkpoints; between them the way counts from the other one."""
    family, way = "weights/beyond" if slope.value < 0 else "weights/between", 1 - slope.value
    if slope.value > 1:
        family = "weights/older" if weight_comparison.is_oldest(sibling, known) else "weights/past"
        way = slope.value
    return _fault(
        scores,
        family,
        _WAYS[family],
        {"slope": way, "name": sibling.name},
        probe="P3",
        residual=slope.residual,
        estimates=(_estimate("way", way, slope.error),),
        runner_up=RunnerUp("the checkpoint", scores.residual),
        evidence=_go_back(sibling) if family == "weights/older" else (),
    )


def _go_back(sibling: Reference) -> tuple[Note, ...]:
    text = "{name} is the oldest compared and the nearest: audit again with an older one as --against DIR, or the base"
    return (note("go_back", text, name=sibling.name),)


def _unknown_fault(scores: Scores, hints: tuple[Note, ...]) -> Result:
    """Report weights that nothing compared explains; from which position on, if they agree before."""
    mean = scores.mean_by_position()
    shortest = len(mean)
    head, tail = float(mean[: max(4, shortest // 8)].mean()), float(mean[-shortest // 4 :].mean())
    text = "scored ids are off by {off:.2g}, {times:.1f} times what rounding makes ({floor:.2g})"
    fact = note("off", text, off=scores.residual, floor=scores.floor, times=scores.residual / scores.floor)
    if head < scores.limit < tail:
        place = next(n for n in range(shortest) if float(mean[n : n + 8].mean()) > scores.limit)
        message = "the engine computes as the checkpoint up to token {place}, and differently after it"
        return _fault(scores, "weights/position", message, {"place": place}, evidence=(fact,))
    message = "the engine computes with other weights than the checkpoint's, and with none of those compared"
    return _fault(scores, "weights/unknown", message, evidence=(fact, *hints))
