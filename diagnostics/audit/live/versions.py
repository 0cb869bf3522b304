"""P3 and P4: which weights the engine holds instead, and which tensors of them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.audit.live.reference import Reference

_LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
# More groups than this are told apart by blocks of layers.
_MOST = 12
# A part explains all but so much of what is off, and be it only roughly; else nothing of it is looked at further.
_EXPLAINS = 0.6
# Deviations beyond the newest checkpoint, and the cosine between what is off there and the last step: of newer weights
# it was 0.25 and more, of noise, other types and other runs 0.03 and less.
_BEYOND, _ALIKE = 4.0, 0.15


@dataclass(frozen=True)
class Slope:
    """How far the engine's numbers lie on the way from one checkpoint's to another's.

    Attributes:
        value: 0 at the first, 1 at the second.
        error: One deviation of it.
        left: What is off, on average, after that.
        apart: How far the two are from each other, root mean square.
    """

    value: float
    error: float
    left: float
    apart: float


def slope(difference: Any, apart: Any) -> Slope:
    """The projection of one vector on another."""
    norm = float(apart @ apart)
    if norm == 0:
        return Slope(0.0, math.inf, float(difference.abs().mean()), 0.0)
    value = float(difference @ apart) / norm
    left = difference - value * apart
    # By token: a token with a large difference and a large error counts with both.
    error = math.sqrt(float((left.square() * apart.square()).sum())) / norm
    return Slope(value, error, float(left.abs().mean()), math.sqrt(norm / len(apart)))


@dataclass(frozen=True)
class Newer:
    """An engine that went on from where the newest known weights are, the way that they had come.

    Attributes:
        newest: Their name.
        before: Of those before them.
        slope: 0 at those before, 1 at the newest: it is above 1.
    """

    newest: str
    before: str
    slope: Slope


def newer(known: Sequence[tuple[Reference, Any]], engine: Any) -> Newer | None:
    """Whether an engine that is none of the known is newer than all of them.

    Beyond the newest is not enough: much older weights may be, too, and weights with noise go nowhere. What is off
    from the newest has to point where the last step pointed.

    Args:
        known: Weights with what they say of the scored ids.
        engine: What the engine says of them.
    """
    numbered = sorted(
        (pair for pair in known if pair[0].step is not None), key=lambda pair: pair[0].step or 0
    )
    if len(numbered) < 2:
        return None
    (before, was), (newest, now) = numbered[-2:]
    further, last = engine - now, now - was
    if min(known, key=lambda pair: float((engine - pair[1]).abs().mean()))[0] is not newest:
        return None
    found = slope(engine - was, last)
    alike = float(further @ last) / (float(further.norm()) * float(last.norm()) or 1.0)
    beyond = found.value - 1 > _BEYOND * found.error and alike > _ALIKE
    return Newer(newest.name, before.name, found) if beyond else None


def is_oldest(one: Reference, known: Sequence[Reference]) -> bool:
    """Whether the order of the steps is known, and none of them is before it."""
    steps = [each.step for each in known]
    return one.step is not None and None not in steps and all(one.step <= (each or 0) for each in steps)


def groups(names: Sequence[str]) -> dict[str, list[str]]:
    """Tensors by where they stand: embedding, each layer (or block of layers), and what comes behind."""
    layers = sorted({int(found[1]) for name in names if (found := _LAYER.search(name))})
    step = max(1, math.ceil(len(layers) / (_MOST - 2)))
    made: dict[str, list[str]] = {}
    for name in names:
        found = _LAYER.search(name)
        if found:
            first = int(found[1]) // step * step
            last = min(first + step - 1, layers[-1])
            called = f"layer {first}" if step == 1 else f"layers {first} to {last}"
        elif "embed" in name or "wte" in name:
            called = "embedding"
        else:
            called = "head and last norm"
        made.setdefault(called, []).append(name)
    return made


@dataclass(frozen=True)
class Share:
    """Which groups are still those of another checkpoint.

    Attributes:
        stale: Their names.
        shares: Of each group, how much of the other it is, with a deviation.
        left: What is off with these groups swapped.
        mixed: The weights that the engine then holds.
    """

    stale: tuple[str, ...]
    shares: dict[str, tuple[float, float]]
    left: float
    mixed: Reference


def share(
    reference: Reference,
    other: Reference,
    sequences: Sequence[Sequence[int]],
    engine: Any,
    dtype: str,
    enough: float,
) -> Share | None:
    """Regresses what the engine is off by on what each group alone makes; then swaps those and looks again.

    Args:
        reference: The weights that the engine should hold.
        other: Those that a part of it may be of.
        sequences: What was scored.
        engine: What the engine says of it.
        dtype: The type it computes in.
        enough: What may be left.
    """
    import torch

    named = groups(list(reference.state))
    if not reference.fits(other) or len(named) < 2:
        return None
    right = reference.scores(sequences, dtype)
    columns = []
    for members in named.values():
        inside = frozenset(members)
        made = reference.mixed(other, inside.__contains__)
        columns.append(made.scores(sequences, dtype) - right)
    matrix = torch.stack(columns, dim=1)
    used = [place for place in range(len(columns)) if float(matrix[:, place].abs().max()) > 0]
    if not used:
        return None
    part = matrix[:, used]
    inverse = torch.linalg.pinv(part.T @ part)
    found = inverse @ part.T @ (engine - right)
    left = engine - right - part @ found
    if float(left.abs().mean()) > _EXPLAINS * float((engine - right).abs().mean()):
        return None
    deviation = (inverse.diagonal() * left.square().mean()).sqrt()
    keys = list(named)
    shares = {keys[place]: (float(found[i]), float(deviation[i])) for i, place in enumerate(used)}
    return _settled(reference, other, sequences, engine, dtype, named, shares, enough)


def _settled(
    reference: Reference,
    other: Reference,
    sequences: Sequence[Sequence[int]],
    engine: Any,
    dtype: str,
    named: dict[str, list[str]],
    shares: dict[str, tuple[float, float]],
    enough: float,
) -> Share:
    """Effects of groups add up only nearly: from the first guess one group more or less at a time, while that helps."""
    stale = {name for name, (value, _) in shares.items() if value > 0.5}

    def swapped(names: set[str]) -> tuple[float, Reference]:
        inside = frozenset(tensor for name in names for tensor in named[name])
        made = reference.mixed(other, inside.__contains__)
        return float((engine - made.scores(sequences, dtype)).abs().mean()), made

    left, made = swapped(stale)
    for _ in range(len(shares)):
        if left <= enough:
            break
        tried = [(swapped(stale ^ {name}), name) for name in shares]
        (least, best), name = min(tried, key=lambda each: each[0][0])
        if least >= 0.98 * left:
            break
        left, made, stale = least, best, stale ^ {name}
    return Share(tuple(sorted(stale)), shares, left, made)


@dataclass(frozen=True)
class Times:
    """How often an adapter is added.

    Attributes:
        value: 1 as it should be, 0 where it is not.
        error: One deviation of it.
        left: What is off with it so.
        weights: The weights that the engine then holds.
    """

    value: float
    error: float
    left: float
    weights: Reference


def times(reference: Reference, sequences: Sequence[Sequence[int]], engine: Any, dtype: str) -> Times:
    """By the slope between two values, from one on: of weights the scores are no straight line."""
    before, told_before = 0.0, reference.scaled(0.0).scores(sequences, dtype)
    value, held = 1.0, reference
    told = reference.scores(sequences, dtype)
    for _ in range(6):
        found = slope(engine - told, (told - told_before) / (value - before))
        if abs(found.value) < max(0.002, 0.1 * found.error):
            break
        before, told_before = value, told
        value = min(8.0, max(-8.0, value + found.value))
        held = reference.scaled(value)
        told = held.scores(sequences, dtype)
    return Times(value, found.error, float((engine - told).abs().mean()), held)
