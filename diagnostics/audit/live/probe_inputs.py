"""Create the inputs of the probes (sequences to score, prompts), and divide the token limit of an audit (`Budget`).

The inputs are texts and random ids from a fixed seed: `score_sequences`, `long_prompt` and `sample_prompts` return
them. The budget reserves tokens for sampling, prefix cache and replicas. The rest is for two comparisons of weights,
each up to a limit. The second runs if the first is not clean and does not name another checkpoint.
"""

import random

from diagnostics.audit.live.checkpoint_tokenizer import Tokenizer

# Tokens for samples with their prompts, for the first comparison of weights, and for a second.
_SAMPLING_TOKENS, _FIRST_TOKENS, _SECOND_TOKENS = 480, 640, 2300
# Number of ids that are scored repeatedly to detect different replicas, and the number of repetitions.
REPLICA_IDS, REPLICA_CALLS = 48, 6
# The default of --tokens. The numbers above are for this default; a larger value increases samples and second
# comparison in proportion.
DEFAULT_TOKENS = 4000
MIN_TOKENS, MAX_TOKENS = 2200, 1_000_000
IdLists = list[list[int]]

TEXTS = (
    "A farmer has 17 sheep. All but 9 run away. How many are left? Let us think step by step: all but 9 means that 9"
    " stay, so that the answer is 9.",
    "What is 24 * 17? First 24 * 10 = 240, then 24 * 7 = 168, and 240 + 168 = 408. The answer is 408.",
    "The quick brown fox jumps over the lazy dog; then, at 7:45 p.m., it sleeps. def f(x): return [y**2 for y in x]",
    "Solve x^2 - 5x + 6 = 0. It factors as (x - 2)(x - 3) = 0, which gives x = 2 or x = 3.",
)
CHAT = ({"role": "user", "content": "What is 24 * 17? Answer with a number."},)


def score_sequences(
    tokenizer: Tokenizer | None, vocabulary: int, longest: int, count: int, bos: list[int]
) -> IdLists:
    """Return sequences to score: one of text, the others of random ids, which distinguish weights best.

    Args:
        tokenizer: Tokenizes the texts; None for random ids only.
        vocabulary: Number of ids to choose from.
        longest: Maximum number of ids in one sequence.
        count: Number of ids in all sequences together, of which up to 8 may be missing.
        bos: Begin-of-sequence id that each sequence starts with; empty for none.
    """
    generator = random.Random(17 if tokenizer is not None else 18)
    sequences: IdLists = []
    if tokenizer is not None:
        ids = tokenizer.encode(" ".join(TEXTS * 4), special=False)
        sequences.append((bos + ids)[: min(longest, count // 2)])
    special = set(tokenizer.all_special_ids) if tokenizer is not None else set()
    choices = [token for token in range(vocabulary) if token not in special] or [*range(vocabulary)]
    while (missing := count - sum(map(len, sequences))) > 8:
        size = min(longest, missing) - len(bos)
        sequences.append(bos + [choices[generator.randrange(len(choices))] for _ in range(size)])
    return sequences


def long_prompt(tokenizer: Tokenizer | None, vocabulary: int, size: int, bos: list[int]) -> list[int]:
    """Return a prompt of at most `size` ids for the prefix-cache probe; after `bos` it begins unlike other probes."""
    if tokenizer is None:
        return score_sequences(None, vocabulary, size, size, bos)[0][::-1]
    ids = tokenizer.encode(" ".join((*reversed(TEXTS),) * 4), special=False)
    return (bos + ids)[:size]


def sample_prompts(tokenizer: Tokenizer | None, vocabulary: int, bos: list[int], count: int) -> IdLists:
    """Return `count` prompts of at most ten ids to sample from: beginnings of texts, or random ids."""
    size = 10
    if tokenizer is None:
        return [bos + ids[1:] for ids in score_sequences(None, vocabulary, size, count * size, [])]
    texts = [TEXTS[index % len(TEXTS)] for index in range(count)]
    return [(bos + tokenizer.encode(text, special=False))[:size] for text in texts]


class Budget:
    """The number of tokens that each probe of an audit may cost.

    Attributes:
        longest: Maximum number of ids in one scored sequence or cache prompt.
        sampling: Tokens for samples and their prompts.
        first_comparison: Number of ids that the first comparison of weights scores.
        needed: The smallest number of tokens that an audit needs.
    """

    def __init__(self, tokens: int, longest: int, prompts: int = 1) -> None:
        """Divide `tokens`, the limit on prompt and sampled tokens, for an audit with `prompts` long cache prompts."""
        self.longest, self._scale = longest, max(DEFAULT_TOKENS, tokens) / DEFAULT_TOKENS
        self.sampling = int(_SAMPLING_TOKENS * self._scale)
        # Each long prompt is sent twice, and one of them again at the end.
        reserved = self.sampling + REPLICA_CALLS * (REPLICA_IDS + 1) + (2 * prompts + 1) * (longest + 1)
        self._left = tokens - reserved
        self.first_comparison = min(_FIRST_TOKENS, self._ids(self._left))
        self.needed = reserved + _FIRST_TOKENS // 2

    def second_comparison(self, spent: int) -> int:
        """Return the number of ids for the second comparison, if the first cost `spent` tokens."""
        return min(int(_SECOND_TOKENS * self._scale), self._ids(self._left - spent))

    def _ids(self, tokens: int) -> int:
        """Return the number of ids that can be scored with some tokens; each call also samples one token."""
        return tokens * self.longest // (self.longest + 1) - 2
