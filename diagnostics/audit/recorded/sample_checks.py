"""Check the prompts, duplicates, end tokens and rewards of the samples of one recording.

Without enough samples a check is skipped. Faults are:
- one prompt for all samples, prompts that repeat after a resume, and prompts inside completions;
- equal completions in each group, unless the policy is sure of them (undecided if that is unknown);
- missing end tokens, and missing rewards (skipped if the recording has none at all);
- equal rewards within each of the groups;
- equal rewards within more than 80 % of the groups, if fewer than 80 % of these have the highest reward.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from math import exp
from typing import Any

from diagnostics.audit.recorded.run_data import MetricSeries, Recording, Sample, group_samples
from diagnostics.audit.recorded.stats import mean
from diagnostics.audit.results import Result, clean, fault, note, skipped, undecided
from diagnostics.audit.training_curves import MAX_FLAT_SHARE

# Most samples of a step whose prompts are searched in each other's completions.
_MAX_PAIRED_SAMPLES = 256
_MIN_PROMPTS, _MIN_GROUPS, _MIN_STEPS = 3, 4, 4


def _groups(recording: Recording) -> list[list[Sample]]:
    """Return the groups of all steps that have two samples or more."""
    steps = recording.steps().values()
    return [group for rows in steps for group in group_samples(rows) if len(group) > 1]


def _in_file_order(recording: Recording) -> list[list[Sample]]:
    """Split the samples by step in file order, because a resumed run may write a step number twice."""
    return [list(rows) for _, rows in groupby(recording.rows, key=lambda row: row.step)]


def check_prompt_order(recording: Recording) -> Result:
    """Check whether all samples have one prompt, or prompts repeat before all were used, as after a wrong resume."""
    prompts, count = {row.prompt for row in recording.rows}, len(recording.rows)
    if count >= 32 and len(prompts) == 1 and "" not in prompts:
        return fault("data/one_prompt", {"count": count, "steps": len(recording.steps())}, count=count)
    steps = _prompts_by_step(recording)
    if len(steps) < _MIN_STEPS or recording.files[0] > recording.files[1]:
        return skipped("data", "want_steps:data", count=len(steps))
    smallest = min(len(step_prompts) for _, step_prompts in steps)
    if smallest < _MIN_PROMPTS:
        return skipped("data", "want_prompts", count=smallest)
    first_set: dict[frozenset[str], int] = {}
    first_prompt: dict[str, int] = {}
    for index, (_, step_prompts) in enumerate(steps):
        first_set.setdefault(step_prompts, index)
        for prompt in step_prompts:
            first_prompt.setdefault(prompt, index)
    newest = max(first_prompt.values())
    repeats = ((first_set[step_prompts], index) for index, (_, step_prompts) in enumerate(steps))
    early = [(before, now) for before, now in repeats if before != now < newest]
    if not early or len(first_prompt) < 3 * smallest:
        return clean("data", count=len(steps))
    first, last, at = (steps[index][0] for index in (early[0][0], early[-1][0], early[0][1]))
    values = {"from": first, "to": last, "at": at, "count": len(early)}
    fact = note("steps_repeated", recording.kind, **values)
    return fault("data/repeated", values, count=len(steps), evidence=(fact,))


def _prompts_by_step(recording: Recording) -> list[tuple[int, frozenset[str]]]:
    """Return number and prompts of each step; steps trained on the same completions count once."""
    steps: list[tuple[int, frozenset[str]]] = []
    before: list[tuple[str, str]] = []
    for rows in _in_file_order(recording):
        texts = [(row.prompt, row.completion) for row in rows]
        if texts != before and any(row.prompt for row in rows):
            steps.append((rows[0].step, frozenset(row.prompt for row in rows)))
        before = texts
    return steps


def check_pairing(recording: Recording) -> Result:
    """Check whether completions repeat their prompt, or contain another sample's prompt."""
    rows = [row for row in recording.rows[:8192] if row.prompt and row.completion]
    if len(rows) < 16:
        return skipped("pairing", "want_texts:pairing")
    echoes = sum(len(row.prompt) >= 8 and row.completion.startswith(row.prompt) for row in rows)
    groups = (group[:_MAX_PAIRED_SAMPLES] for group in _in_file_order(recording)[:200])
    steps = [group for group in groups if len({row.prompt for row in group}) > 1]
    compared, foreign = sum(map(len, steps)), 0
    for group in steps:
        prompts = {row.prompt for row in group if len(row.prompt) >= 24}
        foreign += sum(
            row.prompt not in row.completion and any(prompt in row.completion for prompt in prompts)
            for row in group
        )
    values = {"own": echoes / len(rows), "other": foreign / max(1, compared), "count": len(rows)}
    if echoes > 0.5 * len(rows):
        return fault("pairing/echo", values, count=len(rows))
    if foreign > max(4, 0.2 * compared):
        return fault("pairing/other", values, count=len(rows))
    return clean("pairing", values=values, count=len(rows))


