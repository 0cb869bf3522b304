"""Checks of recorded samples: order of prompts, pairing, duplicates, ends, and rewards within groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import exp, sqrt
from typing import Any

from diagnostics.audit.model import CLEAN, NOT_DECIDED, Estimate, Result, fault, note, skipped
from diagnostics.audit.recorded.run_data import MetricSeries, Recording, RunArtifacts, Sample, group_samples
from diagnostics.audit.recorded.stats import share_interval

DATA, SAMPLES = "data", "samples"
_LEAST_PROMPTS, _LEAST_GROUPS = 3, 4
_MOST_FLAT = 0.9
_WANT_DUMPS = (
    "dumped completions: log_completions=True (TRL, ms-swift) or trainer.rollout_data_dir=DIR (verl)"
)


def check_data(run: RunArtifacts) -> Iterator[Result]:
    """Check the order of the prompts and the pairing of prompts and completions."""
    for recording in run.recordings:
        yield _prompt_order(recording)
        yield check_pairing(recording)
    if not run.recordings:
        yield skipped("data", DATA, "want_completions", _WANT_DUMPS)


def _prompt_order(recording: Recording) -> Result:
    """Check whether prompts come again before all prompts have come once, as after a resume that went back."""
    prompts = {row.prompt for row in recording.rows}
    if len(recording.rows) >= 32 and len(prompts) == 1 and "" not in prompts:
        values = {"count": len(recording.rows), "steps": len(recording.steps())}
        message = (
            "all {count} samples of {steps} steps have one prompt: the data set or the sampler repeats it"
        )
        return fault("data/one_prompt", DATA, message, "", values=values, count=len(recording.rows))
    steps = _generations(recording)
    if len(steps) < 4 or recording.files[0] > recording.files[1]:
        need = "the prompts of at least four steps, none left out; there are {count}"
        return skipped("data", DATA, "want_steps", need, count=len(steps))
    sets = [frozenset(step_prompts) for _, step_prompts in steps]
    smallest = min(map(len, sets))
    if smallest < _LEAST_PROMPTS:
        return skipped(
            "data", DATA, "want_prompts", "at least three prompts a step; there are {count}", count=smallest
        )
    first_seen: dict[frozenset[str], int] = {}
    prompt_seen: dict[str, int] = {}
    repeats = []
    for place, step_prompts in enumerate(sets):
        if step_prompts in first_seen:
            repeats.append((first_seen[step_prompts], place))
        first_seen.setdefault(step_prompts, place)
        for prompt in step_prompts:
            prompt_seen.setdefault(prompt, place)
    newest = max(prompt_seen.values(), default=0)
    early = [(before, now) for before, now in repeats if newest > now]
    if early and len(prompt_seen) >= 3 * smallest:
        order = [step for step, _ in steps]
        values = {
            "from": order[early[0][0]],
            "to": order[early[-1][0]],
            "at": order[early[0][1]],
            "count": len(early),
        }
        return fault(
            "data/repeated", DATA, "steps {from} to {to} were trained on again from step {at} on"
                                   " ({count} of" " them), before"
            " all prompts were seen: a resume went back", "CFG126", values=values,
            estimates=(Estimate("steps_repeated", len(early)),), count=len(steps),
            evidence=(note("steps_repeated", "step {at} has the prompts of step {from}", recording.kind, **values),),
        )  # fmt: skip
    return Result("data", CLEAN, DATA, count=len(steps))


def _generations(recording: Recording) -> list[tuple[int, tuple[str, ...]]]:
    """Return the prompts of each step; steps trained on the same completions count once."""
    steps: list[tuple[int, tuple[str, ...]]] = []
    before: list[tuple[str, str]] = []
    for rows in _in_file_order(recording):
        texts = [(row.prompt, row.completion) for row in rows]
        if texts != before and any(row.prompt for row in rows):
            steps.append((rows[0].step, tuple(dict.fromkeys(row.prompt for row in rows))))
        before = texts
    return steps


def _in_file_order(recording: Recording) -> list[list[Sample]]:
    """Split the samples by step as they were written: a resumed run may write a number twice."""
    steps: list[list[Sample]] = []
    for row in recording.rows:
        if not steps or steps[-1][0].step != row.step:
            steps.append([])
        steps[-1].append(row)
    return steps


def check_pairing(recording: Recording) -> Result:
    """Check whether completions begin with their prompt, contain another's, or fit another prompt's words better."""
    rows = [row for row in recording.rows[:8192] if row.prompt and row.completion]
    if len(rows) < 16:
        return skipped("pairing", DATA, "want_texts", "texts of prompts and completions")
    echoes = sum(len(row.prompt) >= 8 and row.completion.startswith(row.prompt) for row in rows)
    steps = [group for group in _in_file_order(recording) if len({row.prompt for row in group}) > 1][:200]
    foreign = compared = 0
    for group in steps:
        prompts = {row.prompt for row in group if len(row.prompt) >= 24}
        for row in group:
            compared += 1
            foreign += row.prompt not in row.completion and any(
                prompt in row.completion for prompt in prompts if prompt != row.prompt
            )
    values = {"own": echoes / len(rows), "other": foreign / max(1, compared), "count": len(rows)}
    if echoes > 0.5 * len(rows):
        message = (
            "completions begin with their own prompt ({own:.0%} of {count}): it is trained on as if sampled"
        )
        return fault("pairing/echo", DATA, message, "TOK019", values=values, count=len(rows))
    if foreign > max(4, 0.2 * compared):
        message = (
            "completions contain another sample's prompt ({other:.0%}): prompts and completions are"
            " paired wrongly"
        )
        return fault("pairing/other", DATA, message, "TOK019", values=values, count=len(rows))
    return _pairing_by_words(steps, recording)


def _pairing_by_words(steps: Sequence[list[Sample]], recording: Recording) -> Result:
    """Check whether words that only one prompt has stand in that prompt's completions."""
    matches = decided = 0
    shifts: Counter[int] = Counter()
    for rows in steps:
        prompts = list(dict.fromkeys(row.prompt for row in rows))
        words = [set(_words(prompt)) for prompt in prompts]
        frequency = Counter(word for prompt_words in words for word in prompt_words)
        rare = [{word for word in prompt_words if frequency[word] == 1} for prompt_words in words]
        for row in rows:
            completion = set(_words(row.completion))
            scores = [len(completion & prompt_words) / max(1, len(prompt_words)) for prompt_words in rare]
            best = max(scores)
            if best <= 0 or scores.count(best) > 1:
                continue
            decided += 1
            shift = (scores.index(best) - prompts.index(row.prompt)) % len(prompts)
            matches += shift == 0
            shifts[shift] += shift != 0
    if decided < 24:
        overlap_needed = "completions that repeat words of their prompt; {count} do"
        return skipped("pairing", DATA, "want_words", overlap_needed, count=decided)
    values = {"own": matches / decided, "count": decided}
    width = max(2, *(len({row.prompt for row in rows}) for rows in steps))
    shift, most = shifts.most_common(1)[0] if shifts else (0, 0)
    if matches < 0.5 * most and most > 0.4 * decided:
        values |= {"shift": shift, "most": most / decided}
        return fault("pairing/shifted", DATA, "completions fit the prompt {shift} further on"
                                              " ({most:.0%} of" " {count}), not"
                     " their own: they are paired wrongly", "TOK019", values=values, count=decided)  # fmt: skip
    if matches * width < 1.5 * decided and decided > 100:
        lengths = sorted(len(row.completion) for row in recording.rows[:512])
        if lengths[len(lengths) // 2] <= 400:  # short answers need not repeat the question
            return skipped("pairing", DATA, "want_words", "longer completions")
        need = note("want_checkpoint", "--checkpoint DIR: the weights that sampled the texts")
        return Result("pairing", NOT_DECIDED, DATA, values=values, count=decided, needed=(need,))
    return Result("pairing", CLEAN, DATA, values=values, count=decided)


def _words(text: str) -> list[str]:
    return [word for word in text[:20_000].lower().split() if len(word) > 2 or word.isdigit()]


def check_samples(run: RunArtifacts) -> Iterator[Result]:
    """Check each recording for duplicates, ends and rewards."""
    if not run.recordings:
        yield skipped("samples", SAMPLES, "want_completions", _WANT_DUMPS)
    for recording in run.recordings:
        groups = [
            group for rows in recording.steps().values() for group in group_samples(rows) if len(group) > 1
        ]
        yield _duplicates(recording, groups, run.series)
        yield _ends(recording)
        yield check_rewards(recording, groups)


def _duplicates(recording: Recording, groups: list[list[Sample]], series: Sequence[MetricSeries]) -> Result:
    """Check whether samples of a group are equal more often than the engine's log-probs allow."""
    if len(groups) < _LEAST_GROUPS:
        groups_needed = "at least four groups of two samples or more; there are {count}"
        return skipped("samples", SAMPLES, "want_groups", groups_needed, count=len(groups))
    equal = pairs = 0
    expected = 0.0
    all_known = True
    for group in groups:
        frequency = Counter(_identity(row) for row in group)
        pairs += len(group) * (len(group) - 1) // 2
        equal += sum(n * (n - 1) // 2 for n in frequency.values())
        for row in group:
            probability = _probability(row)
            all_known = all_known and probability is not None
            expected += (probability or 0.0) * (len(group) - 1) / 2
    share = equal / pairs
    values = {"share": share, "groups": len(groups), "expected": expected / pairs}
    fields: dict[str, Any] = {
        "estimates": (Estimate("identical", share, *share_interval(equal, pairs)),),
        "count": pairs,
        "evidence": (note("identical", "{share:.2%} of pairs in {groups} groups are equal; {expected:.2%} by chance",
                          recording.kind, **values),),
    }  # fmt: skip
    message = "all samples of a group are equal ({share:.0%} of pairs in {groups} groups): greedy sampling or one seed"
    if all_known:
        z = (equal - expected) / sqrt(max(1.0, expected) * max(len(group) for group in groups))
        if z > 8 and equal >= 2 * expected + 10:
            if share <= 0.95:
                message = (
                    "{share:.1%} of pairs in a group are equal, where their log-probs allow"
                    " {expected:.2%}: one seed"
                )
            family = "samples/identical" if share > 0.95 else "samples/repeated"
            return fault(family, SAMPLES, message, "CFG115", values=values, **fields)
        return Result("samples", CLEAN, SAMPLES, **fields)
    if share < 0.95:
        return Result("samples", CLEAN, SAMPLES, **fields)
    entropies = [row.values["entropy"] for each in series for row in each.rows if "entropy" in row.values]
    if entropies and min(entropies) > 0.1:
        return fault("samples/identical", SAMPLES, message, "CFG115", values=values, **fields)
    need = note("want_entropy", "the policy's entropy in the metrics, or the engine's log-probs")
    return Result("samples", NOT_DECIDED, SAMPLES, values=values, needed=(need,), **fields)


def _identity(row: Sample) -> object:
    return row.tokens.ids[max(0, row.tokens.prompt) :] if row.tokens else row.completion


def _probability(row: Sample) -> float | None:
    """Return the engine's probability of the completion."""
    if row.tokens is None or not row.tokens.engine:
        return None
    logprobs = row.tokens.engine[max(0, row.tokens.prompt) :]
    if not logprobs or any(value is None for value in logprobs):
        return None
    return exp(min(0.0, sum(value for value in logprobs if value is not None)))


def _ends(recording: Recording) -> Result:
    """Check whether completions end at all, and on one end token."""
    ended = [row.tokens for row in recording.rows if row.tokens and row.tokens.ended]
    if len(ended) < 16:
        need = "finish reasons: output.record_every=1 in grpo_core"
        return skipped("ends", SAMPLES, "want_finish_reasons", need)
    truncated = sum(tokens.ended == "length" for tokens in ended)
    values = {"share": truncated / len(ended), "count": len(ended)}
    estimates = (Estimate("cut", truncated / len(ended), *share_interval(truncated, len(ended))),)
    if truncated == len(ended):
        message = "all {count} completions end at the length limit"
        return fault(
            "ends/all_cut", SAMPLES, message, "CFG127", values=values, estimates=estimates, count=len(ended)
        )
    last = Counter(tokens.ids[-1] for tokens in ended if tokens.ended == "stop" and tokens.ids)
    stopped = sum(last.values())
    if stopped >= 50 and len(last) >= 8 and last.most_common(1)[0][1] < 0.3 * stopped:
        values |= {"ids": len(last), "stopped": stopped}
        message = "completions that stopped end on {ids} different ids: the end token is not recorded"
        return fault(
            "ends/dropped", SAMPLES, message, "TOK018", values=values, estimates=estimates, count=stopped
        )
    return Result("ends", CLEAN, SAMPLES, estimates=estimates, count=len(ended))


def check_rewards(recording: Recording, groups: list[list[Sample]]) -> Result:
    """Check for missing rewards and for groups whose rewards are all equal."""
    rewarded = [[row.total_reward for row in group] for group in groups]
    invalid = [row for row in recording.rows if row.total_reward is None]
    count = len(recording.rows)
    if invalid and (len(invalid) < count or any(row.scores for row in invalid)):
        values = {"missing": len(invalid), "count": count, "place": invalid[0].place}
        message = "{missing} of {count} rewards are missing or NaN (first: {place})"
        return fault("rewards/no_number", SAMPLES, message, "REW002", values=values, count=count)
    complete = [[reward for reward in group if reward is not None] for group in rewarded if None not in group]
    if len(complete) < 2 * _LEAST_GROUPS:
        return skipped(
            "rewards",
            SAMPLES,
            "want_rewards",
            "eight groups with rewards; there are {count}",
            count=len(complete),
        )
    return _reward_spread(complete, recording.kind)


def _reward_spread(groups: Sequence[Sequence[float]], place: str) -> Result:
    lowest, highest = min(map(min, groups)), max(map(max, groups))
    flat = [group[0] for group in groups if min(group) == max(group)]
    easy = sum(reward >= highest for reward in flat) if highest > lowest else 0
    values = {
        "share": len(flat) / len(groups), "groups": len(groups), "flat": len(flat), "easy": easy, "lowest": lowest,
        "hard": sum(reward <= lowest for reward in flat), "highest": highest,
    }  # fmt: skip
    text = (
        "{share:.0%} of {groups} groups have equal rewards, so no gradient: {hard} all {lowest:g}, {easy} all"
        " {highest:g}"
    )
    fields: dict[str, Any] = {
        "estimates": (
            Estimate("groups_without_spread", values["share"], *share_interval(len(flat), len(groups))),
        ),
        "count": sum(map(len, groups)),
        "evidence": (note("flat_groups", text, place, **values),),
    }
    if lowest == highest:
        message = "all rewards of all {groups} groups are {lowest:g}: no rollout produces a gradient"
        return fault("rewards/constant", SAMPLES, message, "REW004", values=values, **fields)
    if len(flat) == len(groups):
        message = (
            "no group has rewards that differ: {hard} of {groups} all {lowest:g}, {easy} all {highest:g}"
        )
        return fault("rewards/no_spread", SAMPLES, message, "REW004", values=values, **fields)
    if len(flat) >= _MOST_FLAT * len(groups) and easy < 0.5 * len(flat):
        message = (
            "{flat} of {groups} groups have equal rewards ({hard} all {lowest:g}): their rollouts produce"
            " no gradient"
        )
        return fault("rewards/little_spread", SAMPLES, message, "REW004", values=values, **fields)
    return Result("rewards", CLEAN, SAMPLES, **fields)
