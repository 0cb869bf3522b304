"""Attempts made again and again, each in a process of its own: does the same come of them every time?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from repro import upstream
from repro.base import INCOMPLETE, Attempt, AttemptOutcome

Pair = tuple[str, "str | None"]
SCHEMA = "grpo-doctor.repeat.v1"


def came_of_it(attempt: Attempt) -> tuple[Any, ...]:
    """Returns what must be the same each time: the outcome, the place, and what was counted.

    Left out is what differs by nature: seconds, and the words, which hold addresses and ports.
    """
    return (
        attempt.outcome.value,
        attempt.where,
        attempt.function,
        attempt.assertion,
        attempt.finished,
        attempt.expected,
        attempt.tokens,
        attempt.leaked_blocks,
    )


def by_pair(attempts: Sequence[Attempt]) -> dict[Pair, list[Attempt]]:
    """Returns the attempts of each (trigger, mitigation)."""
    found: dict[Pair, list[Attempt]] = {}
    for attempt in attempts:
        found.setdefault((attempt.trigger, attempt.mitigation), []).append(attempt)
    return found


def differs(attempts: Sequence[Attempt]) -> bool:
    """Whether not all of these came to the same."""
    return len({came_of_it(attempt) for attempt in attempts}) > 1


def exit_code(results: Mapping[str, Sequence[Attempt]]) -> int:
    """Returns 1 if anything differs or is not as recorded, 3 where no answer ever came, else 0."""
    for attempts in results.values():
        pairs = by_pair(attempts).values()
        if any(differs(pair) for pair in pairs) or any(item.as_recorded is False for item in attempts):
            return 1
    outcomes = {attempt.outcome for attempts in results.values() for attempt in attempts}
    return 3 if outcomes & INCOMPLETE else 0


def text(
    results: Mapping[str, Sequence[Attempt]], proof: upstream.WheelProof | None, seconds: float
) -> list[str]:
    """Returns the lines of the table."""
    every = [attempt for attempts in results.values() for attempt in attempts]
    tried = sum(attempt.outcome is not AttemptOutcome.INAPPLICABLE for attempt in every)
    apart = sum(differs(pair) for attempts in results.values() for pair in by_pair(attempts).values())
    lines = [f"{tried} attempts in {seconds:.0f} s; pairs that differ from time to time: {apart}"]
    lines.append(", ".join(f"{name} {version}" for name, version in upstream.versions().items()))
    if proof:
        lines.append(f"{proof.files_checked} Python files compared, {len(proof.modified)} modified")
    for code, attempts in results.items():
        lines += ["", code, *_lines(attempts)]
    return lines


def _lines(attempts: Sequence[Attempt]) -> Iterator[str]:
    told = ""
    for (trigger, mitigation), pair in by_pair(attempts).items():
        if trigger != told:
            told = trigger
            yield f"  {trigger}:"
        counts = Counter(attempt.outcome.value for attempt in pair)
        said = ", ".join(f"{count} of {len(pair)} {outcome}" for outcome, count in counts.most_common())
        mark = "  << differs" if differs(pair) else ""
        if any(attempt.as_recorded is False for attempt in pair):
            mark += "  << not what is on record"
        yield f"    {f'with {mitigation}' if mitigation else 'as it is':<28}{said}{mark}"
        if differs(pair):
            yield from _kinds(pair)


def _kinds(pair: Sequence[Attempt]) -> Iterator[str]:
    """Yields what came of a pair that differs, the most frequent first, with an example's words."""
    for kind, count in Counter(map(came_of_it, pair)).most_common():
        example = next(attempt for attempt in pair if came_of_it(attempt) == kind)
        place = f"{example.where} in {example.function}; " if example.where else ""
        yield f"        {count}: {example.outcome.value}; {place}{example.detail}"


def document(
    results: Mapping[str, Sequence[Attempt]], proof: upstream.WheelProof | None, seconds: float
) -> dict[str, Any]:
    """Returns the JSON document."""
    return {
        "schema": SCHEMA,
        "versions": upstream.versions(),
        "upstream": proof.to_json() if proof else None,
        "seconds": round(seconds, 1),
        "codes": {
            code: [
                {
                    "trigger": trigger,
                    "mitigation": mitigation,
                    "times": len(pair),
                    "outcomes": dict(Counter(attempt.outcome.value for attempt in pair)),
                    "differs": differs(pair),
                    "seconds": [attempt.seconds for attempt in pair],
                }
                for (trigger, mitigation), pair in by_pair(attempts).items()
            ]
            for code, attempts in results.items()
        },
    }
