"""ms-swift's `completions.jsonl`, with `log_completions`: one object a log event, whose values are lists.

As read in ms-swift 4.6.0.dev0 (3602360a5), swift/rlhf_trainers/grpo_trainer.py, GRPOTrainer.log: step (as text), prompt
(templated), completion, one list a reward function, advantages, further columns of the rollout, entropy where it is
logged. Since those of a log event are the last that were generated, an event may repeat an earlier one's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.audit.recorded.readers import plain
from diagnostics.audit.recorded.rows import Recording, Row, Unread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KIND = "completions.jsonl"
_OWN = {"step", "prompt", "completion", "advantages", "entropy", "rollout_infos", "solution"}


def is_one(entry: dict[str, Any]) -> bool:
    """Whether an object is of this kind."""
    return all(isinstance(entry.get(name), list) for name in ("prompt", "completion", "step"))


def read(paths: Sequence[Path], budget: plain.Budget, unread: list[Unread]) -> Recording | None:
    """The samples of the first of these files."""
    rows: list[Row] = []
    for path in paths[:1]:

        def bad(why: str, path: Path = path) -> None:
            unread.append(Unread(str(path), why))

        try:
            for line, entry in plain.lines(path, bad, min(plain.FILE, budget.left)):
                if not is_one(entry) or budget.rows <= 0:
                    continue
                found = rows_of(entry, f"{path.name}:{line}")
                rows += found
                budget.rows -= len(found)
        except plain.UNREADABLE as error:
            bad(str(error))
    return Recording(KIND, tuple(rows), files=(len(paths), 1)) if rows else None


def rows_of(entry: dict[str, Any], place: str) -> list[Row]:
    """The samples of one log event."""
    size = min(len(entry[name]) for name in ("prompt", "completion", "step"))
    rewards = {
        name: plain.numbers(value)
        for name, value in entry.items()
        if name not in _OWN and isinstance(value, list) and len(value) >= size and _are_numbers(value)
    }
    others = {
        name: value
        for name, value in entry.items()
        if name not in rewards
        and name not in _OWN - {"solution"}
        and isinstance(value, list)
        and len(value) >= size
    }
    advantages = plain.numbers(entry.get("advantages"))
    found = []
    for each in range(size):
        scores = {name: values[each] for name, values in rewards.items()}
        found.append(
            Row(
                plain.whole(entry["step"][each]) or 0,
                plain.text_of(entry["prompt"][each]),
                plain.text_of(entry["completion"][each]),
                reward=next(iter(scores.values())) if len(scores) == 1 else None,
                advantage=advantages[each] if each < len(advantages) else None,
                scores=scores,
                columns={name: value[each] for name, value in others.items()},
                place=f"{place}[{each}]",
            )
        )
    return found


def _are_numbers(values: list[Any]) -> bool:
    return all(value is None or plain.number(value) is not None or value != value for value in values)  # noqa: PLR0124
