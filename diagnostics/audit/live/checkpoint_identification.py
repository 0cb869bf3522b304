"""Identify the weights of the engine: those of the expected checkpoint, or others (P1, P3, P4 of docs/audit.md).

`identify_weights` compares the engine's scores with those of the checkpoints. The ids are chosen by the audit, so
sampling parameters and chat templates have no influence. Without a fault the result is clean, or undecided. For a large
model a few ids can rule out another checkpoint. Faults are:

- another checkpoint or the base model;
- an adapter with a wrong factor, or a partial update;
- weights newer than all checkpoints, or on the line through two of them: between or beyond these;
- unknown weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from diagnostics.audit.live.partial_update import find_partial_update
from diagnostics.audit.live.reference import DTYPES, Reference, Sequences
from diagnostics.audit.live.weight_comparison import Scores, Slope, compare, compare_in_best_dtype, project
from diagnostics.audit.results import Estimate, Note, Result, clean, fault, note, undecided
from diagnostics.audit.training_curves import Curves

# Number of ids by which a large checkpoint can be ruled out, and the necessary distance in residuals: an engine that is
# nearer to the other checkpoint than to this one is off by more than half of their distance.
_FEW_IDS, _MIN_DISTANCE = 64, 2.5
# Standard errors by which a position must differ from 0, or from another checkpoint's to be related to it; largest
# standard error of a position that is used.
_SIGMAS, _RELATED_SIGMAS, _MAX_ERROR = 4.0, 3.0, 0.2
# Standard errors beyond the newest checkpoint, and cosine with the last step. Newer weights had a cosine of 0.25 and
# more; noise, other dtypes and other runs had 0.03 and less.
_BEYOND_SIGMAS, _MIN_COSINE = 4.0, 0.15
Siblings = Sequence[tuple[Reference, Any]]
"""Other checkpoints with their log-probs of the scored ids."""


@dataclass
class Identification:
    """The result of the weight comparison, with values for later checks.

    Attributes:
        result: The finding about the weights.
        weights: The weights that the engine computes with (the checkpoint if undecided); None if they are unknown.
        dtype: The dtype that the engine computes in.
        floor: Difference that rounding alone causes.
    """

    result: Result
    weights: Reference | None
    dtype: str
    floor: float


def identify_weights(
    reference: Reference, against: Sequence[Reference], sequences: Sequences, engine: Any, dtype: str = ""
) -> Identification:
    """Compare the engine's scores with the checkpoint's and other checkpoints'; return the weights that explain them.

    Args:
        reference: The weights that the engine should have.
        against: Other weights that the engine may have instead, the likeliest first.
        sequences: The scored ids.
        engine: The engine's log-prob of each id but the first of each sequence, concatenated.
        dtype: The engine's dtype; empty if unknown.
    """
    scores = compare_in_best_dtype(reference, sequences, engine, dtype)
    if dtype not in DTYPES and not (scores.at_floor or reference.is_large):
        # Other weights in float32, which explain the difference exactly, exclude rounding to a coarser dtype.
        exact = compare(reference, sequences, engine, "float32")
        in_float32 = _identify(exact, against)
        if in_float32.weights is not None and (in_float32.result.residual or 0.0) <= exact.alarm:
            return in_float32
    return _identify(scores, against)


def _identify(scores: Scores, against: Sequence[Reference]) -> Identification:
    """Find the weights that explain the scores in their dtype."""
    siblings, notes = _compute_others(scores, against)
    weights: Reference | None = scores.reference
    floor = scores.floor
    if version := _find_version(scores, siblings, notes):
        result, weights = version
        floor = result.floor or floor
    elif scores.residual > scores.alarm:
        result, weights = _find_other_weights(scores, siblings)
    elif scores.at_floor:
        result = clean("weights", **scores.result_fields)
    else:
        need = note("more_tokens:dtype", tokens=len(scores.engine) * 5)
        result = undecided("weights", need, **scores.result_fields)
    result = replace(result, evidence=(*result.evidence, *notes))
    return Identification(result, weights, scores.dtype, floor)


def _compute_others(scores: Scores, against: Sequence[Reference]) -> tuple[Siblings, list[Note]]:
    """Return the other checkpoints with their log-probs, and notes on those left out; one model is loaded at a time."""
    computed: list[tuple[Reference, Any]] = []
    notes: list[Note] = []
    for sibling in against:
        if not scores.reference.has_same_tensors(sibling):
            notes.append(note("does_not_fit", name=sibling.name))
        elif _is_far(scores, sibling):
            notes.append(note("away", count=_FEW_IDS, name=sibling.name))
        else:
            computed.append((sibling, scores.scores_of(sibling)))
        sibling.release()
    return computed, notes


def _is_far(scores: Scores, sibling: Reference) -> bool:
    """Return whether a few ids suffice to rule out a large sibling checkpoint."""
    if not (scores.reference.is_large and scores.at_floor):
        return False
    exact = sibling.scores([scores.sequences[0][: _FEW_IDS + 1]], scores.dtype)
    distance = float((exact - scores.exact[: len(exact)]).abs().mean())
    return distance > _MIN_DISTANCE * max(scores.residual, scores.floor)


def _find_version(scores: Scores, siblings: Siblings, notes: list[Note]) -> tuple[Result, Reference] | None:
    """Return the fault and the other checkpoint that the engine has, if the differences identify one."""
    candidates: list[tuple[float, Slope, Reference]] = []
    for sibling, exact in siblings:
        slope = project(scores.difference, exact - scores.exact)
        if slope.distance == 0 or slope.error > _MAX_ERROR:
            notes.append(note("too_near", name=sibling.name, apart=slope.distance))
        else:
            candidates.append((scores.residual_of(exact), slope, sibling))
    if not candidates:
        return None
    residual, slope, sibling = min(candidates, key=lambda entry: entry[0])
    is_there = slope.value > 0.5 and abs(slope.value - 1) < max(0.1, _SIGMAS * slope.error)
    if not is_there or residual >= scores.residual or slope.value <= _SIGMAS * slope.error:
        return None
    if residual > scores.alarm:  # the floor of trained weights is larger than that of untrained ones
        trained = compare(sibling, scores.sequences, scores.engine, scores.dtype)
        scores = replace(scores, floor=max(scores.floor, trained.floor))
        if residual > scores.alarm:
            return None
    version = Estimate("version", sibling.name, expected=scores.reference.name)
    estimates = (version, _estimate("slope", slope.value, slope.error, 0.0))
    fields: dict[str, Any] = {"residual": residual, "estimates": estimates}
    key, fields["code"] = "weights/version", "SYN003" if sibling.name == "base" else ""
    if scores.reference.has_adapter and not sibling.has_adapter:
        key = "weights/version:base"
        fields |= {"code": "SYN026", "evidence": tuple(Curves(()).causes("adapter_missing"))}
    return _fault(scores, key, {"name": sibling.name}, **fields), sibling


def _estimate(name: str, value: float, error: float, expected: float = 1.0) -> Estimate:
    """Return an estimate with the interval of two standard errors."""
    return Estimate(name, value, value - 2 * error, value + 2 * error, expected)


def _fault(scores: Scores, key: str, values: dict[str, Any], **fields: Any) -> Result:
    return fault(key, values, **scores.result_fields | {"probe": "P3"} | fields)


def _find_other_weights(scores: Scores, siblings: Siblings) -> tuple[Result, Reference | None]:
    """Explain weights of no known checkpoint: a scaled adapter, a partial update, newer, interpolated or unknown ones.

    Return the fault, and the weights if they could be rebuilt.
    """
    if scores.reference.has_adapter and (adapter := _find_adapter_factor(scores)):
        return adapter
    slopes = [(project(scores.difference, exact - scores.exact), sibling) for sibling, exact in siblings]
    slopes = [pair for pair in slopes if pair[0].distance > 0]
    # With a partial update, the engine's difference correlates with that of the other checkpoint.
    related = [sibling for slope, sibling in slopes if abs(slope.value) > _RELATED_SIGMAS * slope.error]
    slopes.sort(key=lambda pair: pair[0].residual)
    if partial := find_partial_update(scores, related):
        return partial
    if newer := _find_newer(scores, siblings):
        return newer, None
    # Weights do not move exactly on a line, so the line must explain only half of the difference.
    for slope, sibling in slopes:
        if slope.error < _MAX_ERROR and slope.residual < 0.5 * scores.residual:
            return _line_fault(scores, slope, sibling), None
    return _unknown_fault(scores, siblings), None


def _find_adapter_factor(scores: Scores) -> tuple[Result, Reference] | None:
    """Find the factor by which the engine scales the adapter, by the secant method from 0 and 1; None if none fits."""
    reference = scores.reference
    before, at_before = 0.0, scores.scores_of(reference.scale_adapter(0.0))
    value, weights, at_value = 1.0, reference, scores.exact
    for _ in range(6):
        slope = project(scores.engine - at_value, (at_value - at_before) / (value - before))
        if abs(slope.value) < max(1e-6, 0.1 * slope.error):
            break
        before, at_before = value, at_value
        value = min(8.0, max(-8.0, value + slope.value))
        weights = reference.scale_adapter(value)
        at_value = scores.scores_of(weights)
    residual = scores.residual_of(at_value)
    if residual > scores.alarm:
        return None
    estimates = (_estimate("adapter", value, slope.error),)
    return _fault(
        scores, "weights/adapter", {"times": value}, residual=residual, estimates=estimates
    ), weights


def _find_newer(scores: Scores, siblings: Siblings) -> Result | None:
    """Report weights that are newer than all checkpoints; None if they are not.

    Their difference from the newest checkpoint must point in the direction of the last step; otherwise noisy weights
    and much older ones would pass as newer.
    """
    known = [(scores.reference, scores.exact), *siblings]
    numbered = [pair for pair in known if pair[0].step is not None]
    numbered.sort(key=lambda pair: pair[0].step or 0)
    nearest = min(known, key=lambda pair: scores.residual_of(pair[1]))[0]
    if len(numbered) < 2 or nearest is not numbered[-1][0]:
        return None
    (before, old), (newest, new) = numbered[-2:]
    ahead, last_step = scores.engine - new, new - old
    slope = project(scores.engine - old, last_step)
    cosine = float(ahead @ last_step) / (float(ahead.norm()) * float(last_step.norm()) or 1.0)
    if slope.value - 1 <= _BEYOND_SIGMAS * slope.error or cosine <= _MIN_COSINE:
        return None
    values = {"name": newest.name, "before": before.name, "slope": slope.value}
    estimates, evidence = (_estimate("way", slope.value, slope.error),), (note("went_on"),)
    fields: dict[str, Any] = {"residual": slope.residual, "estimates": estimates, "evidence": evidence}
    return _fault(scores, "weights/newer", values, **fields)


def _line_fault(scores: Scores, slope: Slope, sibling: Reference) -> Result:
    """Report weights on the line through two checkpoints: an interpolation or extrapolation."""
    family, way = "weights/beyond" if slope.value < 0 else "weights/between", 1 - slope.value
    if slope.value > 1:
        family, way = "weights/older", slope.value
    values, estimate = {"slope": way, "name": sibling.name}, _estimate("way", way, slope.error)
    return _fault(scores, family, values, residual=slope.residual, estimates=(estimate,))


def _unknown_fault(scores: Scores, siblings: Siblings) -> Result:
    """Report weights that none of the comparisons explains."""
    names = ", ".join([scores.reference.name, *(sibling.name for sibling, _ in siblings)])
    fact = note("off", off=scores.residual, floor=scores.floor, dtype=scores.dtype, names=names)
    facts = (fact, *Curves(()).causes("unknown_weights"))
    return _fault(scores, "weights/unknown", {"off": scores.residual}, probe="P1", evidence=facts)
