"""P5, P6, P8, P9: by which law the engine samples, and whether what it reports stands beside what it sampled."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from diagnostics.audit.live import bias, fit, raw
from diagnostics.audit.live.law import Law, Seen
from diagnostics.audit.model import CLEAN, FAULT, MASKED, NOT_DECIDED, Estimate, Fact, ProbeAnswer, RunnerUp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.audit.live.endpoints import Drawn
    from diagnostics.audit.live.reference import Reference

ALARM, OPEN = 1.8, 1.4
_LEAST_FLOOR = 2e-6
# So many of --tokens make one that is sampled for the law.
_A_TOKEN = 15
# A log-prob beside a token that is not its own is off by more than this.
_LEAST_LOST = 0.02
# What a law must explain of what the expected one is off by.
_EXPLAINED = 0.5
# Log-probs of two ids that arithmetic may exchange.
_TIE = 0.2
# Deviations by which sampled ids must miss their law.
_SURE = 5.0
_CODES = {
    "top_p": "NUM002",
    "top_k": "NUM002",
    "min_p": "NUM002",
    "repetition_penalty": "NUM003",
}


@dataclass(frozen=True)
class Sampled:
    """Samples, with what the weights give at their places.

    Attributes:
        drawn: The samples.
        seen: Their tokens beside exact logits.
        native: The same beside those of the engine's own type.
    """

    drawn: tuple[Drawn, ...]
    seen: Seen
    native: Seen


def beside(reference: Reference, drawn: Sequence[Drawn], dtype: str) -> Sampled:
    """Computes the logits that samples were drawn from."""
    taken = tuple(each for each in drawn if each.ids)
    made = []
    for native in (False, True):
        told = reference.rows([[*each.prompt, *each.ids] for each in taken], dtype, native=native)
        rows = [logits[len(each.prompt) - 1 : -1].double() for each, logits in zip(taken, told, strict=True)]
        made.append(Seen(taken, rows))
    return Sampled(taken, made[0], made[1])


def floor_of(sampled: Sampled, law: Law) -> float:
    """What arithmetic alone makes under a law."""
    from diagnostics.audit.live.law import trimmed

    off = (sampled.native.logprobs(law) - sampled.seen.logprobs(law)).abs().nan_to_num(0.0, 0.0, 0.0)
    return max(trimmed(off.clamp(max=2.0)), _LEAST_FLOOR)


def judged(
    reference: Reference, drawn: Sequence[Drawn], dtype: str, expected: Law, mode: str = ""
) -> list[ProbeAnswer]:
    """The answers: of what is reported, and of the law.

    Args:
        reference: The weights that the engine holds.
        drawn: Samples under the trainer's own request.
        dtype: The type the engine computes in.
        expected: The law by which the trainer computes.
        mode: What the server says that its log-probs are; empty: nothing.
    """
    sampled = beside(reference, drawn, dtype)
    answers = _beside_others(sampled.drawn)
    found = fit.fit(sampled.seen, expected, floor_of(sampled, expected))
    again, mended = _mended(reference, sampled, dtype, expected, found)
    if mended:
        sampled, found = again, fit.fit(again.seen, expected, floor_of(again, expected))
        answers += mended
    floor = floor_of(sampled, found.law)
    answers += _unless_beside(_law(sampled.seen, found, expected, floor), answers)
    faulty = any(each.outcome == FAULT for each in answers)
    of_ids = _of_ids(sampled, found.law, expected, mode, faulty=faulty)
    answers, of_ids = raw.settled(sampled.seen, found, expected, mode, answers, of_ids)
    # Ids are held against the law of what is reported; where none fits, other weights drew them.
    if {"sampling/law", "logprobs/raw"} <= {each.family for each in (*answers, *of_ids)}:
        of_ids = [ProbeAnswer("logprobs", MASKED, "P6", by="sampling/law")]
    return [*answers, *of_ids]


def _beside_others(drawn: Sequence[Drawn]) -> list[ProbeAnswer]:
    """Whether the log-probs stand beside the sampled ids."""
    told = [each for each in drawn if each.reported]
    wrong = sum(one != other for each in told for one, other in zip(each.ids, each.reported, strict=False))
    count = sum(len(each.ids) for each in told)
    if not wrong:
        return []
    return [
        ProbeAnswer("logprobs/token", FAULT, "P8", facts=(Fact("beside", {"wrong": wrong, "count": count}),))
    ]


def _unless_beside(law: list[ProbeAnswer], told: Sequence[ProbeAnswer]) -> list[ProbeAnswer]:
    """That no law fits log-probs of other tokens says nothing of the law."""
    hides = next((each.family for each in told if each.family == "logprobs/token"), "")
    return [
        replace(each, family="sampling", outcome=MASKED, by=hides)
        if hides and each.family == "sampling/law"
        else each
        for each in law
    ]


def _mended(
    reference: Reference, sampled: Sampled, dtype: str, expected: Law, here: fit.Fitted
) -> tuple[Sampled, list[ProbeAnswer]]:
    """Where log-probs fit better a place away, or beside another prompt: that is said, and undone for what follows."""
    floor = floor_of(sampled, expected)
    if here.residual <= 4 * floor or here.residual < _LEAST_LOST:
        return sampled, []
    for shift in (-1, 1):
        moved = beside(reference, [_shifted(each, shift) for each in sampled.drawn], dtype)
        off = fit.fit(moved.seen, expected, floor).residual
        if off < 0.25 * here.residual:
            answer = ProbeAnswer(
                "logprobs/shift",
                FAULT,
                "P8",
                code="NUM044",
                values={"shift": shift},
                estimates=(Estimate("shift", shift, expected=0),),
                residual=off,
                floor=floor,
                runner_up=RunnerUp("no shift", here.residual),
                count=len(moved.seen.ids),
            )
            return moved, [answer]
    return _paired(reference, sampled, dtype, expected, floor, here.residual)


def _shifted(drawn: Drawn, shift: int) -> Drawn:
    """The sample without the ids whose log-prob went over the edge; those that stay stand beside their own."""
    if shift < 0:  # each log-prob is that of the id before it
        ids, values, prompt = drawn.ids[:-1], drawn.logprobs[1:], drawn.prompt
    else:
        ids, values = drawn.ids[1:], drawn.logprobs[:-1]
        prompt = (*drawn.prompt, *drawn.ids[:1])
    return replace(drawn, prompt=prompt, ids=ids, logprobs=values, reported=())


def _paired(
    reference: Reference, sampled: Sampled, dtype: str, expected: Law, floor: float, before: float
) -> tuple[Sampled, list[ProbeAnswer]]:
    """P9: whether samples stand beside prompts that are not theirs."""
    prompts = list(dict.fromkeys(each.prompt for each in sampled.drawn))
    if len(prompts) < 2:
        return sampled, []
    best, moved = [], 0
    for each in sampled.drawn:
        tried = []
        for prompt in prompts:
            other = replace(each, prompt=prompt)
            tried.append((beside(reference, [other], dtype).seen.residual(expected), other))
        own = next(off for off, other in tried if other.prompt == each.prompt)
        off, other = min(tried, key=lambda pair: pair[0])
        moved += other.prompt != each.prompt and off < 0.5 * own
        best.append(other)
    if moved < max(2, len(best) // 4):
        return sampled, []
    again = beside(reference, best, dtype)
    off = fit.fit(again.seen, expected, floor).residual
    if off > 0.5 * before:
        return sampled, []
    answer = ProbeAnswer(
        "pairing", FAULT, "P9", code="TOK019", values={"moved": moved, "count": len(best)}, residual=off, floor=floor,
        runner_up=RunnerUp("as they came", before), count=len(again.seen.ids),
    )  # fmt: skip
    return again, [answer]


def _law(seen: Seen, found: fit.Fitted, expected: Law, floor: float) -> list[ProbeAnswer]:
    count, times = len(seen.ids), found.residual / floor
    slack = 12.0 if floor < 1e-4 else ALARM
    second = RunnerUp(*found.next_best) if found.next_best else None
    clean = ProbeAnswer(
        "sampling", CLEAN, "P5", residual=found.residual, floor=floor, alarm=slack * floor, runner_up=second,
        count=count, decisive=True,
    )  # fmt: skip
    if times > slack:
        biased = bias.biased(seen, found.law) or bias.biased(seen, expected)
        if biased is not None and seen.residual(biased) < 0.5 * found.residual:
            token, value = biased.bias or (0, 0.0)
            estimates = (Estimate("id", token), Estimate("bias", value, expected=0.0))
            return [replace(clean, family="sampling/bias", outcome=FAULT, values={"id": token, "value": value},
                            estimates=estimates, residual=seen.residual(biased))]  # fmt: skip
    # A law that is better and explains little of it names nothing: these are other weights, or something else.
    explains_little = times > 4 * slack and found.residual > _EXPLAINED * seen.residual(expected)
    if not found.changed or explains_little:
        if times > slack:
            return [replace(clean, family="sampling/law", outcome=FAULT)]
        if times > OPEN and floor >= 1e-4:
            more = (Fact("more_tokens", {"tokens": 3 * _A_TOKEN * count}),)
            return [replace(clean, outcome=NOT_DECIDED, wanted=more)]
        return [clean]
    return [_named(seen, found, expected, name, clean) for name in found.changed]


def _named(seen: Seen, found: fit.Fitted, expected: Law, name: str, clean: ProbeAnswer) -> ProbeAnswer:
    value: float = fit.middle(seen, found.law, name)
    low, high = fit.interval(seen, found.law, name)
    told: float | int = round(value) if name == "top_k" else value
    before: float | int = int(expected.get(name)) if name == "top_k" else expected.get(name)
    shown = "all" if name == "top_k" and not before else before
    return replace(
        clean, family=f"sampling/{name}", outcome=FAULT, code=_CODES.get(name, ""),
        values={"value": told, "expected": shown},
        estimates=(Estimate(name, told, min(low, value), max(high, value), before),),
    )  # fmt: skip


def _of_ids(sampled: Sampled, law: Law, expected: Law, mode: str, *, faulty: bool) -> list[ProbeAnswer]:
    """P6: what the sampled ids themselves say, whatever is reported of them."""
    answers: list[ProbeAnswer] = []
    whole = sampled.seen.whole(law)
    likeliest = whole.max(1).values
    behind = likeliest - whole.gather(1, sampled.seen.places)[:, 0]
    # Of two that are all but equal, the engine's own type may like the other better.
    taken = behind <= _TIE
    first = float((behind == 0).double().mean())
    # As sure as the law is of its likeliest ids: that all are taken by chance is that unlikely.
    chance = float(likeliest.sum())
    if bool(taken.all()) and first > 0.9 and chance < -12:
        facts = (Fact("all_first", {"count": len(taken), "chance": math.exp(max(chance, -700.0))}),)
        return [ProbeAnswer("sampling/greedy", FAULT, "P6", code="CFG115", facts=facts, count=len(taken))]
    if repeated := _repeated(sampled):
        return [repeated]
    got, mean, deviation = sampled.seen.surprise(law)
    z = (got - mean) / max(deviation, 1e-9)
    fact = Fact("surprise", {"z": z, "temperature": law.temperature, "mode": mode or "not told"})
    if abs(z) <= _SURE:
        if not faulty:
            answers.append(ProbeAnswer("logprobs", CLEAN, "P6", facts=(fact,), count=len(taken)))
        return answers
    return [raw.told(sampled.seen, law, expected, fact)]


def _repeated(sampled: Sampled) -> ProbeAnswer | None:
    """Whether samples of a prompt are the same more often than chance allows."""
    same, unlikely, place = 0, 0.0, 0
    previous: dict[tuple[int, ...], tuple[int, ...]] = {}
    values = sampled.seen.logprobs(Law())
    for each in sampled.drawn:
        size = len(each.ids)
        if previous.get(each.prompt) == each.ids:
            same += 1
            unlikely += float(values[place : place + size].sum())
        previous[each.prompt] = each.ids
        place += size
    if same < 2 or unlikely > -20:
        return None
    return ProbeAnswer(
        "sampling/seed", FAULT, "P6", facts=(Fact("repeated", {"same": same, "count": len(sampled.drawn)}),),
        count=len(sampled.drawn),
    )  # fmt: skip


def hidden_by(family: str) -> list[ProbeAnswer]:
    """Where nobody knows which weights the engine holds, its law can't be told from theirs."""
    return [
        ProbeAnswer(each, MASKED, probe, by=family, decisive=True)
        for each, probe in (("sampling", "P5"), ("logprobs", "P6"))
    ]


def vocabulary(drawn: Sequence[Drawn], size: int) -> list[ProbeAnswer]:
    """Whether the tokenizer has all sampled ids."""
    beyond = [token for each in drawn for token in each.ids if token >= size]
    count = sum(len(each.ids) for each in drawn)
    if not size or not beyond:
        return []
    values: dict[str, Any] = {"share": len(beyond) / count, "count": count}
    return [ProbeAnswer("ids/vocabulary", FAULT, "P10", code="TOK001", values=values, count=count)]
