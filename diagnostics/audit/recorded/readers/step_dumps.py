"""verl's `{step}.jsonl` in `trainer.rollout_data_dir`: one object a sample.

As read in verl 0.10.0.dev (1dda039b9), verl/trainer/ppo/ray_trainer.py, _log_rollout_data and _write_generations: input
and output (text, special tokens left out), gts, score, step, what the reward adds, request_id. Ids, log-probs and
advantages are not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.audit.recorded.readers import plain
from diagnostics.audit.recorded.rows import Recording, Row, Unread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KIND = "step.jsonl"
_OWN = {"input", "output", "score", "step"}


def is_one(entry: dict[str, Any]) -> bool:
    """Whether an object is of this kind."""
    return {"input", "output", "score"} <= entry.keys()


def read(paths: Sequence[Path], budget: plain.Budget, unread: list[Unread]) -> Recording | None:
    """The samples of these files, in the order of their steps."""
    rows: list[Row] = []
    files = 0
    for path in plain.chosen(sorted(paths, key=plain.in_steps)):
        bad = _teller(path, unread)
        try:
            if not budget.spend(path.stat().st_size):
                bad("more than is read of one run")
                break
            found = [_row(entry, path, line) for line, entry in plain.lines(path, bad) if is_one(entry)]
        except plain.UNREADABLE as error:
            bad(str(error))
            continue
        files += bool(found)
        rows += found[: budget.rows]
        budget.rows -= len(found[: budget.rows])
    return Recording(KIND, tuple(rows), files=(len(paths), files)) if rows else None


def _teller(path: Path, unread: list[Unread]) -> Any:
    return lambda why: unread.append(Unread(str(path), why))


def _row(entry: dict[str, Any], path: Path, line: int) -> Row:
    step = plain.whole(entry.get("step"))
    score = plain.number(entry["score"])
    return Row(
        plain.in_steps(path) if step is None else step,
        plain.text_of(entry["input"]),
        plain.text_of(entry["output"]),
        reward=score,
        advantage=plain.number(entry.get("advantage")),
        scores={"score": score},
        columns={name: value for name, value in entry.items() if name not in _OWN},
        place=f"{path.name}:{line}",
    )
