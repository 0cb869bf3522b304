"""The samples themselves: identical ones beyond chance, ends, groups without spread, rewards that are no numbers."""

from __future__ import annotations

from collections import Counter
from math import exp, sqrt
from typing import TYPE_CHECKING

from diagnostics.audit.model import CLEAN, FAULT, NOT_ASKED, NOT_DECIDED, Estimate, Fact, ProbeAnswer
from diagnostics.audit.recorded.questions.figures import share_interval
from diagnostics.audit.recorded.rows import groups_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.audit.recorded.rows import Recording, Remains, Row

PROBE = "samples"
_GROUPS = 4


def ask(remains: Remains) -> Iterator[ProbeAnswer]:
    """Duplicates, ends and spread of each recording."""
    if not remains.recordings:
        yield ProbeAnswer("samples", NOT_ASKED, PROBE, wanted=(Fact("want_completions"),))
    for recording in remains.recordings:
        groups = [group for rows in recording.steps().values() for group in groups_of(rows) if len(group) > 1]
        yield _duplicates(recording, groups, remains)
        yield _ends(recording)
        yield _spread(recording, groups)


def _duplicates(recording: Recording, groups: list[list[Row]], remains: Remains) -> ProbeAnswer:
    """Whether the samples of a group are the same more often than the engine's own log-probs allow."""
    if len(groups) < _GROUPS:
        return ProbeAnswer("samples", NOT_ASKED, PROBE, wanted=(Fact("want_groups", {"count": len(groups)}),))
    same = pairs = 0
    expected = varied = 0.0
    told = True
    for group in groups:
        counted = Counter(_key(row) for row in group)
        pairs += len(group) * (len(group) - 1) // 2
        same += sum(n * (n - 1) // 2 for n in counted.values())
        chances = [_probability(row) for row in group]
        told = told and all(chance is not None for chance in chances)
        for chance in chances:
            one = (chance or 0.0) * (len(group) - 1) / 2
            expected += one
            varied += one
    found = same / pairs
    low, high = share_interval(same, pairs)
    values = {"share": found, "groups": len(groups), "expected": expected / pairs}
    facts = (Fact("identical", values, recording.kind),)
    estimate = (Estimate("identical", found, low, high),)
    if told:
        z = (same - expected) / sqrt(max(1.0, varied) * max(len(group) for group in groups))
        if z > 8 and same >= 2 * expected + 10:
            family = "samples/identical" if found > 0.95 else "samples/repeated"
            return ProbeAnswer(family, FAULT, PROBE, "CFG115", values, estimate, count=pairs, facts=facts)
        return ProbeAnswer("samples", CLEAN, PROBE, estimates=estimate, count=pairs, facts=facts)
    if found < 0.95:
        return ProbeAnswer("samples", CLEAN, PROBE, estimates=estimate, count=pairs, facts=facts)
    entropies = [
        row.values["entropy"] for each in remains.series for row in each.rows if "entropy" in row.values
    ]
    if entropies and min(entropies) > 0.1:
        values["entropy"] = min(entropies)
        return ProbeAnswer(
            "samples/identical", FAULT, PROBE, "CFG115", values, estimate, count=pairs, facts=facts
        )
    wanted = (Fact("want_entropy"),)
    return ProbeAnswer("samples", NOT_DECIDED, PROBE, values=values, count=pairs, facts=facts, wanted=wanted)


def _key(row: Row) -> object:
    return row.tokens.ids[max(0, row.tokens.prompt) :] if row.tokens else row.completion


def _probability(row: Row) -> float | None:
    """What the engine says of sampling this completion."""
    if row.tokens is None or not row.tokens.engine:
        return None
    told = row.tokens.engine[max(0, row.tokens.prompt) :]
    if not told or any(each is None for each in told):
        return None
    return exp(min(0.0, sum(each for each in told if each is not None)))


def _ends(recording: Recording) -> ProbeAnswer:
    """How completions end: all cut at the limit, or stopped on ids that are no end."""
    ended = [row.tokens for row in recording.rows if row.tokens and row.tokens.ended]
    if len(ended) < 16:
        return ProbeAnswer("ends", NOT_ASKED, PROBE, wanted=(Fact("want_finish_reasons"),))
    cut = sum(each.ended == "length" for each in ended)
    low, high = share_interval(cut, len(ended))
    values = {"share": cut / len(ended), "count": len(ended)}
    estimates = (Estimate("cut", cut / len(ended), low, high),)
    if cut == len(ended):
        return ProbeAnswer("ends/all_cut", FAULT, PROBE, "CFG127", values, estimates, count=len(ended))
    last = Counter(each.ids[-1] for each in ended if each.ended == "stop" and each.ids)
    stopped = sum(last.values())
    most = last.most_common(1)[0][1] if last else 0
    if stopped >= 50 and len(last) >= 8 and most < 0.3 * stopped:
        values |= {"ids": len(last), "stopped": stopped}
        return ProbeAnswer("ends/dropped", FAULT, PROBE, "TOK018", values, estimates, count=stopped)
    return ProbeAnswer("ends", CLEAN, PROBE, estimates=estimates, count=len(ended))


def _spread(recording: Recording, groups: list[list[Row]]) -> ProbeAnswer:
    """Groups without a spread of rewards, told apart by whether all was right or all wrong."""
    rewarded = [[total(row) for row in group] for group in groups]
    told = [[each for each in group if each is not None] for group in rewarded]
    whole = [group for group, full in zip(told, rewarded, strict=True) if len(group) == len(full)]
    missing = sum(len(full) - len(group) for group, full in zip(told, rewarded, strict=True))
    count = sum(map(len, rewarded))
    if len(whole) < 2 * _GROUPS:
        named = any(row.scores for row in recording.rows)
        if named and missing > count // 2:
            values = {"share": missing / count, "count": count}
            return ProbeAnswer("rewards/no_number", FAULT, PROBE, "REW002", values, count=count)
        return ProbeAnswer("rewards", NOT_ASKED, PROBE, wanted=(Fact("want_rewards"),))
    everything = [reward for group in whole for reward in group]
    lowest, highest = min(everything), max(everything)
    flat = [group[0] for group in whole if min(group) == max(group)]
    hard, easy = sum(each <= lowest for each in flat), sum(each >= highest for each in flat)
    values = {
        "share": len(flat) / len(whole),
        "groups": len(whole),
        "hard": hard,
        "easy": easy if highest > lowest else 0,
        "lowest": lowest,
        "highest": highest,
    }
    low, high = share_interval(len(flat), len(whole))
    estimates = (Estimate("groups_without_spread", len(flat) / len(whole), low, high),)
    facts = (Fact("flat_groups", values, recording.kind),)
    if len(flat) == len(whole):
        family = "rewards/constant" if lowest == highest else "rewards/no_spread"
        wanted = (Fact("want_reward_function"),)
        return ProbeAnswer(
            family, FAULT, PROBE, "REW004", values, estimates, count=count, facts=facts, wanted=wanted
        )
    return ProbeAnswer("rewards", CLEAN, PROBE, estimates=estimates, count=count, facts=facts)


def total(row: Row) -> float | None:
    """The reward of a row: as recorded, or the sum of the functions' scores."""
    if row.reward is not None:
        return row.reward
    told = [each for each in row.scores.values() if each is not None]
    return sum(told) if told else None
