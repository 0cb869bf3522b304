"""The prompts over the steps: what a resume repeats; and what stands in completions that should not."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from diagnostics.audit.model import CLEAN, FAULT, NOT_ASKED, NOT_DECIDED, Estimate, Fact, ProbeAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diagnostics.audit.recorded.rows import Recording, Remains, Row

PROBE = "data"
_LEAST = 3


def ask(remains: Remains) -> Iterator[ProbeAnswer]:
    """Order and pairing, of each recording with texts."""
    for recording in remains.recordings:
        yield _order(recording)
        yield _pairing(recording)
    if not remains.recordings:
        yield ProbeAnswer("data", NOT_ASKED, PROBE, wanted=(Fact("want_completions"),))


def _order(recording: Recording) -> ProbeAnswer:
    """Whether a step has the prompts of an earlier one although others had not been seen yet."""
    steps = _generations(recording)
    if len(steps) < 4 or recording.files[0] > recording.files[1]:
        return ProbeAnswer("data", NOT_ASKED, PROBE, wanted=(Fact("want_steps", {"count": len(steps)}),))
    order = [step for step, _ in steps]
    prompts = [Counter(set(found)) for _, found in steps]
    size = min(map(len, prompts))
    first: dict[frozenset[str], int] = {}
    repeated: list[tuple[int, int]] = []
    for place, found in enumerate(prompts):
        key = frozenset(found)
        if key in first and place - first[key] >= 1:
            repeated.append((first[key], place))
        first.setdefault(key, place)
    seen_when: dict[str, int] = {}
    for place, found in enumerate(prompts):
        for prompt in found:
            seen_when.setdefault(prompt, place)
    everything = len(seen_when)
    newest = max(seen_when.values(), default=0)
    # Drawn without replacement, nothing comes again before everything has come once.
    early = [(one, other) for one, other in repeated if newest > other]
    if size >= _LEAST and early and everything >= 3 * size:
        values = {
            "from": order[early[0][0]],
            "to": order[early[-1][0]],
            "at": order[early[0][1]],
            "count": len(early),
        }
        facts = (Fact("steps_repeated", values, recording.kind),)
        return ProbeAnswer(
            "data/repeated", FAULT, PROBE, "CFG126", values, (Estimate("steps_repeated", len(early)),),
            count=len(steps), facts=facts,
        )  # fmt: skip
    if size < _LEAST:
        return ProbeAnswer("data", NOT_ASKED, PROBE, wanted=(Fact("want_prompts", {"count": size}),))
    return ProbeAnswer("data", CLEAN, PROBE, count=len(steps))


def _generations(recording: Recording) -> list[tuple[int, tuple[str, ...]]]:
    """The prompts of each step; steps that were trained on the same completions count once."""
    found: list[tuple[int, tuple[str, ...]]] = []
    before: list[tuple[str, str]] = []
    for step, rows in _in_order(recording):
        own = [(row.prompt, row.completion) for row in rows]
        if own != before and any(row.prompt for row in rows):
            found.append((step, tuple(dict.fromkeys(row.prompt for row in rows))))
        before = own
    return found


def _in_order(recording: Recording) -> list[tuple[int, list[Row]]]:
    """The steps as they were written: of a run that went on, a number may come twice."""
    found: list[tuple[int, list[Row]]] = []
    for row in recording.rows:
        if not found or found[-1][0] != row.step:
            found.append((row.step, []))
        found[-1][1].append(row)
    return found


def _pairing(recording: Recording) -> ProbeAnswer:
    """Whether completions begin with their prompt, hold another's, or fit another's words better than their own's."""
    rows = [row for row in recording.rows[:8192] if row.prompt and row.completion]
    if len(rows) < 16:
        return ProbeAnswer("pairing", NOT_ASKED, PROBE, wanted=(Fact("want_texts"),))
    own = sum(len(row.prompt) >= 8 and row.completion.startswith(row.prompt) for row in rows)
    steps = [found for _, found in _in_order(recording) if len({row.prompt for row in found}) > 1][:200]
    other = compared = 0
    for found in steps:
        prompts = {row.prompt for row in found if len(row.prompt) >= 24}
        for row in found:
            compared += 1
            other += row.prompt not in row.completion and any(
                prompt in row.completion for prompt in prompts if prompt != row.prompt
            )
    values = {"own": own / len(rows), "other": other / max(1, compared), "count": len(rows)}
    facts = (Fact("leaks", values, recording.kind),)
    if own > 0.5 * len(rows):
        return ProbeAnswer("pairing/echo", FAULT, PROBE, "TOK019", values, count=len(rows), facts=facts)
    if other > max(4, 0.2 * compared):
        return ProbeAnswer("pairing/other", FAULT, PROBE, "TOK019", values, count=len(rows), facts=facts)
    return _by_words(steps, recording, facts)


def _by_words(steps: Sequence[list[Row]], recording: Recording, facts: tuple[Fact, ...]) -> ProbeAnswer:
    """The words that a prompt has alone: do they stand in its own completions more than in others'?"""
    own = told = 0
    beside: Counter[int] = Counter()
    for rows in steps:
        prompts = list(dict.fromkeys(row.prompt for row in rows))
        words = [set(_words(prompt)) for prompt in prompts]
        often = Counter(word for found in words for word in found)
        rare = [{word for word in found if often[word] == 1} for found in words]
        for row in rows:
            said = set(_words(row.completion))
            scores = [len(said & found) / max(1, len(found)) for found in rare]
            best = max(scores)
            if best <= 0 or scores.count(best) > 1:
                continue
            told += 1
            place, at = scores.index(best), prompts.index(row.prompt)
            own += place == at
            beside[(place - at) % len(prompts)] += place != at
    values = {"own": own / told if told else 0.0, "count": told}
    if told < 24:
        return ProbeAnswer("pairing", NOT_ASKED, PROBE, facts=facts, wanted=(Fact("want_words", values),))
    width = max(2, *(len({row.prompt for row in rows}) for rows in steps))
    shift, most = beside.most_common(1)[0] if beside else (0, 0)
    # By chance one in `width` is one's own. Somebody else's, always the same one, is no chance.
    if own < 0.5 * most and most > 0.4 * told:
        values |= {"shift": shift, "most": most / told}
        return ProbeAnswer("pairing/shifted", FAULT, PROBE, "TOK019", values, count=told, facts=facts)
    if own * width < 1.5 * told and told > 100:
        return (
            ProbeAnswer(
                "pairing",
                NOT_DECIDED,
                PROBE,
                values=values,
                count=told,
                facts=facts,
                wanted=(Fact("want_checkpoint"),),
            )
            if _should_tell(recording)
            else ProbeAnswer("pairing", NOT_ASKED, PROBE, facts=facts)
        )
    return ProbeAnswer("pairing", CLEAN, PROBE, values=values, count=told, facts=facts)


def _should_tell(recording: Recording) -> bool:
    """Whether completions of this recording are long enough to speak of what was asked."""
    lengths = sorted(len(row.completion) for row in recording.rows[:512])
    return lengths[len(lengths) // 2] > 400


def _words(text: str) -> list[str]:
    return [word for word in text[:20_000].lower().split() if len(word) > 2 or word.isdigit()]
