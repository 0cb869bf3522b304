"""P11: the advantages computed again from rewards and groups: which dialect makes them, or which mistake.

A fault is named only where a mistake makes the recorded numbers and no right way does: (reward - baseline) / (deviation
+ epsilon) by the groups that prompts make, with every baseline and scale that trainers have.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any

from diagnostics.audit.model import (
    CLEAN,
    FAULT,
    NOT_ASKED,
    NOT_DECIDED,
    Estimate,
    Fact,
    ProbeAnswer,
    RunnerUp,
)
from diagnostics.audit.recorded.questions.figures import mean, spread
from diagnostics.audit.recorded.rows import groups_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diagnostics.audit.recorded.rows import Recording, Remains, Row

    Groups = list[list[int]]

PROBE = "P11"
_ENOUGH, _MOST = 8, 4096
_PEERS = ("group", "leave_one_out", "batch", "none")
# As trainers have them (grpo_core/learn/dialects.py); those that can't be told apart by the numbers count as one.
_EPSILONS = (1e-4, 1e-6, 1e-8, 0.0)
# Float32 all along: a few units in its last place, of numbers about 1.
_TOLERANCE = 2e-4


class Step:
    """The numbers of one step: rewards and advantages of its rows, and the groups of their places."""

    def __init__(self, rows: Sequence[Row], rewards: Sequence[float], size: int) -> None:
        self.rewards = list(rewards)
        self.advantages = [row.advantage or 0.0 for row in rows]
        self.groups = _grouped(rows, size)

    @property
    def tells(self) -> bool:
        """Whether a group of it has a spread: else every way makes zeros."""
        return any(len({self.rewards[place] for place in group}) > 1 for group in self.groups)


def ask(remains: Remains) -> Iterator[ProbeAnswer]:
    """One answer a recording."""
    asked = [recording for recording in remains.recordings if _has(recording)]
    for recording in asked:
        yield _judged(recording)
    if not asked:
        wanted = (Fact("want_advantages"),)
        yield ProbeAnswer("advantages", NOT_ASKED, PROBE, wanted=wanted)


def _has(recording: Recording) -> bool:
    return sum(row.advantage is not None for row in recording.rows) >= _ENOUGH


def _judged(recording: Recording) -> ProbeAnswer:
    ways = _weighings(recording)
    best: tuple[float, str, str] | None = None
    count = 0
    for weighing in ways:
        steps = _steps(recording, weighing)
        count = sum(len(step.rewards) for step in steps)
        if count < _ENOUGH:
            continue
        ranked = sorted((_residual(steps, _right, way), _said(way)) for way in _all_ways())
        if ranked[0][0] <= _TOLERANCE:
            return _clean(recording, steps, weighing, ranked)
        if best is None or ranked[0][0] < best[0]:
            best = (ranked[0][0], ranked[0][1], weighing)
    if best is None:
        wanted = (Fact("want_spread", {"count": count}),)
        return ProbeAnswer("advantages", NOT_DECIDED, PROBE, count=count, wanted=wanted)
    for weighing in ways:
        if found := _mistaken(recording, _steps(recording, weighing), best):
            return found
    facts = (Fact("advantages_unlike", {"best": best[1], "residual": best[0]}, recording.kind),)
    wanted = (Fact("want_weights"),)
    return ProbeAnswer(
        "advantages",
        NOT_DECIDED,
        PROBE,
        residual=best[0],
        floor=_TOLERANCE,
        count=count,
        facts=facts,
        wanted=wanted,
    )


def _weighings(recording: Recording) -> list[str]:
    """How the reward may be made of several functions' scores: as recorded, one of them, their sum or mean."""
    if any(row.reward is not None for row in recording.rows):
        return [""]
    names = list(dict.fromkeys(name for row in recording.rows[:64] for name in row.scores))
    return ["+", *names[:8]] if names else []


def _reward(row: Row, weighing: str) -> float | None:
    if not weighing:
        return row.reward
    if weighing == "+":
        told = [value for value in row.scores.values() if value is not None]
        return sum(told) if told else None
    return row.scores.get(weighing)


