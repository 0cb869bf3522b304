"""P1, P3, P4: whether the engine's weights are the checkpoint's; if not, whose, how far on the way, which tensors.

What is scored are ids that the audit chose, so that no sampling parameter and no template has a say.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from diagnostics.audit.live import versions
from diagnostics.audit.live.cutting import CUT, ROUNDED
from diagnostics.audit.live.reference import DTYPES
from diagnostics.audit.model import CLEAN, FAULT, NOT_DECIDED, Estimate, Fact, ProbeAnswer, RunnerUp

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diagnostics.audit.live.reference import Reference

# How many times the floor is an alarm, and how many leave it open. An engine of 16 bits is off by 0.9 to 1.2 times what
# the same forward in PyTorch is; kernels of 32 bits differ more among themselves, and by less than matters. Of one that
# cuts numbers off 1.3 times the floor is left when what that makes on average is taken away.
ALARM = {"float32": 12.0, "bfloat16": 1.6, "float16": 1.6, CUT: 1.6}
OPEN = {"float32": 6.0, "bfloat16": 1.3, "float16": 1.3, CUT: 1.45}
_LEAST_FLOOR = 2e-6
_SURE = 4.0


@dataclass
class Weighed:
    """What came of it, for what is asked next.

    Attributes:
        answers: One of the weights.
        holds: The weights that the engine computes with; None: nobody knows.
        dtype: The type it computes in.
        floor: What that makes.
        pictures: Differences by place, for a page.
    """

    answers: list[ProbeAnswer]
    holds: Reference | None
    dtype: str
    floor: float
    pictures: dict[str, Any] = field(default_factory=dict)

    @property
    def explained(self) -> bool:
        """Whether some weights leave no more than arithmetic does."""
        left, alarm = self.answers[0].residual, self.answers[0].alarm
        return self.holds is not None and left is not None and alarm is not None and left <= alarm


@dataclass(frozen=True)
class _Measured:
    dtype: str
    exact: Any
    floor: float
    off: float

    @property
    def times(self) -> float:
        return self.off / self.floor


def measured(
    reference: Reference, sequences: Sequence[Sequence[int]], engine: Any, dtype: str, exact: Any = None
) -> _Measured:
    """How far the engine is from a checkpoint, in a type, and how far that type is from itself."""
    exact = reference.scores(sequences, dtype) if exact is None else exact
    floor = 0.0
    # Of a large one both are computed in 32 bits, then.
    if dtype != "float32" or not reference.large:
        floor = float((reference.scores(sequences, dtype, native=True) - exact).abs().mean())
    return _Measured(dtype, exact, max(floor, _LEAST_FLOOR), float((engine - exact).abs().mean()))


def weigh(
    reference: Reference,
    others: Sequence[Reference],
    sequences: Sequence[Sequence[int]],
    engine: Any,
    dtype: str = "",
    staleness: int = 0,
) -> Weighed:
    """Judges scores of the engine.

    Args:
        reference: The weights that it should hold.
        others: Weights that it may hold, the likeliest first.
        sequences: What was scored.
        engine: What the engine says of each id but the first of each, one after the other.
        dtype: The type it computes in; empty: not known.
        staleness: How many of the others, the nearest first, are no fault.
    """
    best = _in_its_type(reference, sequences, engine, dtype)
    found = _weighed(reference, others, sequences, engine, best, staleness)
    open_ = found.answers[0].outcome == NOT_DECIDED
    if best.dtype != ROUNDED or (found.explained and not open_):
        return found
    # What no weights explain may be kernels that cut numbers off; then that has to explain all but the same floor.
    exact = reference.scores(sequences, CUT)
    cut = _Measured(CUT, exact, best.floor, float((engine - exact).abs().mean()))
    again = _weighed(reference, others, sequences, engine, cut, staleness)
    # Of two that are open the plain one.
    return again if again.explained and not (open_ and again.answers[0].outcome == NOT_DECIDED) else found


def _weighed(
    reference: Reference,
    others: Sequence[Reference],
    sequences: Sequence[Sequence[int]],
    engine: Any,
    best: _Measured,
    staleness: int,
) -> Weighed:
    """By a type, and its floor."""
    weighed = Weighed([], reference, best.dtype, best.floor)
    facts = [Fact("type", {"dtype": best.dtype, "kept": reference.dtype})]
    fitting, told = [], {}
    for each in others:
        if reference.fits(each):
            fitting.append(each)
            told[each.folder] = each.scores(sequences, best.dtype)
        each.release()
    facts += [Fact("does_not_fit", {"name": each.name}) for each in others if each not in fitting]
    weighed.pictures = _pictures(reference, best, engine, sequences, fitting, told)
    answer = ProbeAnswer(
        "weights", CLEAN, "P1", residual=best.off, floor=best.floor, alarm=ALARM[best.dtype] * best.floor,
        count=len(engine), decisive=True,
    )  # fmt: skip
    found = _version(fitting, told, engine, best, reference)
    facts += found.facts
    if found.answer is not None:
        answer, weighed.holds = allowed(found.answer, fitting, staleness), found.holds
    elif best.times > ALARM[best.dtype]:
        answer, weighed.holds = _unknown(answer, reference, fitting, sequences, engine, best, told)
    elif best.times > OPEN[best.dtype]:
        # Three times as many ids: about half of the tokens are scored.
        more = len(engine) * 5
        answer = replace(answer, outcome=NOT_DECIDED, wanted=(Fact("more_tokens", {"tokens": more}),))
    weighed.answers = [replace(answer, facts=(*answer.facts, *facts))]
    return weighed


def _pictures(
    reference: Reference,
    best: _Measured,
    engine: Any,
    sequences: Sequence[Sequence[int]],
    others: Sequence[Reference],
    told: dict[Path, Any],
) -> dict[str, Any]:
    """Numbers that a page draws."""
    difference = engine - best.exact
    rows = difference.abs().split([len(one) - 1 for one in sequences])
    shortest = min(len(one) for one in rows)
    position = sum(one[:shortest] for one in rows) / len(rows)
    versions_off = {each.name: float((engine - told[each.folder]).abs().mean()) for each in others}
    return {
        "difference": [round(one, 7) for one in difference.tolist()[:2000]],
        "position": [round(one, 7) for one in position.tolist()],
        "versions": {reference.name: best.off, **versions_off},
        "floor": best.floor,
    }


def _in_its_type(
    reference: Reference, sequences: Sequence[Sequence[int]], engine: Any, dtype: str
) -> _Measured:
    """By the type that the server names; else the finest of those in which it is at the floor."""
    if dtype in DTYPES:
        return measured(reference, sequences, engine, dtype)
    found = first = measured(reference, sequences, engine, "float32")
    # Of a large checkpoint nobody serves one half of 16 bits as the other, and each type takes its time.
    skipped = "float16" if reference.large and reference.dtype == "bfloat16" else ""
    for kind in ("float16", "bfloat16"):
        if found.times <= OPEN[found.dtype]:
            break
        if kind != skipped:
            # Weights that are kept in a type are not rounded to it.
            same = first.exact if reference.dtype == kind and not reference.has_adapter else None
            found = measured(reference, sequences, engine, kind, same)
    # Of wrong weights the differences say nothing of the type: then the coarsest floor, so that no type is a fault.
    return found


@dataclass(frozen=True)
class _Version:
    answer: ProbeAnswer | None = None
    holds: Reference | None = None
    facts: tuple[Fact, ...] = ()


def _version(
    others: Sequence[Reference],
    told_by: dict[Path, Any],
    engine: Any,
    best: _Measured,
    reference: Reference,
) -> _Version:
    """Which of the checkpoints it is, as far as their differences tell."""
    difference = engine - best.exact
    seen, facts = [], []
    for other in others:
        found = versions.slope(difference, told_by[other.folder] - best.exact)
        off = float((engine - told_by[other.folder]).abs().mean())
        seen.append((off, found, other))
        if found.apart == 0 or found.error > 0.2:
            facts.append(Fact("too_near", {"name": other.name, "apart": found.apart}))
        else:
            values = {"name": other.name, "slope": found.value, "error": found.error, "apart": found.apart}
            facts.append(Fact("slope", values))
    told = [each for each in seen if each[1].apart > 0 and each[1].error <= 0.2]
    if not told:
        return _Version(facts=tuple(facts))
    off, found, other = min(told, key=lambda each: each[0])
    nearer = off < best.off and abs(found.value - 1) < max(0.1, _SURE * found.error) and found.value > 0.5
    if not (nearer and off <= ALARM[best.dtype] * best.floor and found.value > _SURE * found.error):
        return _Version(facts=tuple(facts))
    rest = sorted(each[0] for each in seen if each[2] is not other)
    named = ProbeAnswer(
        "weights/version", FAULT, "P3",
        code="SYN003" if other.name == "base" else "",
        values={"name": other.name},
        estimates=(
            Estimate("version", other.name, expected=reference.name),
            Estimate("slope", found.value, found.value - 2 * found.error, found.value + 2 * found.error, 0.0),
        ),
        residual=off, floor=best.floor, alarm=ALARM[best.dtype] * best.floor,
        runner_up=RunnerUp("the next nearest", min([*rest, best.off])), count=len(engine), decisive=True,
    )  # fmt: skip
    return _Version(named, other, tuple(facts))


def allowed(answer: ProbeAnswer, others: Sequence[Reference], staleness: int) -> ProbeAnswer:
    """A version that the trainer's own staleness allows is no fault."""
    allowed = [each.name for each in others[:staleness]]
    if answer.values.get("name") not in allowed:
        return answer
    return replace(
        answer, family="weights", outcome=CLEAN, code="", facts=(Fact("stale_allowed", answer.values),)
    )


