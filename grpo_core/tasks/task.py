"""The shipped task: write a word again (or backwards), a reward that can be checked from the text."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, Any

from grpo_core.tasks.model import SEPARATOR
from grpo_core.types import Prompt, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_core.config import TaskConfig
    from grpo_core.types import Completion, Scored

PROBE_TOKENS = 160  # see `long_prompt`


def rows(options: TaskConfig, tokenizer: Any, *, seed: int, step: int | str, count: int) -> list[Prompt]:
    """The prompts of one step: a function of seed and step alone, so the same in every mode.

    A step with a name instead of a number has rows that no step of training has.

    Raises:
        ValueError: The tokenizer makes no tokens of a prompt.
    """
    draw = random.Random(derived_seed(seed, "rows", step))
    prompts = []
    for place in range(count):
        length = draw.randint(options.min_length, options.max_length)
        word = "".join(draw.choice(options.letters) for _ in range(length))
        text = word + SEPARATOR
        ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        if not ids:
            raise ValueError(f"the tokenizer makes no tokens of the prompt {text!r}")
        answer = word if options.kind == "repeat" else word[::-1]
        prompts.append(Prompt(f"{step}.{place}", text, ids, {"answer": answer}))
    return prompts


def letters_in_place(completions: list[str], answer: list[str]) -> list[float]:
    """The share of letters that stand where the answer has them; too long or too short costs as much.

    >>> letters_in_place(["abc", "abd", "ab", "abcabc"], answer=["abc"] * 4)
    [1.0, 0.6666666666666666, 0.6666666666666666, 0.5]
    """
    return [
        sum(a == b for a, b in zip(right, given)) / max(len(right), len(given), 1)  # noqa: B905
        for right, given in zip(answer, completions, strict=True)
    ]


def score(prompts: Sequence[Prompt], completions: Sequence[Completion], texts: Sequence[str]) -> list[Scored]:  # noqa: ARG001 - its text counts
    """The reward of each text, by its prompt's answer; all three are aligned."""
    values = letters_in_place(list(texts), [prompt.columns["answer"] for prompt in prompts])
    return [(value, {"letters_in_place": value}) for value in values]


def requests_for(prompts: list[Prompt], group_size: int, seed: int) -> list[Request]:
    """`group_size` requests a prompt, each with its own seed, in the order of the prompts."""
    return [
        Request(f"{prompt.id}.{index}", prompt.ids, derived_seed(seed, "sample", prompt.id, index))
        for prompt in prompts
        for index in range(group_size)
    ]


def long_prompt(ids: tuple[int, ...], room: int) -> tuple[int, ...]:
    """A probe's prompt: `ids` repeated to 160 tokens, or to as many as there is room for.

    Engines cache a prompt's keys in whole blocks, of 128 tokens in vLLM's CPU build: on a shorter prompt, keys
    that were cached under the old weights and are still used would go unseen.

    >>> long_prompt((1, 2, 3), room=5)
    (1, 2, 3, 1, 2)
    """
    length = max(1, min(PROBE_TOKENS, room))
    return (ids * length)[:length]


def derived_seed(*parts: object) -> int:
    """A seed below 2**63 from whatever identifies its use; stable across processes, unlike `hash`.

    >>> derived_seed(0, "sample", "3.1", 0) == derived_seed(0, "sample", "3.1", 0)
    True
    >>> derived_seed(0, "sample", "3.1", 0) == derived_seed(0, "sample", "3.1", 1)
    False
    """
    digest = hashlib.sha256("/".join(map(repr, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
