"""P13: compare consecutive checkpoints tensor by tensor: what moved, what never did, and what bfloat16 lost.

Some thousand evenly spaced elements of each tensor are compared; "did not move" is reported only after all bytes
were. An update below half of the last place of a bfloat16 weight is lost: small weights move and larger ones never
do, with
a sharp edge. Weights kept in float32 and only saved in bfloat16 have no edge: among weights twice as large, half
as many move.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.audit.model import CLEAN, NOT_DECIDED, Estimate, Result, fault, note, skipped
from diagnostics.audit.recorded import safetensors
from diagnostics.audit.recorded.run_data import Checkpoint, RunArtifacts, Unreadable
from diagnostics.audit.recorded.safetensors import Tensor
from diagnostics.output.redact import mask_and_cut

PROBE = "P13"
_ELEMENTS, _MAX_PAIRS, _MAX_TENSORS, _MAX_BYTES = 4096, 3, 4000, 4 * safe_io.GIB
# Of each floating type the bits of the fraction and the mask of the exponent.
_EXPONENTS = {"BF16": (7, 0xFF), "F16": (10, 0x1F), "F32": (23, 0xFF), "F64": (52, 0x7FF)}


@dataclass
class Comparison:
    """What changed between two checkpoints.

    Attributes:
        shares: Share of compared elements that changed, by tensor.
        unchanged: Tensors whose bytes are all equal.
        invalid: Tensors with NaN or infinity in the later checkpoint.
        by_exponent: bfloat16 only: elements compared and changed, by exponent of the earlier value.
    """

    before: int
    after: int
    shares: dict[str, float] = field(default_factory=dict)
    unchanged: set[str] = field(default_factory=set)
    invalid: list[str] = field(default_factory=list)
    by_exponent: dict[int, list[int]] = field(default_factory=dict)


def check_checkpoints(run: RunArtifacts, unreadable: list[Unreadable]) -> Iterator[Result]:
    """Check the checkpoints of a run."""
    numbered = [checkpoint for checkpoint in run.checkpoints if checkpoint.step >= 0]
    comparisons: list[Comparison] = []
    budget = [_MAX_BYTES]
    for before, after in _choose_pairs(numbered):
        try:
            comparison = _compare(before, after, budget)
        except (OSError, ValueError, KeyError, TypeError) as error:
            unreadable.append(Unreadable(str(after.folder), mask_and_cut(str(error), 200)))
            continue
        if comparison.shares:
            comparisons.append(comparison)
    if comparisons:
        yield _judge(comparisons, run)
    else:
        need = "two checkpoints as safetensors in folders named by step; there are {count}"
        yield skipped("moved", PROBE, "want_checkpoints", need, count=len(numbered))


def _choose_pairs(checkpoints: list[Checkpoint]) -> list[tuple[Checkpoint, Checkpoint]]:
    """Return neighbours with the same files: the first pair, one between, the last."""
    chains: dict[tuple[Path, tuple[str, ...]], list[Checkpoint]] = {}
    for checkpoint in checkpoints:
        key = (checkpoint.folder.parent, tuple(path.name for path in checkpoint.files))
        chains.setdefault(key, []).append(checkpoint)
    longest = max(chains.values(), key=len, default=[])
    pairs = [(before, after) for before, after in pairwise(longest) if before.step != after.step]
    return pairs if len(pairs) <= _MAX_PAIRS else [pairs[0], pairs[len(pairs) // 2], pairs[-1]]


def _compare(before: Checkpoint, after: Checkpoint, budget: list[int]) -> Comparison:
    comparison = Comparison(before.step, after.step)
    old, new = _tensors(before), _tensors(after)
    for name in sorted(set(old) & set(new))[:_MAX_TENSORS]:
        same_form = (old[name].kind, old[name].shape) == (new[name].kind, new[name].shape)
        if same_form and old[name].kind in _EXPONENTS and old[name].size:
            _compare_tensor(comparison, old[name], new[name], budget)
    return comparison


def _tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    return {name: tensor for path in checkpoint.files for name, tensor in safetensors.map_file(path).items()}


def _compare_tensor(comparison: Comparison, old: Tensor, new: Tensor, budget: list[int]) -> None:
    step = max(1, old.size // _ELEMENTS)
    a, b = _bits(old)[::step], _bits(new)[::step]
    changed = [x != y for x, y in zip(a, b, strict=True)]
    comparison.shares[old.name] = sum(changed) / len(changed)
    size = len(old.data)
    if not any(changed) and size <= budget[0]:
        budget[0] -= size
        if old.data == new.data:
            comparison.unchanged.add(old.name)
    shift, ones = _EXPONENTS[new.kind]
    if any((bits >> shift) & ones == ones for bits in b):
        comparison.invalid.append(old.name)
    if old.kind == "BF16":
        for bits, change in zip(a, changed, strict=True):
            counts = comparison.by_exponent.setdefault((bits >> 7) & 0xFF, [0, 0])
            counts[0] += 1
            counts[1] += change


def _bits(tensor: Tensor) -> Any:
    view: Any = tensor.data
    return view.cast({8: "Q", 4: "I", 2: "H"}[safetensors.TYPES[tensor.kind][0]])


def _judge(comparisons: list[Comparison], run: RunArtifacts) -> Result:
    last = comparisons[-1]
    share = sum(last.shares.values()) / len(last.shares)
    values: dict[str, Any] = {
        "before": last.before, "after": last.after, "share": share, "tensors": len(last.shares),
        "still": len(last.unchanged),
    }  # fmt: skip
    text = (
        "{share:.1%} of elements moved from checkpoint {before} to {after}; {still} of {tensors} tensors did"
        " not move"
    )
    fields: dict[str, Any] = {
        "estimates": (Estimate("moved", share),), "count": len(last.shares), "evidence": (note("moved", text,
        **values),),
    }  # fmt: skip
    if last.invalid:
        values |= {"names": _list(last.invalid)}
        return fault(
            "moved/nan",
            PROBE,
            "weights of checkpoint {after} are NaN or infinite: {names}",
            "NUM027",
            values=values,
            **fields,
        )
    if all(len(each.unchanged) == len(each.shares) for each in comparisons):
        rates = {row.values["lr"] for series in run.series for row in series.rows if "lr" in row.values}
        family, why = (
            ("moved/rate_zero", ": the learning rate is 0") if rates == {0.0} else ("moved/nothing", "")
        )
        message = "no weight moved from checkpoint {before} to {after}" + why
        return fault(family, PROBE, message, "CFG128", values=values, **fields)
    if frozen := _frozen(comparisons):
        values |= {"names": _list(frozen)}
        fields["estimates"] += (Estimate("tensors", tuple(frozen)),)
        message = "tensors never move while those of other layers do: {names}"
        return fault("moved/part", PROBE, message, "CFG128", values=values, **fields)
    if (edge := _lost_updates(comparisons)) is not None:
        values |= {"edge": edge}
        message = ("updates are lost in bfloat16 weights: {share:.1%} of elements moved from checkpoint"
                   " {before}" " to {after}, and"
                   " none above {edge:.2g}")  # fmt: skip
        return fault("moved/lost", PROBE, message, "NUM047", values=values, **fields)
    if last.by_exponent and share < 0.001:
        need = note("want_apart", "checkpoints that are further apart: hardly an element moved")
        return Result("moved", NOT_DECIDED, PROBE, values=values, needed=(need,), **fields)
    return Result("moved", CLEAN, PROBE, **fields)


def _frozen(comparisons: list[Comparison]) -> list[str]:
    """Return tensors that never move while those of the same name in other layers do."""
    still = set.intersection(*(each.unchanged for each in comparisons))
    moving = {_layer_kind(name) for each in comparisons for name, share in each.shares.items() if share > 0}
    # Norms and biases may stand still in bfloat16, whose steps near 1 are 1/128.
    return sorted(
        name
        for name in still
        if "norm" not in name and not name.endswith(".bias") and _layer_kind(name) in moving
    )


def _layer_kind(name: str) -> str:
    return ".".join(part for part in name.split(".") if not part.isdigit())


def _lost_updates(comparisons: list[Comparison]) -> float | None:
    """Return the magnitude from which on nothing moves; None if there is no edge."""
    totals: dict[int, list[int]] = {}
    for comparison in comparisons:
        for exponent, (count, changed) in comparison.by_exponent.items():
            counts = totals.setdefault(exponent, [0, 0])
            counts[0] += count
            counts[1] += changed
    shares = {exponent: changed / count for exponent, (count, changed) in totals.items() if count >= 100}
    moving = [exponent for exponent, share in shares.items() if share > 0.4]
    if not moving:
        return None
    top = max(moving)
    # If float32 weights were kept, an eighth of that share would move three binades further.
    for exponent in sorted(exponent for exponent in shares if exponent >= top + 3):
        count = totals[exponent][0]
        expected = shares[top] * 2.0 ** (top - exponent)
        deficit = expected - shares[exponent]
        if (
            expected * count >= 20
            and deficit > 0.9 * expected
            and deficit * count > 6 * math.sqrt(expected * count)
        ):
            return float(2.0 ** (exponent - 127))
    return None


def _list(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
