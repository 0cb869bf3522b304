"""What is put to a server: texts for its ids, sequences to score, prompts to sample from. The same at every audit."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXTS = (
    "A farmer has 17 sheep. All but 9 run away. How many are left? Let us think step by step: all but 9 means that 9"
    " stay, so that the answer is 9.",
    "What is 24 * 17? First 24 * 10 = 240, then 24 * 7 = 168, and 240 + 168 = 408. The answer is 408.",
    "The quick brown fox jumps over the lazy dog; then, at 7:45 p.m., it sleeps. def f(x): return [y**2 for y in x]",
    "Solve x^2 - 5x + 6 = 0. It factors as (x - 2)(x - 3) = 0, which gives x = 2 or x = 3.",
)
CHAT = ({"role": "user", "content": "What is 24 * 17? Answer with a number."},)


def sequences(words: Any, vocabulary: int, longest: int, count: int, first: int) -> list[list[int]]:
    """Sequences to score: texts, then ids at random, on which weights that differ differ most.

    Args:
        words: The tokenizer; None: random ids alone.
        vocabulary: Ids to choose from.
        longest: Ids of one.
        count: Ids of all.
        first: What a sequence begins with; -1: nothing.
    """
    head = [first] if first >= 0 else []
    generator = random.Random(17 if words is not None else 18)
    made: list[list[int]] = []
    if words is not None:
        ids = words(" ".join(TEXTS * 4), add_special_tokens=False)["input_ids"]
        made.append((head + ids)[: min(longest, count // 2)])
    special = set(words.all_special_ids) if words is not None else set()
    choice = [token for token in range(vocabulary) if token not in special]
    while (missing := count - sum(map(len, made))) > 8:
        size = min(longest, missing) - len(head)
        made.append(head + [choice[generator.randrange(len(choice))] for _ in range(size)])
    return made


def long(words: Any, vocabulary: int, size: int, first: int) -> list[int]:
    """A prompt that is longer than a block of keys, and that nothing else of an audit begins with."""
    if words is None:
        return sequences(None, vocabulary, size, size, first)[0][::-1]
    head = [first] if first >= 0 else []
    ids = words(" ".join((*reversed(TEXTS),) * 4), add_special_tokens=False)["input_ids"]
    return (head + list(ids))[:size]


def prompts(words: Any, vocabulary: int, first: int, count: int = 4, size: int = 10) -> list[list[int]]:
    """Beginnings to sample from: of texts, or of random ids."""
    head = [first] if first >= 0 else []
    if words is None:
        return [head + one[1:] for one in sequences(None, vocabulary, size, count * size, -1)]
    return [
        (head + words(TEXTS[place % len(TEXTS)], add_special_tokens=False)["input_ids"])[:size]
        for place in range(count)
    ]


def known(sequence: Sequence[int], vocabulary: int) -> bool:
    """Whether all ids are in the vocabulary."""
    return all(0 <= token < vocabulary for token in sequence)
