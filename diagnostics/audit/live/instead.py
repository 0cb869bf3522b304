"""P3, P4: whose weights the engine holds instead of the checkpoint's; how far on the way, which tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from diagnostics.audit.live import precision, versions
from diagnostics.audit.model import CLEAN, FAULT, Estimate, Fact, ProbeAnswer, RunnerUp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.audit.live.precision import Scored
    from diagnostics.audit.live.reference import Reference

    # Each with what it says of the scored ids.
    Told = Sequence[tuple[Reference, Any]]

_SURE = 4.0


@dataclass(frozen=True)
class Named:
    """Which of the compared it is.

    Attributes:
        answer: That it is one; None: it is none.
        holds: Which.
        facts: How far it is on the way to each.
    """

    answer: ProbeAnswer | None = None
    holds: Reference | None = None
    facts: tuple[Fact, ...] = ()


def named(best: Scored, told: Told) -> Named:
    """Which of the checkpoints it is, as far as their differences tell."""
    seen, facts = [], []
    for other, exact in told:
        found = versions.slope(best.difference, exact - best.exact)
        seen.append((best.off_from(exact), found, other))
        if found.apart == 0 or found.error > 0.2:
            facts.append(Fact("too_near", {"name": other.name, "apart": found.apart}))
        else:
            values = {"name": other.name, "slope": found.value, "error": found.error, "apart": found.apart}
            facts.append(Fact("slope", values))
    sure = [each for each in seen if each[1].apart > 0 and each[1].error <= 0.2]
    if not sure:
        return Named(facts=tuple(facts))
    off, found, other = min(sure, key=lambda each: each[0])
    nearer = off < best.off and abs(found.value - 1) < max(0.1, _SURE * found.error) and found.value > 0.5
    there = replace(best, floor=precision.floor_of(other, best)) if nearer and off > best.limit else best
    if not (nearer and off <= there.limit and found.value > _SURE * found.error):
        return Named(facts=tuple(facts))
    rest = sorted(each[0] for each in seen if each[2] is not other)
    answer = ProbeAnswer(
        "weights/version", FAULT, "P3",
        code="SYN003" if other.name == "base" else "",
        values={"name": other.name},
        estimates=(
            Estimate("version", other.name, expected=best.reference.name),
            Estimate("slope", found.value, found.value - 2 * found.error, found.value + 2 * found.error, 0.0),
        ),
        residual=off, floor=there.floor, alarm=there.limit,
        runner_up=RunnerUp("the next nearest", min([*rest, best.off])), count=len(best.engine), decisive=True,
    )  # fmt: skip
    return Named(answer, other, tuple(facts))


def allowed(answer: ProbeAnswer, others: Sequence[Reference], staleness: int) -> ProbeAnswer:
    """A version that the trainer's own staleness allows is no fault."""
    allowed = [each.name for each in others[:staleness]]
    if answer.values.get("name") not in allowed:
        return answer
    return replace(
        answer, family="weights", outcome=CLEAN, code="", facts=(Fact("stale_allowed", answer.values),)
    )


def unknown(answer: ProbeAnswer, best: Scored, told: Told) -> tuple[ProbeAnswer, Reference | None]:
    """Other weights than any that it was compared with: a part of one, on the way to one, or something else."""
    if added := _added(answer, best):
        return added
    slopes = [(versions.slope(best.difference, exact - best.exact), each) for each, exact in told]
    slopes = sorted((pair for pair in slopes if pair[0].apart > 0), key=lambda pair: pair[0].left)
    second = min([best.off, *(found.left for found, _ in slopes)])
    if part := _part(answer, best, [each for each, _ in told], second):
        return part
    compared = [(best.reference, best.exact), *told]
    if newer := versions.newer(compared, best.engine):
        return _newer(answer, newer, second), None
    # A straight line is only nearly true of weights: half of what is off has to go with it.
    for found, other in slopes:
        if found.error < 0.2 and found.left < 0.5 * best.off:
            oldest = versions.is_oldest(other, [each for each, _ in compared])
            return _on_the_way(answer, best, found, other, oldest=oldest), None
    nearest = min(compared, key=lambda pair: best.off_from(pair[1]))[0]
    oldest = nearest is not best.reference and versions.is_oldest(nearest, [each for each, _ in compared])
    back = (Fact("go_back", {"name": nearest.name}),) if oldest else ()
    return _elsewhere(answer, best, back), None


