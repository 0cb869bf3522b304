"""Which tokens are in the loss, against which were sampled: the prompt's, tools', nobody's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.audit.model import CLEAN, FAULT, NOT_ASKED, Fact, ProbeAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.audit.recorded.rows import Recording, Remains, Tokens

PROBE = "masks"
_CODE = "NUM042"
# Above this the trainer is as sure of a token as an engine that says 0, whose cut leaves one id: it was sampled.
_CERTAIN = -0.5


def ask(remains: Remains) -> Iterator[ProbeAnswer]:
    """One answer a recording that has masks."""
    asked = False
    for recording in remains.recordings:
        samples = [row.tokens for row in recording.rows if row.tokens and row.tokens.trained]
        if len(samples) >= 8:
            asked = True
            yield _judged(recording, samples)
    if not asked:
        yield ProbeAnswer("masks", NOT_ASKED, PROBE, wanted=(Fact("want_tokens"),))


def _judged(recording: Recording, samples: list[Tokens]) -> ProbeAnswer:
    prompts = prompted = unsampled = trained = sampled = rows = whole = part = 0
    for each in samples:
        first = max(0, each.prompt)
        prompts += first
        prompted += sum(each.trained[:first])
        whole += first > 0 and all(each.trained[:first])
        part += any(each.trained[:first])
        behind = range(first, min(len(each.trained), len(each.ids)))
        trained += sum(each.trained[place] for place in behind)
        rows += any(each.trained)
        if each.engine:
            told = [place for place in behind if place < len(each.engine)]
            unsampled += sum(_unsampled(each, place) for place in told)
            sampled += sum(bool(each.engine[place]) for place in told)
    values = {
        "prompted": prompted,
        "prompts": prompts,
        "unsampled": unsampled,
        "trained": trained,
        "sampled": sampled,
        "rows": rows,
        "count": len(samples),
    }
    facts = (Fact("masked", values, recording.kind),)
    family = ""
    # Completions that begin with ids of certainty look as if their prompts were longer: some of them, and by a part.
    if prompted > 0.02 * max(prompts, 1) and (whole > 0.02 * len(samples) or part > 0.9 * len(samples)):
        family = "masks/prompt"
    elif unsampled > max(16, 0.05 * trained):
        # A log-prob of exactly 0 is one of certainty: a collapsed policy has some, a tool's answer nothing else.
        family = "masks/unsampled" if _in_runs(samples) else ""
    elif rows == 0:
        family = "masks/nothing"
    elif rows < 0.1 * len(samples):
        family = "masks/most_filtered"
    if family:
        return ProbeAnswer(family, FAULT, PROBE, _CODE, values, count=trained + prompted, facts=facts)
    return ProbeAnswer("masks", CLEAN, PROBE, values=values, count=trained, facts=facts)


def _in_runs(samples: list[Tokens]) -> bool:
    """Whether trained tokens without a log-prob of the engine stand in runs of four and more, as other's texts do."""
    runs = 0
    for each in samples:
        length = 0
        for place in range(max(0, each.prompt), min(len(each.trained), len(each.engine))):
            length = length + 1 if _unsampled(each, place) else 0
            runs += length == 4
    return runs * 4 >= max(4, len(samples) // 20)


def _unsampled(each: Tokens, place: int) -> bool:
    """Whether a token is in the loss that the engine has no log-prob of."""
    if each.engine[place] or not each.trained[place]:
        return False
    trainer = each.trainer[place] if place < len(each.trainer) else None
    return trainer is None or trainer < _CERTAIN
