"""How the tokens of an audit are shared out, and what is left out first where they are few.

The law of the samples and a first look at the weights are always asked; the cache and then the replicas are not where
there is no room for them; what is left looks at weights a second time.
"""

from __future__ import annotations

from dataclasses import dataclass

# For the law, prompts and samples; for a first look at the weights, and a second one.
_LAW, _FIRST, _SECOND = 480, 640, 2300
# Ids that are scored again and again to tell replicas apart, and how often.
REPLICA, CALLS = 48, 6
# What these are of. With more of them the law and the second look get more, too: else more would decide nothing.
USUAL = 4000
# With fewer ids scored than this no replicas are asked; with fewer tokens than that nothing is.
_ENOUGH, LEAST = 160, 560


@dataclass(frozen=True)
class Budget:
    """The tokens of an audit.

    Attributes:
        tokens: Of all questions together, prompts and samples.
        longest: Of one call.
        replicas: Other servers that are asked the same.
        prompts: Long prompts that the cache may be asked about.
    """

    tokens: int
    longest: int
    replicas: int = 0
    prompts: int = 1

    @property
    def law(self) -> int:
        """For samples, and the prompts that they are of."""
        return self._grown(_LAW)

    @property
    def same(self) -> int:
        """For whether all that answer are the same; 0: it is left out."""
        takes = (CALLS + self.replicas) * (REPLICA + 1)
        return takes if self.tokens - self.law - takes >= _ENOUGH else 0

    @property
    def cached(self) -> int:
        """How many long prompts the cache is asked about: each twice, and one of them twice more."""
        room = self.tokens - self.law - self.same - _FIRST // 2
        return max(0, min(self.prompts, room // self._twice - 1))

    @property
    def first(self) -> int:
        """How many ids are scored at first."""
        return min(_FIRST, self._ids(self.tokens - self._kept))

    def second(self, spent: int) -> int:
        """How many more, when the first of them have cost so much."""
        return min(self._grown(_SECOND), self._ids(self.tokens - self._kept - spent))

    @property
    def with_all(self) -> int:
        """With so many tokens one long prompt and the replicas are asked, too."""
        return _LAW + (CALLS + self.replicas) * (REPLICA + 1) + _FIRST // 2 + 2 * self._twice

    @property
    def _kept(self) -> int:
        """What the other questions may take."""
        return self.law + self.same + ((self.cached + 1) * self._twice if self.cached else 0)

    @property
    def _twice(self) -> int:
        return 2 * (self.longest + 1)

    def _ids(self, tokens: int) -> int:
        """A call samples a token beside what it scores; there may be one call more than the ids fill."""
        return tokens * self.longest // (self.longest + 1) - 2

    def _grown(self, usual: int) -> int:
        return usual * max(USUAL, self.tokens) // USUAL
