"""The reward functions that come with the trainer; the shipped task's own is in `task`."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from grpo_core.tasks.task import letters_in_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpo_core.config import RewardConfig

NGRAM = 3  # words; what open-r1 and TRL use


def exact(completions: list[str], answer: list[Any]) -> list[float | None]:
    """1 where the completion is the answer, white space around either aside; None where the row has no answer.

    >>> exact([" 42", "42.0", "42"], answer=["42", 42, None])
    [1.0, 0.0, None]
    """
    pairs = zip(answer, completions, strict=True)
    return [None if right is None else float(given.strip() == str(right).strip()) for right, given in pairs]


def tags(prompts: list[str], completions: list[str]) -> list[float]:
    """1 for `<think>...</think><answer>...</answer>` and nothing else; the prompt may have ended with `<think>`.

    Takes linear time: the text is split at tags, not searched for a pattern that spans it.

    >>> tags(["2+2?"] * 2, ["<think>easy</think> <answer>4</answer>", "<answer>4</answer>"])
    [1.0, 0.0]
    """
    scores = []
    for prompt, completion in zip(prompts, completions, strict=True):
        text = "<think>" * prompt.rstrip().endswith("<think>") + completion
        parts = re.split(r"(</?(?:think|answer)>)", text)  # text, tag, text, ..., tag, text
        in_order = parts[1::2] == ["<think>", "</think>", "<answer>", "</answer>"]
        scores.append(float(in_order and not any(part.strip() for part in parts[::4])))
    return scores


def repetition(completions: list[str]) -> list[float]:
    """Minus the share of n-grams that repeat an earlier one; n-grams of words, in lower case.

    Source: appendix C.2 of arXiv 2502.03373, in words as open-r1 has it (`get_repetition_penalty_reward`).

    >>> repetition(["a b c d", "a b c a b c", "a b"])
    [0.0, -0.25, 0.0]
    """
    texts = [completion.lower().split() for completion in completions]
    ngrams = [[tuple(words[at : at + NGRAM]) for at in range(len(words) - NGRAM + 1)] for words in texts]
    return [(len(set(found)) - len(found)) / max(len(found), 1) for found in ngrams]


def soft_overlong(tokens: int, max_tokens: int, buffer: int, penalty: float) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, equation 13), times `penalty`.

    0 up to `max_tokens - buffer` tokens, from there linear to `-penalty` at `max_tokens`.

    >>> [soft_overlong(tokens, max_tokens=20, buffer=4, penalty=1.0) for tokens in (16, 17, 20, 21)]
    [0.0, -0.25, -1.0, -1.0]
    """
    return 0.0 - penalty * min(max(tokens - (max_tokens - buffer), 0) / buffer, 1.0)


def overlong_of(options: RewardConfig, max_tokens: int) -> Callable[[int], float]:
    """`soft_overlong` as these settings have it."""
    limits = {"max_tokens": max_tokens, "buffer": options.overlong_buffer}
    return functools.partial(soft_overlong, penalty=options.overlong_penalty, **limits)


BUILT_IN: dict[str, Callable[..., Any]] = {
    "exact": exact,
    "format": tags,
    "letters_in_place": letters_in_place,
    "repetition": repetition,
}