def check_duplicates(recording: Recording, series: Sequence[MetricSeries]) -> Result:
    """Check whether the samples of each group are equal although the policy is not sure of them, if that is known."""
    groups = _groups(recording)
    if len(groups) < _MIN_GROUPS:
        return skipped("samples", "want_groups", count=len(groups))
    pairs = sum(len(group) * (len(group) - 1) // 2 for group in groups)
    frequencies = [Counter(map(_identity, group)).values() for group in groups]
    equal = sum(n * (n - 1) // 2 for frequency in frequencies for n in frequency)
    values = {"share": equal / pairs, "groups": len(groups)}
    fields: dict[str, Any] = {"count": pairs, "evidence": (note("identical", recording.kind, **values),)}
    if equal < 0.95 * pairs:
        return clean("samples", **fields)
    is_sure = _is_sure_of_samples(recording, series)
    if is_sure is None:
        return undecided("samples", note("want_entropy"), values=values, **fields)
    return clean("samples", **fields) if is_sure else fault("samples/identical", values, **fields)


def _is_sure_of_samples(recording: Recording, series: Sequence[MetricSeries]) -> bool | None:
    """Return whether the mean probability of completions is above 0.9.

    Without log-probs, an entropy that stays above 0.1 means False; otherwise None.
    """
    probabilities = [probability for row in recording.rows if (probability := _probability(row)) is not None]
    if probabilities:
        return mean(probabilities) > 0.9
    entropies = [row.values["entropy"] for entry in series for row in entry.rows if "entropy" in row.values]
    return None if not entropies or min(entropies) <= 0.1 else False


def _identity(row: Sample) -> object:
    """Return the completion's token ids, else its text."""
    return row.tokens.ids if row.tokens else row.completion


def _probability(row: Sample) -> float | None:
    """Return the engine's probability of the completion; None unless all its tokens have log-probs."""
    logprobs = row.tokens.engine_logprobs if row.tokens else ()
    known = [value for value in logprobs if value is not None]
    return exp(min(0.0, sum(known))) if known and len(known) == len(logprobs) else None


def check_ends(recording: Recording) -> Result:
    """Report a fault if completions that stopped end on many different ids."""
    ended = [row.tokens for row in recording.rows if row.tokens and row.tokens.finish_reason]
    if len(ended) < 16:
        return skipped("ends", "want_finish_reasons")
    last = Counter(tokens.ids[-1] for tokens in ended if tokens.finish_reason == "stop" and tokens.ids)
    stopped = sum(last.values())
    if stopped >= 50 and len(last) >= 8 and last.most_common(1)[0][1] < 0.3 * stopped:
        return fault("ends/dropped", {"ids": len(last), "stopped": stopped}, count=stopped)
    return clean("ends", count=len(ended))


def check_rewards(recording: Recording) -> Result:
    """Check for missing rewards and for groups whose rewards are all equal."""
    invalid = [row for row in recording.rows if row.total_reward is None]
    count = len(recording.rows)
    if invalid and (len(invalid) < count or any(row.scores for row in invalid)):
        values = {"missing": len(invalid), "count": count, "place": invalid[0].place}
        return fault("rewards/no_number", values, count=count)
    rewards = [[row.total_reward for row in group] for group in _groups(recording)]
    complete = [[reward for reward in group if reward is not None] for group in rewards if None not in group]
    if len(complete) < 2 * _MIN_GROUPS:
        return skipped("rewards", "want_rewards", count=len(complete))
    return _reward_spread(complete, recording.kind)


def _reward_spread(groups: Sequence[Sequence[float]], place: str) -> Result:
    """Report a fault if too many groups give no gradient because their rewards are equal."""
    lowest, highest = min(map(min, groups)), max(map(max, groups))
    flat = [group[0] for group in groups if min(group) == max(group)]
    easy = sum(reward >= highest for reward in flat) if highest > lowest else 0
    values: dict[str, Any] = {
        "share": len(flat) / len(groups), "groups": len(groups), "flat": len(flat), "easy": easy, "lowest": lowest,
        "hard": sum(reward <= lowest for reward in flat), "highest": highest,
    }  # fmt: skip
    values["other"] = len(flat) - easy - values["hard"]
    more = f", {values['other']} of other rewards" if values["other"] else ""
    values["counts"] = f"{values['hard']} all {lowest:g}, {easy} all {highest:g}{more}"
    fields: dict[str, Any] = {"count": sum(map(len, groups))}
    fields["evidence"] = (note("flat_groups", place, **values),)
    if lowest == highest:
        return fault("rewards/constant", values, **fields)
    if len(flat) == len(groups):
        return fault("rewards/no_spread", values, **fields)
    if len(flat) > MAX_FLAT_SHARE * len(groups) and easy < 0.8 * len(flat):
        return fault("rewards/little_spread", values, **fields)
    return clean("rewards", **fields)
