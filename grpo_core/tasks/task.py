"""Generate the prompts of the shipped task (repeat or reverse a word), the requests, and their seeds."""

from __future__ import annotations

import hashlib
import random
from typing import Any

from grpo_core.config import TaskConfig
from grpo_core.tasks.model import SEPARATOR
from grpo_core.types import Prompt, Request

PROBE_TOKENS = 160  # see `long_prompt`


def task_prompts(
    options: TaskConfig, tokenizer: Any, *, seed: int, step: int | str, count: int
) -> list[Prompt]:
    """Build the prompts of one step; they depend only on the seed and the step, so every mode has the same.

    If `step` is a name such as "eval", the prompts are disjoint from those of training.

    Raises:
        ValueError: The tokenizer returns no tokens for a prompt.
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


def requests_for(prompts: list[Prompt], group_size: int, seed: int) -> list[Request]:
    """Build `group_size` requests per prompt, each with its own seed, in the order of the prompts."""
    return [
        Request(f"{prompt.id}.{index}", prompt.ids, derived_seed(seed, "sample", prompt.id, index))
        for prompt in prompts
        for index in range(group_size)
    ]


def long_prompt(ids: tuple[int, ...], room: int) -> tuple[int, ...]:
    """Repeat a probe's prompt to 160 tokens, or to as many as there is room for.

    Engines cache a prompt's keys in whole blocks, of 128 tokens in vLLM's CPU build. A shorter prompt would not detect
    stale keys that were cached under the old weights.

    >>> long_prompt((1, 2, 3), room=5)
    (1, 2, 3, 1, 2)
    """
    length = max(1, min(PROBE_TOKENS, room))
    return (ids * length)[:length]


def derived_seed(*parts: object) -> int:
    """Derive a seed below 2**63 from values that identify its use; stable across processes, unlike `hash`.

    >>> derived_seed(0, "sample", "3.1", 0) == derived_seed(0, "sample", "3.1", 0)
    True
    >>> derived_seed(0, "sample", "3.1", 0) == derived_seed(0, "sample", "3.1", 1)
    False
    """
    digest = hashlib.sha256("/".join(map(repr, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
