"""P7: temperature, top-p and top-k out of texts alone, by the checkpoint that sampled them.

The text is tokenised again, and a row that does not come back the same is left out. Over a grid and then between its
points temperature and cut are those under which the text is likeliest: the most mass that ever stood before a sampled
token is top-p, the highest rank top-k. Special tokens are not in the texts: each place is judged given that it is none.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

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
from diagnostics.audit.recorded.rows import Unread
from diagnostics.collect.secrets import cut

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from diagnostics.audit.recorded.computed import Law, Places
    from diagnostics.audit.recorded.rows import Checkpoint, Remains, Row

PROBE = "P7"
_ENOUGH = 1024
_ALARM, _UNFIT = 0.05, 1e-7
_ROWS, _LONGEST = 2048, 1024


def ask(
    remains: Remains, checkpoint: Path | None, tokens: int, unread: list[Unread], asked: Mapping[str, float]
) -> Iterator[ProbeAnswer]:
    """One answer a class: temperature, and what cuts the distribution.

    Args:
        remains: What was read.
        checkpoint: That of the samples; None: of the run's own, each with the steps that it sampled.
        tokens: At most so many are computed.
        unread: What could not be.
        asked: What the trainer computes with: temperature, top_p, top_k; what is left out is 1, 1 and 0.
    """
    import importlib.util

    pairs = list(_pairs(remains, checkpoint))
    if not pairs or any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
        wanted = Fact("want_torch") if pairs else Fact("want_checkpoint")
        yield ProbeAnswer("text", NOT_ASKED, PROBE, wanted=(wanted,))
        return
    from diagnostics.audit.recorded import computed

    found: Places | None = None
    for folder, rows in pairs:
        left = tokens - (found.count if found else 0)
        if left <= 0:
            break
        try:
            more = computed.places(folder, rows, left, _LONGEST)
        except Exception as error:  # noqa: BLE001 - a checkpoint can fail to load in as many ways as there are models
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            unread.append(Unread(str(folder), cut(f"{type(error).__name__}: {first}", 200)))
            continue
        found = more if found is None else found.joined(more)
    if found is None or found.count < _ENOUGH:
        values = {"count": found.count if found else 0, "enough": _ENOUGH}
        yield ProbeAnswer(
            "text", NOT_ASKED, PROBE, values=values, wanted=(Fact("want_tokens_of_text", values),)
        )
        return
    yield from _judged(found, asked)


def _pairs(remains: Remains, checkpoint: Path | None) -> Iterator[tuple[Path, list[Row]]]:
    """Checkpoints with the samples that they sampled: those of the step that follows."""
    recordings = [
        recording for recording in remains.recordings if any(_usable(row) for row in recording.rows)
    ]
    for recording in recordings[:1]:
        steps = recording.steps()
        if checkpoint is not None:
            yield checkpoint, _drawn([row for rows in steps.values() for row in rows])
            return
        for each in reversed(_loading(remains.checkpoints)):
            if each.step + 1 in steps:
                yield each.folder, _drawn(steps[each.step + 1])


def _loading(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    return [each for each in checkpoints if each.step >= 0 and each.loads]


def _usable(row: Row) -> bool:
    return bool(row.prompt and row.completion)


def _drawn(rows: list[Row]) -> list[Row]:
    """Some of many, the same each time."""
    usable = [row for row in rows if _usable(row)]
    return random.Random(0).sample(usable, min(len(usable), _ROWS))


def _judged(found: Places, asked: Mapping[str, float]) -> Iterator[ProbeAnswer]:
    wanted = {
        "temperature": asked.get("temperature", 1.0),
        "top_p": asked.get("top_p", 1.0),
        "top_k": asked.get("top_k", 0),
    }
    laws = found.laws(wanted["temperature"])
    law, second = laws[0], laws[1]
    facts = (
        Fact("text_read", {"count": found.count, "rows": found.rows, "left_out": found.left_out}),
        Fact("text_fit", {"chance": law.fits, "outliers": law.outliers}),
    )
    temperature = Estimate(
        "temperature",
        round(law.temperature, 4),
        law.temperature - 1.96 * law.error,
        law.temperature + 1.96 * law.error,
        wanted["temperature"],
    )
    if law.fits < _UNFIT:
        # No law of these makes the text: it is another checkpoint's, or was altered.
        yield ProbeAnswer("text", NOT_DECIDED, PROBE, estimates=(temperature,), count=found.count, facts=facts,
                          wanted=(Fact("want_checkpoint_of_step"),))  # fmt: skip
        return
    off = abs(law.temperature - wanted["temperature"])
    values = {"value": law.temperature, "expected": wanted["temperature"]}
    outcome = CLEAN
    if off > max(_ALARM, 3 * law.error):
        outcome = FAULT
    elif law.error > _ALARM / 2:
        outcome = NOT_DECIDED
    yield ProbeAnswer(
        "text/temperature", outcome, PROBE, "NUM001" if outcome == FAULT else "", values, (temperature,), off,
        law.error,
        _ALARM, RunnerUp(second.kind, abs(law.gain - second.gain)), found.count, facts=facts,
        wanted=(Fact("want_tokens_of_text", {"count": found.count, "enough": 4 * found.count}),)
        if outcome == NOT_DECIDED else (),
    )  # fmt: skip
    yield _cut(found, law, wanted, facts)


def _cut(found: Places, law: Law, wanted: Mapping[str, float], facts: tuple[Fact, ...]) -> ProbeAnswer:
    """What cuts the distribution: seen where nothing fell outside of it, and a good many tokens should have."""
    lacking = found.lacking(law)
    values = {"value": law.value, "lacking": lacking, "expected": wanted.get(law.kind, 1.0)}
    same = law.kind != "whole" and abs(law.value - wanted[law.kind]) <= (
        0.004 if law.kind == "top_p" else 0.5
    )
    if law.kind == "whole" or same or lacking < 14:
        kinds = {name: wanted[name] for name in ("top_p", "top_k")}
        told = (
            (Estimate(law.kind, round(law.value, 4), expected=values["expected"]),)
            if law.kind != "whole"
            else ()
        )
        return ProbeAnswer(
            "text/support", CLEAN, PROBE, values=kinds, estimates=told, count=found.count, facts=facts
        )
    estimate = Estimate(
        law.kind, round(law.value, 4) if law.kind == "top_p" else int(law.value), expected=values["expected"]
    )
    return ProbeAnswer(
        f"text/{law.kind}", FAULT, PROBE, "NUM002", values, (estimate,), count=found.count, facts=facts,
        runner_up=RunnerUp("whole", law.gain),
    )  # fmt: skip