def _unknown(
    answer: ProbeAnswer,
    reference: Reference,
    others: Sequence[Reference],
    sequences: Sequence[Sequence[int]],
    engine: Any,
    best: _Measured,
    told_by: dict[Path, Any],
) -> tuple[ProbeAnswer, Reference | None]:
    """Other weights than any that it was compared with: a part of one, on the way to one, or something else."""
    limit = ALARM[best.dtype] * best.floor
    difference = engine - best.exact
    if reference.has_adapter:
        added = versions.times(reference, sequences, engine, best.dtype)
        if added.left <= limit:
            told = Estimate(
                "adapter", added.value, added.value - 2 * added.error, added.value + 2 * added.error, 1.0
            )
            return replace(
                answer, family="weights/adapter", outcome=FAULT, probe="P3", values={"times": added.value},
                estimates=(told,), residual=added.left, runner_up=RunnerUp("the adapter once", best.off),
            ), added.weights  # fmt: skip
    slopes = [(versions.slope(difference, told_by[each.folder] - best.exact), each) for each in others]
    slopes = sorted((pair for pair in slopes if pair[0].apart > 0), key=lambda pair: pair[0].left)
    second = min([best.off, *(found.left for found, _ in slopes)])
    part: tuple[versions.Share, Reference] | None = None
    for other in others[: 1 if reference.large else len(others)]:
        shared = versions.share(reference, other, sequences, engine, best.dtype, limit)
        if shared and shared.stale and shared.left < (part[0].left if part else min(limit, best.off)):
            part = (shared, other)
        other.release()
    between = next((pair for pair in slopes if pair[0].error < 0.2 and pair[0].left < best.off / 2), None)
    if part:
        shared, other = part
        return replace(
            answer, family="weights/partial", outcome=FAULT, probe="P4",
            values={"tensors": ", ".join(shared.stale), "name": other.name},
            estimates=(Estimate("tensors", shared.stale), Estimate("version", other.name, expected=reference.name)),
            residual=shared.left, runner_up=RunnerUp("no single checkpoint", second),
            facts=tuple(
                Fact("group", {"name": name, "share": value, "error": error})
                for name, (value, error) in shared.shares.items()
            ),
        ), shared.mixed  # fmt: skip
    # A straight line is only nearly true of weights: half of what is off has to go with it.
    if between and between[0].left < 0.5 * best.off:
        found, other = between
        # 1 at the other: told as the way from the other to the checkpoint.
        way = 1 - found.value
        return replace(
            answer, family="weights/between" if 0 < way < 1 else "weights/beyond", outcome=FAULT, probe="P3",
            values={"slope": way, "name": other.name},
            estimates=(Estimate("way", way, way - 2 * found.error, way + 2 * found.error, 1.0),),
            residual=found.left, runner_up=RunnerUp("the checkpoint", best.off),
        ), None  # fmt: skip
    return _elsewhere(answer, sequences, difference, best), None


def _elsewhere(
    answer: ProbeAnswer, sequences: Sequence[Sequence[int]], difference: Any, best: _Measured
) -> ProbeAnswer:
    """Nothing compared explains it: from which position on, and how far off."""
    rows = difference.abs().split([len(one) - 1 for one in sequences])
    shortest = min(len(one) for one in rows)
    mean = sum(one[:shortest] for one in rows) / len(rows)
    limit = ALARM[best.dtype] * best.floor
    head, tail = float(mean[: max(4, shortest // 8)].mean()), float(mean[-shortest // 4 :].mean())
    unlike = Fact("off", {"off": best.off, "floor": best.floor, "times": best.times})
    if head < limit < tail:
        place = next(n for n in range(shortest) if float(mean[n : n + 8].mean()) > limit)
        values = {"place": place}
        return replace(answer, family="weights/position", outcome=FAULT, values=values, facts=(unlike,))
    return replace(answer, family="weights/unknown", outcome=FAULT, facts=(unlike,))
