"""prime-rl's `token_exports/step_12/rank_0.jsonl`, with `enable_token_export`: one object a sequence.

As read in prime-rl 559b44772 and 004274ec9, src/prime_rl/trainer/rl/token_export.py, schema version 1: token_ids,
position_ids, loss_mask, advantages, rewards, inference_logprobs, trainer_logprobs, entropy, one a token; None where a
number is not finite. Groups are not named: those of a step that have the same tokens before the first trained one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.audit.recorded.readers import plain
from diagnostics.audit.recorded.rows import Recording, Row, Tokens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diagnostics.audit.recorded.rows import Unread

KIND = "token_exports"


def is_one(entry: dict[str, Any]) -> bool:
    """Whether an object is of this kind."""
    return {"token_ids", "loss_mask", "inference_logprobs"} <= entry.keys()


def read(paths: Sequence[Path], budget: plain.Budget, unread: list[Unread]) -> Recording | None:
    """The sequences of these files, in the order of their steps."""
    inorder = sorted(paths, key=lambda path: (plain.in_steps(path.parent), path.name))
    rows, files = plain.rows_of(inorder, budget, unread, is_one, _row)
    return Recording(KIND, rows, files=(len(paths), files)) if rows else None


def _row(entry: dict[str, Any], path: Path, line: int) -> Row:
    ids = tuple(int(each) for each in entry["token_ids"])
    mask = tuple(bool(each) for each in entry["loss_mask"])
    engine = plain.numbers(entry["inference_logprobs"])
    trainer = plain.numbers(entry.get("trainer_logprobs"))
    # Nothing was sampled where the engine has no log-prob but 0; a sampled token has exactly 0 rarely, a prompt always.
    first = next((place for place, value in enumerate(engine) if value), len(ids))
    step = plain.whole(entry.get("step"))
    return Row(
        plain.in_steps(path.parent) if step is None else step,
        " ".join(map(str, ids[:first])),
        "",
        reward=_of_sample(entry.get("rewards"), first),
        advantage=_of_sample(entry.get("advantages"), first),
        tokens=Tokens(
            ids,
            first,
            mask,
            plain.sampled(engine, trainer, first, mask),
            (*[None] * first, *trainer[first:]),
        ),
        place=f"{path.parent.name}/{path.name}:{line}",
    )


def _of_sample(values: object, first: int) -> float | None:
    """What all sampled tokens of a sequence share: the largest of them, since others' tokens have 0."""
    told = [value for value in plain.numbers(values)[first:] if value is not None]
    return max(told, key=abs, default=None)
