"""Check the texts of recorded completions: empty, past the end of the turn, repetitive, or mixed from two scripts.

It is a fault if the share of such texts, since the step at which they began, reaches a limit (5 to 20 %, `_CHECKS`). A
fault has this step, an example and likely causes. At most 8192 evenly spaced samples of a recording are read. The check
needs 64, and not only empty texts.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from diagnostics.audit.recorded.run_data import RunArtifacts, Sample
from diagnostics.audit.recorded.stats import mean, start_of_last_run
from diagnostics.audit.results import Result, clean, fault, note, skipped
from diagnostics.audit.training_curves import Curves
from diagnostics.output.redact import redact_tail

_MAX_SAMPLES, _MAX_CHARACTERS, _MIN_SAMPLES = 8192, 16_384, 64
# Texts of tools and of the environment belong to completions of several turns.
_TOOL_TEXT = re.compile(r"<\|?/?tool_(?:call|response)|</?(?:tool|information|observation|search)>")
_NEXT_TURN = re.compile(
    r"<\|(?:im_end|eot_id|endoftext|end_of_text)\|>\s*\S|<\|(?:im_start|start_header_id)\|>|<start_of_turn>"
    r"|\[/?INST\]|\n(?:user|assistant|human)\n|\n(?P<name>Human:|User:)"
)
# Cyrillic, Hebrew, Arabic, scripts of India, Thai, Japanese, Chinese, Korean.
_OTHER_SCRIPT = re.compile("[\u0400-\u04ff\u0590-\u06ff\u0900-\u0e7f\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")


def _continues_after_turn(row: Sample) -> bool:
    """Return whether a completion without tool calls has text after an end token, or the mark of a next turn."""
    match = None if _TOOL_TEXT.search(row.completion) else _NEXT_TURN.search(row.completion)
    # "User:" is the mark of a turn if the prompt has it, too; elsewhere it may be a dialogue.
    return match is not None and (match["name"] or "") in row.prompt


def _repeats(row: Sample) -> bool:
    """Return whether a text is one repeated character, or words that compress to less than a tenth, unlike prose."""
    text = row.completion[:_MAX_CHARACTERS]
    data = text.encode("utf-8", "replace")
    is_compressible = len(data) >= 400 and len(zlib.compress(data)) < 0.1 * len(data)
    is_one_character = len(text.strip()) >= 8 and len(set(text.strip())) == 1
    return is_one_character or (is_compressible and sum(map(str.isalpha, text)) > 0.3 * len(text))


def _mixes_scripts(row: Sample) -> bool:
    """Return whether words often alternate with words of another script, such as Chinese.

    False without a prompt, or if the prompt has any such script.
    """
    text = row.completion[:_MAX_CHARACTERS]
    if not row.prompt or not _OTHER_SCRIPT.search(text) or _OTHER_SCRIPT.search(row.prompt):
        return False
    flags = [bool(_OTHER_SCRIPT.search(word)) for word in text.split()]
    return sum(a != b for a, b in pairwise(flags)) >= max(10, len(flags) // 10)


# Family, property of a text, and share from which it is a fault.
_CHECKS: tuple[tuple[str, Callable[[Sample], bool], float], ...] = (
    ("texts/mixed_scripts", _mixes_scripts, 0.05),
    ("texts/empty", lambda row: not row.completion.strip(), 0.2),
    ("texts/next_turn", _continues_after_turn, 0.05),
    ("texts/repetition", _repeats, 0.1),
)


def check_texts(run: RunArtifacts) -> Iterator[Result]:
    """Check the completions of each recording; yield its faults, else a clean result.

    The result is skipped for fewer than 64 texts, or if all are empty.
    """
    curves = Curves(run.series[0].rows if run.series else ())  # for the framework's option names
    for recording in run.recordings:
        rows = recording.rows[:: len(recording.rows) // _MAX_SAMPLES + 1]
        if len(rows) < _MIN_SAMPLES or not any(row.completion for row in rows):
            yield skipped("texts", "want_texts:completions", least=_MIN_SAMPLES)
            continue
        faults = []
        for family, holds, alarm in _CHECKS:
            values, example = _measure(holds, alarm, rows)
            if example:
                fact = note("completion", example.place, text=redact_tail(example.completion, 160))
                evidence = (fact, *curves.causes(family))
                faults.append(fault(family, values, count=values["count"], evidence=evidence))
        yield from faults or [clean("texts", count=len(rows))]


def _measure(
    holds: Callable[[Sample], bool], alarm: float, rows: Sequence[Sample]
) -> tuple[dict[str, Any], Sample | None]:
    """Return share and span of the texts with a property, and an example; no example if the share is below the alarm.

    The span begins after the last three steps in a row whose share is below half of the alarm, or at the first step. It
    is the whole run if it would have fewer than 64 texts.
    """
    steps: dict[int, list[bool]] = {}
    for row in sorted(rows, key=lambda row: row.step):
        steps.setdefault(row.step, []).append(holds(row))
    numbers = list(steps)
    first = start_of_last_run([mean(flags) >= 0.5 * alarm for flags in steps.values()])
    flags = [flag for number in numbers[first:] for flag in steps[number]]
    if len(flags) < _MIN_SAMPLES:
        first, flags = 0, [flag for step_flags in steps.values() for flag in step_flags]
    span = f"since step {numbers[first]}" if first else "in the whole run"
    values = {"share": mean(flags), "span": span, "count": len(flags)}
    if mean(flags) < alarm:
        return values, None
    return values, next(row for row in rows if row.step >= numbers[first] and holds(row))
