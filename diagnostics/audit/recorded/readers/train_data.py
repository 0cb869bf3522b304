"""NeMo-RL's `train_data_step12.jsonl`: one object a sample, padded to the longest of its batch.

As read in NeMo-RL 0.6.0 (7ea279abf), nemo_rl/algorithms/grpo.py, grpo_train: content, rewards, input_lengths,
token_ids, token_loss_mask, sample_loss_mask, advantages, generation_logprobs and prev_logprobs, one a token, 0 of the
prompt. Rows stand as they were sampled, those of a prompt side by side; the prompt is what is not in the mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.audit.recorded.readers import plain
from diagnostics.audit.recorded.rows import Recording, Row, Tokens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diagnostics.audit.recorded.rows import Unread

KIND = "train_data_step.jsonl"


def is_one(entry: dict[str, Any]) -> bool:
    """Whether an object is of this kind."""
    return {"token_ids", "generation_logprobs", "token_loss_mask"} <= entry.keys()


def read(paths: Sequence[Path], budget: plain.Budget, unread: list[Unread]) -> Recording | None:
    """The samples of these files, in the order of their steps."""
    inorder = sorted(paths, key=plain.in_steps)
    rows, files = plain.rows_of(inorder, budget, unread, is_one, _row)
    return Recording(KIND, rows, files=(len(paths), files)) if rows else None


def _row(entry: dict[str, Any], path: Path, line: int) -> Row:
    ids = tuple(int(each) for each in entry["token_ids"])
    length = plain.whole(entry.get("input_lengths")) or len(ids)
    mask = tuple(bool(each) for each in entry["token_loss_mask"])[:length]
    advantages = [plain.number(each) for each in entry.get("advantages", [])][:length]
    own = [value for value, trained in zip(advantages, mask, strict=False) if trained and value is not None]
    sampled = plain.numbers(entry["generation_logprobs"])[:length]
    trainer = plain.numbers(entry.get("prev_logprobs"))[:length]
    content = entry.get("content")
    prompt, completion = _texts(content)
    first = next((place for place, value in enumerate(sampled) if value), len(ids[:length]))
    return Row(
        plain.in_steps(path),
        prompt or " ".join(map(str, ids[:first])),
        completion,
        reward=plain.number(entry.get("rewards")),
        advantage=own[0] if own else next((each for each in advantages if each), 0.0 if advantages else None),
        scores={},
        tokens=Tokens(
            ids[:length],
            first,
            mask if plain.number(entry.get("sample_loss_mask", 1)) else (False,) * len(mask),
            plain.sampled(sampled, trainer, first, mask),
            (*[None] * first, *trainer[first:]),
        ),
        place=f"{path.name}:{line}",
    )


def _texts(content: object) -> tuple[str, str]:
    """Prompt and completion, where the content is a list of messages' texts: the last is what was sampled."""
    if isinstance(content, list) and len(content) > 1:
        return plain.text_of(content[:-1]), plain.text_of(content[-1])
    return "", plain.text_of(content)
