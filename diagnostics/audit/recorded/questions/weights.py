"""P13: consecutive checkpoints, tensor by tensor: what moved, what never did, and what bfloat16 could not hold.

Of each tensor some thousand elements, evenly spaced; that one did not move at all is said only after all of its bytes
were compared. An update that is smaller than half of the last place of a bfloat16 weight is lost: elements of small
magnitude move and larger ones never do, with a sharp edge between. Weights that are kept in float32 and only saved so
have no edge: of elements twice as large half as many move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.audit.model import CLEAN, FAULT, NOT_ASKED, NOT_DECIDED, Estimate, Fact, ProbeAnswer
from diagnostics.audit.recorded.readers import safetensors
from diagnostics.audit.recorded.rows import Unread
from diagnostics.collect.secrets import cut

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from diagnostics.audit.recorded.readers.safetensors import Tensor
    from diagnostics.audit.recorded.rows import Checkpoint, Remains

PROBE = "P13"
_ELEMENTS, _PAIRS, _TENSORS, _BYTES = 4096, 3, 4000, 4 * given.GIB
_FLOATS = {"F64", "F32", "F16", "BF16"}


@dataclass
class Moved:
    """What became of the tensors between two checkpoints.

    Attributes:
        shares: Share of the looked-at elements that changed, by tensor.
        still: Tensors whose bytes are all the same.
        nan: Tensors with an element that is no number, in the later one.
        edge: By exponent of the element before: how many were looked at, and how many changed; bfloat16 alone.
        unlike: Tensors that are not in both, or of another shape or type.
    """

    before: int
    after: int
    shares: dict[str, float] = field(default_factory=dict)
    still: list[str] = field(default_factory=list)
    nan: list[str] = field(default_factory=list)
    edge: dict[int, list[int]] = field(default_factory=dict)
    unlike: list[str] = field(default_factory=list)


def ask(remains: Remains, unread: list[Unread]) -> Iterator[ProbeAnswer]:
    """One answer for the checkpoints of a run."""
    numbered = [each for each in remains.checkpoints if each.step >= 0]
    pairs = _pairs(numbered)
    found: list[Moved] = []
    left = [_BYTES]
    for before, after in pairs:
        try:
            moved = _compared(before, after, left)
        except (OSError, ValueError, KeyError, TypeError) as error:
            unread.append(Unread(str(after.folder), cut(str(error), 200)))
            continue
        if moved.shares:
            found.append(moved)
    if not found:
        yield ProbeAnswer(
            "moved", NOT_ASKED, PROBE, wanted=(Fact("want_checkpoints", {"count": len(numbered)}),)
        )
        return
    yield _judged(found, remains)


def _pairs(numbered: list[Checkpoint]) -> list[tuple[Checkpoint, Checkpoint]]:
    """Neighbours with tensors of the same kind of file: the first pair, the last, one between."""
    kinds: dict[tuple[Path, tuple[str, ...]], list[Checkpoint]] = {}
    for each in numbered:
        kinds.setdefault((each.folder.parent, tuple(path.name for path in each.files)), []).append(each)
    chain = max(kinds.values(), key=len, default=[])
    pairs = [(one, other) for one, other in pairwise(chain) if one.step != other.step]
    return pairs if len(pairs) <= _PAIRS else [pairs[0], pairs[len(pairs) // 2], pairs[-1]]


def _compared(before: Checkpoint, after: Checkpoint, left: list[int]) -> Moved:
    moved = Moved(before.step, after.step)
    old, new = _tensors(before), _tensors(after)
    moved.unlike = sorted(set(old) ^ set(new))
    for name in sorted(set(old) & set(new))[:_TENSORS]:
        one, other = old[name], new[name]
        if (one.kind, one.shape) != (other.kind, other.shape):
            moved.unlike.append(name)
        elif one.kind in _FLOATS and one.size:
            _compare(moved, name, one, other, left)
    return moved


def _tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path in checkpoint.files:
        found |= safetensors.mapped(path)
    return found


def _compare(moved: Moved, name: str, one: Tensor, other: Tensor, left: list[int]) -> None:
    step = max(1, one.size // _ELEMENTS)
    letter = {8: "Q", 4: "I", 2: "H"}[safetensors.TYPES[one.kind][0]]
    a: list[int] = list(_bits(one, letter)[::step])
    b: list[int] = list(_bits(other, letter)[::step])
    changed = [x != y for x, y in zip(a, b, strict=True)]
    moved.shares[name] = sum(changed) / len(changed)
    if not any(changed):
        size = len(one.data)
        if size <= left[0]:
            left[0] -= size
            if one.data == other.data:
                moved.still.append(name)
    if any(_is_nan(value, other.kind) for value in b):
        moved.nan.append(name)
    if one.kind == "BF16":
        for value, change in zip(a, changed, strict=True):
            held = moved.edge.setdefault((value >> 7) & 0xFF, [0, 0])
            held[0] += 1
            held[1] += change


def _bits(tensor: Tensor, letter: str) -> Any:
    view: Any = tensor.data
    return view.cast(letter)


_EXPONENTS = {"BF16": (7, 0xFF), "F16": (10, 0x1F), "F32": (23, 0xFF), "F64": (52, 0x7FF)}


def _is_nan(bits: int, kind: str) -> bool:
    """All ones in the exponent: NaN, or infinite, which no weight is either."""
    shift, ones = _EXPONENTS[kind]
    return (bits >> shift) & ones == ones


def _judged(found: list[Moved], remains: Remains) -> ProbeAnswer:
    last = found[-1]
    share = sum(last.shares.values()) / len(last.shares)
    estimates: tuple[Estimate, ...] = (Estimate("moved", share),)
    values: dict[str, Any] = {
        "before": last.before,
        "after": last.after,
        "share": share,
        "tensors": len(last.shares),
        "still": len(last.still),
    }
    facts = (Fact("moved", values),)
    count = len(last.shares)
    if last.nan:
        values |= {"names": _told(last.nan)}
        return ProbeAnswer("moved/nan", FAULT, PROBE, "NUM027", values, estimates, count=count, facts=facts)
    if all(len(moved.still) == len(moved.shares) for moved in found):
        zero = _rates(remains) == [0.0]
        family, code = ("moved/rate_zero", "CFG128") if zero else ("moved/nothing", "CFG128")
        return ProbeAnswer(family, FAULT, PROBE, code, values, estimates, count=count, facts=facts)
    if frozen := _frozen(found):
        values |= {"names": _told(frozen)}
        estimates += (Estimate("tensors", tuple(frozen)),)
        return ProbeAnswer("moved/part", FAULT, PROBE, "CFG128", values, estimates, count=count, facts=facts)
    lost = _lost(found)
    if lost is not None:
        values |= {"edge": lost}
        return ProbeAnswer("moved/lost", FAULT, PROBE, "NUM047", values, estimates, count=count, facts=facts)
    if last.edge and share < 0.001:
        return ProbeAnswer("moved", NOT_DECIDED, PROBE, values=values, count=count, facts=facts,
                           wanted=(Fact("want_apart"),))  # fmt: skip
    return ProbeAnswer("moved", CLEAN, PROBE, estimates=estimates, count=count, facts=facts)


def _rates(remains: Remains) -> list[float]:
    return sorted(
        {row.values["lr"] for series in remains.series for row in series.rows if "lr" in row.values}
    )


def _frozen(found: list[Moved]) -> list[str]:
    """Tensors that never move while those of the same name in other layers do; or all of one name where most move."""
    still = set.intersection(*(set(moved.still) for moved in found))
    big = {name for name in still if not _is_small(name)}
    moving = {_kind(name) for moved in found for name, share in moved.shares.items() if share > 0}
    return sorted(name for name in big if _kind(name) in moving)


def _is_small(name: str) -> bool:
    """Norms and biases: those of a whole model may stand still in bfloat16, whose steps near 1 are 1/128."""
    return "norm" in name or name.endswith(".bias")


def _kind(name: str) -> str:
    return ".".join(part for part in name.split(".") if not part.isdigit())


def _lost(found: list[Moved]) -> float | None:
    """The magnitude from which on nothing moves, where there is an edge; None where there is none."""
    edge: dict[int, list[int]] = {}
    for moved in found:
        for exponent, (count, changed) in moved.edge.items():
            held = edge.setdefault(exponent, [0, 0])
            held[0] += count
            held[1] += changed
    told = {exponent: changed / count for exponent, (count, changed) in edge.items() if count >= 100}
    moving = [exponent for exponent, share in told.items() if share > 0.4]
    if not moving:
        return None
    top = max(moving)
    # Kept in float32, three binades further an eighth of that would move.
    for exponent in sorted(told):
        count = edge[exponent][0]
        expected = told[top] * 2.0 ** (top - exponent)
        if exponent >= top + 3 and expected * count >= 20:
            share = told[exponent]
            if share < 0.1 * expected and (expected - share) * count > 6 * math.sqrt(expected * count):
                return float(2.0 ** (exponent - 127))
    return None


def _told(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