def _added(answer: ProbeAnswer, best: Scored) -> tuple[ProbeAnswer, Reference] | None:
    """An adapter another number of times than once."""
    if not best.reference.has_adapter:
        return None
    added = versions.times(best.reference, best.sequences, best.engine, best.dtype)
    if added.left > best.limit:
        return None
    ends = (added.value - 2 * added.error, added.value + 2 * added.error)
    return replace(
        answer, family="weights/adapter", outcome=FAULT, probe="P3", values={"times": added.value},
        estimates=(Estimate("adapter", added.value, *ends, 1.0),), residual=added.left,
        runner_up=RunnerUp("the adapter once", best.off),
    ), added.weights  # fmt: skip


def _part(
    answer: ProbeAnswer, best: Scored, others: Sequence[Reference], second: float
) -> tuple[ProbeAnswer, Reference] | None:
    """Some tensors of another checkpoint."""
    part: tuple[versions.Share, Reference] | None = None
    for other in others[: 1 if best.reference.large else len(others)]:
        shared = versions.share(best.reference, other, best.sequences, best.engine, best.dtype, best.limit)
        if shared and shared.stale and shared.left < (part[0].left if part else min(best.limit, best.off)):
            part = (shared, other)
        other.release()
    if part is None:
        return None
    shared, other = part
    return replace(
        answer, family="weights/partial", outcome=FAULT, probe="P4",
        values={"tensors": ", ".join(shared.stale), "name": other.name},
        estimates=(
            Estimate("tensors", shared.stale), Estimate("version", other.name, expected=best.reference.name),
        ),
        residual=shared.left, runner_up=RunnerUp("no single checkpoint", second),
        facts=tuple(
            Fact("group", {"name": name, "share": value, "error": error})
            for name, (value, error) in shared.shares.items()
        ),
    ), shared.mixed  # fmt: skip


def _newer(answer: ProbeAnswer, found: versions.Newer, second: float) -> ProbeAnswer:
    """Beyond the newest that is known."""
    come = found.slope
    return replace(
        answer, family="weights/newer", outcome=FAULT, probe="P3",
        values={"name": found.newest, "before": found.before, "slope": come.value},
        estimates=(Estimate("way", come.value, come.value - 2 * come.error, come.value + 2 * come.error, 1.0),),
        residual=come.left, runner_up=RunnerUp("the nearest checkpoint", second), facts=(Fact("went_on"),),
    )  # fmt: skip


def _on_the_way(
    answer: ProbeAnswer, best: Scored, found: versions.Slope, other: Reference, *, oldest: bool
) -> ProbeAnswer:
    """Between two checkpoints, behind the first, or behind the second: then counted from the first to the second."""
    behind = found.value > 1
    family = ("older" if oldest else "past") if behind else "beyond" if found.value < 0 else "between"
    # 1 at the other: told as the way from the other to the checkpoint.
    way = found.value if behind else 1 - found.value
    return replace(
        answer, family=f"weights/{family}", outcome=FAULT, probe="P3",
        values={"slope": way, "name": other.name},
        estimates=(Estimate("way", way, way - 2 * found.error, way + 2 * found.error, 1.0),),
        residual=found.left, runner_up=RunnerUp("the checkpoint", best.off),
        facts=(Fact("go_back", {"name": other.name}),) if family == "older" else (),
    )  # fmt: skip


def _elsewhere(answer: ProbeAnswer, best: Scored, back: tuple[Fact, ...]) -> ProbeAnswer:
    """Nothing compared explains it: from which position on, and how far off."""
    rows = best.difference.abs().split([len(one) - 1 for one in best.sequences])
    shortest = min(len(one) for one in rows)
    mean = sum(one[:shortest] for one in rows) / len(rows)
    head, tail = float(mean[: max(4, shortest // 8)].mean()), float(mean[-shortest // 4 :].mean())
    unlike = Fact("off", {"off": best.off, "floor": best.floor, "times": best.times})
    if head < best.limit < tail:
        place = next(n for n in range(shortest) if float(mean[n : n + 8].mean()) > best.limit)
        values = {"place": place}
        return replace(answer, family="weights/position", outcome=FAULT, values=values, facts=(unlike,))
    return replace(answer, family="weights/unknown", outcome=FAULT, facts=(unlike, *back))
