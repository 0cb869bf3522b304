"""Compare consecutive checkpoints (P13): find unmoved weights, frozen tensors, NaN, and updates lost in bfloat16.

At most three pairs of checkpoints are compared, by a few thousand evenly spaced elements of each tensor. NaN is
reported only if one of these elements of the last compared checkpoint is NaN or infinite. "Did not move" is reported
only after all bytes were compared, up to 4 GiB.

A bfloat16 weight loses an update smaller than half the spacing of its values (half an ulp). If bfloat16 weights are
trained, small ones change and large ones do not, with a sharp edge. Weights trained in float32 and saved in bfloat16
have no such edge: among weights twice as large, half as many change.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

from diagnostics.audit.recorded import safetensors
from diagnostics.audit.recorded.run_data import Checkpoint, RunArtifacts
from diagnostics.audit.recorded.safetensors import Tensor
from diagnostics.audit.results import Estimate, Result, clean, fault, note, skipped, undecided
from diagnostics.fixes import join_some
from diagnostics.safe_io import GIB, MIB

_SAMPLED_ELEMENTS, _MAX_PAIRS, _MAX_TENSORS, _MAX_BYTES = 4096, 3, 4000, 4 * GIB
# For each floating-point dtype: bits of the fraction, mask of the exponent, and code of the integer of the same width.
_EXPONENTS = {"BF16": (7, 0xFF, "H"), "F16": (10, 0x1F, "H"), "F32": (23, 0xFF, "I"), "F64": (52, 0x7FF, "Q")}


@dataclass
class Comparison:
    """The changes between two checkpoints.

    Attributes:
        before: Step of the earlier checkpoint.
        after: Step of the later checkpoint.
        shares: Fraction of compared elements that changed, by tensor.
        unchanged: Tensors whose bytes were all compared, and are equal.
        invalid: Tensors with NaN or infinity among the compared elements of the later checkpoint.
        compared: Number of compared bfloat16 elements, by exponent of the earlier value.
        changed: Number of changed bfloat16 elements, by exponent of the earlier value.
    """

    before: int
    after: int
    shares: dict[str, float] = field(default_factory=dict)
    unchanged: set[str] = field(default_factory=set)
    invalid: list[str] = field(default_factory=list)
    compared: Counter[int] = field(default_factory=Counter)
    changed: Counter[int] = field(default_factory=Counter)

    def add(self, old: Tensor, new: Tensor, budget: list[int]) -> None:
        """Add the comparison of one tensor; reduce `budget[0]`, the number of bytes left for complete comparisons."""
        step = max(1, old.size // _SAMPLED_ELEMENTS)
        shift, ones, width = _EXPONENTS[new.dtype]
        a, b = (list(tensor.data.cast(width)[::step]) for tensor in (old, new))  # type: ignore[call-overload]
        changed = [x != y for x, y in zip(a, b, strict=True)]
        self.shares[old.name] = sum(changed) / len(changed)
        if not any(changed) and len(old.data) <= budget[0]:
            budget[0] -= len(old.data)
            # In parts: `cpu_limit` does not interrupt a comparison of gigabytes.
            parts = (slice(at, at + MIB) for at in range(0, len(old.data), MIB))
            if all(bytes(old.data[part]) == bytes(new.data[part]) for part in parts):
                self.unchanged.add(old.name)
        if any((bits >> shift) & ones == ones for bits in b):
            self.invalid.append(old.name)
        if old.dtype == "BF16":
            exponents = [(bits >> shift) & ones for bits in a]
            self.compared.update(exponents)
            self.changed.update(compress(exponents, changed))


def check_checkpoints(run: RunArtifacts) -> Iterator[Result]:
    """Compare consecutive checkpoints of a run and yield one result; unreadable checkpoints are added to `run.unread`.

    If all logged learning rates are 0, the message for unmoved weights says so.
    """
    numbered = [checkpoint for checkpoint in run.checkpoints if checkpoint.step >= 0]
    comparisons: list[Comparison] = []
    budget = [_MAX_BYTES]
    for before, after in _choose_pairs(numbered):
        try:
            comparison = _compare(before, after, budget)
        except (OSError, ValueError, KeyError, TypeError) as error:
            run.unread.add(after.folder, error)
            continue
        if comparison.shares:
            comparisons.append(comparison)
    if comparisons:
        rates = {row.values["lr"] for series in run.series for row in series.rows if "lr" in row.values}
        yield _judge(comparisons, rates)
    else:
        yield skipped("moved", "want_checkpoints", count=len(numbered))


def _choose_pairs(checkpoints: list[Checkpoint]) -> list[tuple[Checkpoint, Checkpoint]]:
    """Return at most three pairs of consecutive checkpoints: the first, a middle one, the last.

    They have the same files and the same parent folder; of several such series, the longest is used.
    """
    chains: dict[tuple[Path, tuple[str, ...]], list[Checkpoint]] = {}
    for checkpoint in checkpoints:
        key = (checkpoint.folder.parent, tuple(path.name for path in checkpoint.files))
        chains.setdefault(key, []).append(checkpoint)
    longest = max(chains.values(), key=len, default=[])
    pairs = [(before, after) for before, after in pairwise(longest) if before.step != after.step]
    return pairs if len(pairs) <= _MAX_PAIRS else [pairs[0], pairs[len(pairs) // 2], pairs[-1]]


def _compare(before: Checkpoint, after: Checkpoint, budget: list[int]) -> Comparison:
    """Compare the floating-point tensors of equal name, dtype and shape, at most 4000 of them."""
    comparison = Comparison(before.step, after.step)
    old, new = (
        {name: tensor for path in checkpoint.files for name, tensor in safetensors.map_file(path).items()}
        for checkpoint in (before, after)
    )
    for name in sorted(set(old) & set(new))[:_MAX_TENSORS]:
        same_form = (old[name].dtype, old[name].shape) == (new[name].dtype, new[name].shape)
        if same_form and old[name].dtype in _EXPONENTS and old[name].size:
            comparison.add(old[name], new[name], budget)
    return comparison


def _judge(comparisons: list[Comparison], rates: set[float]) -> Result:
    """Return the first fault that the comparisons show, else clean; undecided if bfloat16 weights hardly moved.

    NaN and the numbers are those of the last comparison.
    """
    last = comparisons[-1]
    count = len(last.shares)
    share = sum(last.shares.values()) / count
    values: dict[str, Any] = {"before": last.before, "after": last.after, "share": share}
    values |= {"tensors": count, "still": len(last.unchanged)}
    estimates, evidence = (Estimate("moved", share),), (note("moved", **values),)
    fields: dict[str, Any] = {"estimates": estimates, "count": count, "evidence": evidence}
    if last.invalid:
        return fault("moved/nan", values | {"names": join_some(last.invalid, 4)}, **fields)
    if all(len(comparison.unchanged) == len(comparison.shares) for comparison in comparisons):
        return fault("moved/rate_zero" if rates == {0.0} else "moved/nothing", values, **fields)
    if frozen := _frozen_tensors(comparisons):
        fields["estimates"] += (Estimate("tensors", tuple(frozen)),)
        return fault("moved/part", values | {"names": join_some(frozen, 4)}, **fields)
    if (edge := _lost_updates(comparisons)) is not None:
        return fault("moved/lost", values | {"edge": edge}, **fields)
    if last.compared and share < 0.001:
        return undecided("moved", note("want_apart"), values=values, **fields)
    return clean("moved", **fields)


def _frozen_tensors(comparisons: list[Comparison]) -> list[str]:
    """Return tensors without a change in all comparisons, if the corresponding tensors of other layers change.

    Norms and biases are left out.
    """
    still = set.intersection(*(comparison.unchanged for comparison in comparisons))
    shares = (item for comparison in comparisons for item in comparison.shares.items())
    moving = {_layer_kind(name) for name, share in shares if share > 0}
    # Norms and biases may not move in bfloat16, whose steps near 1 are 1/128.
    may_move = (name for name in still if "norm" not in name and not name.endswith(".bias"))
    return sorted(name for name in may_move if _layer_kind(name) in moving)


def _layer_kind(name: str) -> str:
    """Return a tensor's name without numbers, such as the layer's."""
    return ".".join(part for part in name.split(".") if not part.isdigit())


def _lost_updates(comparisons: list[Comparison]) -> float | None:
    """Return the magnitude above which hardly any weight changes; None if there is no such edge."""
    compared = sum((comparison.compared for comparison in comparisons), Counter[int]())
    changed = sum((comparison.changed for comparison in comparisons), Counter[int]())
    shares = {exponent: changed[exponent] / count for exponent, count in compared.items() if count >= 100}
    top = max((exponent for exponent, share in shares.items() if share > 0.4), default=None)
    if top is None:
        return None
    # If float32 weights were kept, an eighth of that share would move three binades further.
    for exponent in sorted(exponent for exponent in shares if exponent >= top + 3):
        count, expected = compared[exponent], shares[top] * 2.0 ** (top - exponent)
        deficit = expected - shares[exponent]
        is_sure = deficit > 0.9 * expected and deficit * count > 6 * math.sqrt(expected * count)
        if is_sure and expected * count >= 20:
            return float(2.0 ** (exponent - 127))
    return None