def _steps(recording: Recording, weighing: str) -> list[Step]:
    """The steps whose rows all have a reward and an advantage, and tell something; the first ones."""
    sizes = Counter(len(group) for rows in recording.steps().values() for group in groups_of(rows))
    size = _size(sizes)
    found: list[Step] = []
    seen = 0
    for rows in recording.steps().values():
        rewards = [_reward(row, weighing) for row in rows]
        told = [reward for reward in rewards if reward is not None]
        if len(told) < len(rows) or any(row.advantage is None for row in rows):
            continue
        step = Step(rows, told, size)
        if step.tells:
            found.append(step)
            seen += len(rows)
        if seen >= _MOST:
            break
    return found


def _size(sizes: Counter[int]) -> int:
    """The size of most groups: a prompt that was drawn twice in a step makes one of twice that."""
    counted = {size: sum(n for other, n in sizes.items() if other % size == 0) for size in sizes if size > 1}
    return max(counted, key=lambda size: (counted[size], size), default=0)


def _grouped(rows: Sequence[Row], size: int) -> Groups:
    place = {id(row): number for number, row in enumerate(rows)}
    found: Groups = []
    for group in groups_of(list(rows)):
        places = [place[id(row)] for row in group]
        if size and len(places) > size and len(places) % size == 0:
            found += [places[start : start + size] for start in range(0, len(places), size)]
        else:
            found.append(places)
    return found


def _all_ways() -> Iterator[dict[str, Any]]:
    for baseline, scale in product(_PEERS, _PEERS):
        if scale == "none":
            yield {"baseline": baseline, "scale": scale, "ddof": 1, "epsilon": 0.0}
            continue
        for ddof, epsilon in product((1, 0), _EPSILONS):
            yield {"baseline": baseline, "scale": scale, "ddof": ddof, "epsilon": epsilon}


def _said(way: dict[str, Any]) -> str:
    scale = "" if way["scale"] == "none" else f", ddof {way['ddof']}, epsilon {way['epsilon']:g}"
    return f"baseline {way['baseline']}, scale {way['scale']}{scale}"


def computed(rewards: Sequence[float], groups: Groups, way: dict[str, Any]) -> list[float]:
    """The advantages that one way makes of rewards.

    >>> computed([0.0, 1.0], [[0, 1]], {"baseline": "group", "scale": "none", "ddof": 1, "epsilon": 0.0})
    [-0.5, 0.5]
    """
    made = [0.0] * len(rewards)
    for group in groups:
        for place in group:
            bases = _peers(rewards, group, place, way["baseline"])
            base = mean(bases) if bases else 0.0
            peers = _peers(rewards, group, place, way["scale"])
            deviation = spread(peers, way["ddof"]) if peers else 0.0
            made[place] = (rewards[place] - base) / (deviation + way["epsilon"] if deviation else 1.0)
    return made


def _peers(rewards: Sequence[float], group: list[int], place: int, peers: str) -> Sequence[float]:
    if peers == "group":
        return [rewards[each] for each in group]
    if peers == "leave_one_out":
        return [rewards[each] for each in group if each != place] or [rewards[place]]
    return rewards if peers == "batch" else ()


def _right(step: Step, way: dict[str, Any]) -> list[float]:
    return computed(step.rewards, step.groups, way)


