"""Find tensors that a weight update left out, so that the engine still has another checkpoint's values (P4).

The tensors are examined in at most 12 groups: embedding, layers, head. The engine's log-prob difference is regressed on
the separate effect of each group. A mix of both checkpoints, with the found groups from the other one, is compared
again. If it does not explain the difference, the tensors of the two groups whose effect is most similar to the
difference are examined one by one, except for a large model.
"""

import math
import re
from collections.abc import Iterable, Sequence

from diagnostics.audit.live.reference import Reference
from diagnostics.audit.live.weight_comparison import Scores
from diagnostics.audit.results import Estimate, Result, fault

Groups = dict[str, list[str]]
_LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
_MAX_GROUPS = 12
# Largest share of the difference that may remain for a partial update to be examined further.
_MAX_REMAINDER = 0.6


def find_partial_update(scores: Scores, others: Sequence[Reference]) -> tuple[Result, Reference] | None:
    """Return the fault and the engine's weights if a partial update explains the scores; otherwise None.

    Args:
        scores: The engine's scores and the checkpoint's.
        others: Checkpoints whose values may remain, the nearest first. They are tried until one leaves a residual of
            rounding only; for a large model only the first is tried.
    """
    best: tuple[Result, Reference] | None = None
    limit = min(scores.alarm, scores.residual)
    for candidate in others[: 1 if scores.reference.is_large else len(others)]:
        groups = _group_tensors(list(scores.reference.state))
        for _ in range(1 if scores.reference.is_large else 2):
            stale, similar = _stale_groups(scores, candidate, groups)
            if stale:
                tensors = {tensor for name in stale for tensor in groups[name]}
                mixed = scores.reference.mix(candidate, tensors.__contains__)
                residual = scores.residual_of(scores.scores_of(mixed))
                if residual < limit:
                    limit = residual
                    best = _partial_fault(scores, candidate, stale, residual), mixed
                    break
            groups = {tensor: [tensor] for name in similar for tensor in groups[name]}
        candidate.release()
        if limit <= scores.rounding_limit:
            break
    return best


def _partial_fault(scores: Scores, other: Reference, stale: list[str], residual: float) -> Result:
    """Report the stale groups of tensors and the checkpoint whose values they still have."""
    version = Estimate("version", other.name, expected=scores.reference.name)
    fields = scores.result_fields | {"residual": residual, "probe": "P4"}
    fields["estimates"] = (Estimate("tensors", tuple(stale)), version)
    return fault("weights/partial", {"tensors": ", ".join(stale), "name": other.name}, **fields)


def _group_tensors(names: Iterable[str]) -> dict[str, list[str]]:
    """Group tensors: embedding, each layer or block of layers, head and last norm."""
    numbers = {name: int(match[1]) for name in names if (match := _LAYER.search(name))}
    last_layer = max(numbers.values(), default=0)
    size = max(1, math.ceil(len(set(numbers.values())) / (_MAX_GROUPS - 2)))
    groups: dict[str, list[str]] = {}
    for name in names:
        group = "embedding" if "embed" in name or "wte" in name else "head and last norm"
        if name in numbers:
            first = numbers[name] // size * size
            last = min(first + size - 1, last_layer)
            group = f"layer {first}" if size == 1 else f"layers {first} to {last}"
        groups.setdefault(group, []).append(name)
    return groups


def _stale_groups(scores: Scores, other: Reference, groups: Groups) -> tuple[list[str], list[str]]:
    """Return the groups of tensors that have more of the other checkpoint's values than of their own.

    The difference is regressed on the separate effect of each group. The list is empty if this explains too little. The
    second list has the two groups whose effect is most similar to the difference. Both lists are empty if the
    checkpoints have other tensors, or if there is nothing to compare.
    """
    import torch

    reference = scores.reference
    if not reference.has_same_tensors(other) or len(groups) < 2:
        return [], []
    baseline = scores.scores_of(reference)
    mixes = (reference.mix(other, frozenset(members).__contains__) for members in groups.values())
    columns = {name: scores.scores_of(mixed) - baseline for name, mixed in zip(groups, mixes, strict=True)}
    columns = {name: column for name, column in columns.items() if float(column.abs().max()) > 0}
    if not columns:
        return [], []
    matrix = torch.stack(list(columns.values()), dim=1)
    solution = torch.linalg.pinv(matrix.T @ matrix) @ matrix.T @ (scores.engine - baseline)
    rest = scores.engine - baseline - matrix @ solution
    cosines = (scores.engine - baseline) @ matrix / matrix.norm(dim=0)
    similar = [name for _, name in sorted(zip(cosines.tolist(), columns, strict=True), reverse=True)[:2]]
    if float(rest.abs().mean()) > _MAX_REMAINDER * scores.residual_of(baseline):
        return [], similar
    stale = sorted(name for name, share in zip(columns, solution.tolist(), strict=True) if share > 0.5)
    return stale, similar
