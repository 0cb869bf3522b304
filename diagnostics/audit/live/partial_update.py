"""Find tensors that a weight update left out, so that the engine still has another checkpoint's values (P4).

The engine's log-prob difference is regressed on the separate effect of each group of tensors. Then the found groups are
replaced in the model, and the model's log-probs are compared again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diagnostics.audit.live.reference import Reference
from diagnostics.audit.live.weight_comparison import Scores
from diagnostics.audit.results import Estimate, Result, RunnerUp, fault, note

_LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
_MAX_GROUPS = 12
# Largest share of the difference that may remain for a partial update to be examined further.
_EXPLAINS = 0.6


@dataclass(frozen=True)
class PartialUpdate:
    """Groups of tensors that still have another checkpoint's values.

    Attributes:
        other: The other checkpoint.
        stale: Names of the groups with its values.
        shares: For each group, the estimated fraction of the other checkpoint, and the standard error.
        residual: Mean log-prob difference that remains if these groups are taken from the other checkpoint.
        mixed: The resulting weights, which the engine probably has.
    """

    other: Reference
    stale: tuple[str, ...]
    shares: dict[str, tuple[float, float]]
    residual: float
    mixed: Reference


def find_partial_update(
    scores: Scores, others: Sequence[Reference], second: float
) -> tuple[Result, Reference] | None:
    """Return the fault and the engine's weights if a partial update explains the scores.

    Args:
        scores: The engine's scores and the checkpoint's.
        others: Checkpoints whose values may remain, the nearest first; for a large model only the first is tried.
        second: Residual of the best single checkpoint.
    """
    best: PartialUpdate | None = None
    for other in others[: 1 if scores.reference.large else len(others)]:
        update = _fit_groups(scores, other)
        limit = best.residual if best else min(scores.limit, scores.residual)
        if update and update.stale and update.residual < limit:
            best = update
        other.release()
    if best is None:
        return None
    text = "{name}: {share:+.2f} of the other, standard error {error:.2f} (0: it arrived)"
    shares = ((name, share, error) for name, (share, error) in best.shares.items())
    result = fault(
        "weights/partial",
        "tensors of the checkpoint did not arrive: {tensors} are still those of {name}",
        "",
        {"tensors": ", ".join(best.stale), "name": best.other.name},
        probe="P4",
        estimates=(
            Estimate("tensors", best.stale),
            Estimate("version", best.other.name, expected=scores.reference.name),
        ),
        evidence=tuple(
            note("group", text, name=name, share=share, error=error) for name, share, error in shares
        ),
        runner_up=RunnerUp("no single checkpoint", second),
        **scores.result_fields | {"residual": best.residual},
    )
    return result, best.mixed


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


def _fit_groups(scores: Scores, other: Reference) -> PartialUpdate | None:
    """Regress the difference on the separate effect of each group of tensors; None if this explains too little."""
    import torch

    reference = scores.reference
    groups = _group_tensors(list(reference.state))
    if not reference.has_same_tensors(other) or len(groups) < 2:
        return None
    own = scores.scores_of(reference)
    mixes = (reference.mix(other, frozenset(members).__contains__) for members in groups.values())
    columns = {name: scores.scores_of(mixed) - own for name, mixed in zip(groups, mixes, strict=True)}
    columns = {name: column for name, column in columns.items() if float(column.abs().max()) > 0}
    if not columns:
        return None
    matrix = torch.stack(list(columns.values()), dim=1)
    inverse = torch.linalg.pinv(matrix.T @ matrix)
    solution = inverse @ matrix.T @ (scores.engine - own)
    rest = scores.engine - own - matrix @ solution
    if float(rest.abs().mean()) > _EXPLAINS * scores.residual_of(own):
        return None
    errors = (inverse.diagonal() * rest.square().mean()).sqrt()
    shares = dict(zip(columns, zip(solution.tolist(), errors.tolist(), strict=True), strict=True))
    return _refine_groups(scores, other, groups, shares)


def _refine_groups(
    scores: Scores, other: Reference, groups: dict[str, list[str]], shares: dict[str, tuple[float, float]]
) -> PartialUpdate:
    """Add or remove one group at a time while the residual falls, as the effects of groups are not exactly additive."""
    stale = {name for name, (value, _) in shares.items() if value > 0.5}

    def swap(names: set[str]) -> tuple[float, Reference]:
        inside = frozenset(tensor for name in names for tensor in groups[name])
        mixed = scores.reference.mix(other, inside.__contains__)
        return scores.residual_of(scores.scores_of(mixed)), mixed

    residual, mixed = swap(stale)
    for _ in range(len(shares)):
        if residual <= scores.limit:
            break
        candidates = [(swap(stale ^ {name}), name) for name in shares]
        (least, best), name = min(candidates, key=lambda attempt: attempt[0][0])
        if least >= 0.98 * residual:
            break
        residual, mixed, stale = least, best, stale ^ {name}
    return PartialUpdate(other, tuple(sorted(stale)), shares, residual, mixed)