def _residual(steps: Sequence[Step], make: Any, way: dict[str, Any]) -> float:
    """The largest difference of all rows but one in a hundred: a clipped one is no other way."""
    off: list[float] = []
    for step in steps:
        off += [abs(a - b) / max(1.0, abs(b)) for a, b in zip(make(step, way), step.advantages, strict=True)]
        if len(off) >= 16 and sum(each > 0.05 for each in off) > len(off) // 4:
            return max(off)
    ordered = sorted(off)
    return ordered[max(0, len(ordered) - 1 - len(ordered) // 100)] if ordered else float("inf")


def _clean(
    recording: Recording, steps: list[Step], weighing: str, ranked: list[tuple[float, str]]
) -> ProbeAnswer:
    fits = [said for residual, said in ranked if residual <= max(4 * ranked[0][0], 2e-6)]
    others = [each for each in ranked if each[1] not in fits]
    facts = (
        Fact(
            "advantages_fit",
            {"ways": "; or ".join(fits[:4]), "reward": weighing or "as recorded"},
            recording.kind,
        ),
    )
    return ProbeAnswer(
        "advantages",
        CLEAN,
        PROBE,
        estimates=(Estimate("dialect", fits[0]),),
        residual=ranked[0][0],
        floor=_TOLERANCE,
        runner_up=RunnerUp(others[0][1], others[0][0]) if others else None,
        count=sum(len(step.rewards) for step in steps),
        facts=facts,
    )


def _mistaken(recording: Recording, steps: list[Step], best: tuple[float, str, str]) -> ProbeAnswer | None:
    """The mistake that makes the recorded numbers, if one does."""
    if not steps:
        return None
    for family, told, make in _mistakes(steps):
        ranked = sorted(
            (_residual(steps, make, way), _said(way)) for way in _all_ways() if way["epsilon"] in (1e-4, 0.0)
        )
        if not ranked or ranked[0][0] > 5 * _TOLERANCE or ranked[0][0] * 20 > best[0]:
            continue
        return ProbeAnswer(
            f"advantages/{family}",
            FAULT,
            PROBE,
            CODES[family],
            values={"told": told, "way": ranked[0][1]},
            estimates=(Estimate("dialect", ranked[0][1]),),
            residual=ranked[0][0],
            floor=_TOLERANCE,
            runner_up=RunnerUp(best[1], best[0]),
            count=sum(len(step.rewards) for step in steps),
            facts=(Fact("advantages_unlike", {"best": best[1], "residual": best[0]}, recording.kind),),
        )
    return None


CODES = {"grouping": "NUM041", "shifted": "NUM041", "sign": "NUM041", "zero": "NUM041", "scaled": "NUM041"}


def _mistakes(steps: Sequence[Step]) -> Iterator[tuple[str, str, Any]]:
    if all(value == 0 for step in steps for value in step.advantages):
        yield "zero", "", lambda step, _way: [0.0] * len(step.rewards)
        return
    yield "sign", "", lambda step, way: [-each for each in _right(step, way)]
    yield "grouping", "interleaved", lambda step, way: computed(step.rewards, _interleaved(step), way)
    yield "grouping", "in blocks", lambda step, way: computed(step.rewards, _blocks(step), way)
    size = max(len(step.groups[0]) for step in steps)
    for shift in (1, -1, size, -size):
        yield (
            "shifted",
            f"{shift:+d}",
            lambda step, way, by=shift: _rolled(_right(step, way), by),
        )
    if scale := _scale(steps):
        yield "scaled", f"{scale:.4g}", lambda step, way: [scale * each for each in _right(step, way)]


def _interleaved(step: Step) -> Groups:
    many = len(step.groups)
    return [list(range(first, len(step.rewards), many)) for first in range(many)]


def _blocks(step: Step) -> Groups:
    size = max(1, len(step.rewards) // len(step.groups))
    places = list(range(len(step.rewards)))
    return [places[start : start + size] for start in range(0, len(places), size)]


def _rolled(values: list[float], by: int) -> list[float]:
    by %= len(values)
    return values[-by:] + values[:-by] if by else values


def _scale(steps: Sequence[Step]) -> float:
    """The factor by which the recorded ones are larger than the usual ones; 0 where there is none."""
    way = {"baseline": "group", "scale": "group", "ddof": 1, "epsilon": 1e-4}
    pairs = [pair for step in steps for pair in zip(_right(step, way), step.advantages, strict=True)]
    down = sum(a * a for a, _ in pairs)
    return sum(a * b for a, b in pairs) / down if down else 0.0
