"""Dynamic sampling (DAPO, arXiv 2503.14476): groups whose rewards are all equal are replaced by further prompts'."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_core.learn.pool import Pool, has_signal

if TYPE_CHECKING:
    from grpo_core.config import Config
    from grpo_core.types import Group


class DynamicPool(Pool):
    """A pool that has enough when enough of its groups have a signal, or no tries are left."""

    def __init__(self, config: Config) -> None:
        """Starts empty."""
        super().__init__()
        self._wanted, self._tries = config.train.prompts_per_step, config.sampling.max_resample_times

    def ready(self) -> bool:
        """Whether a step can be made of it."""
        return sum(map(has_signal, self.groups)) >= self._wanted or self.rounds > self._tries

    def chosen(self) -> list[Group]:
        """As many groups as a step trains on, those with a signal first; sorting keeps the order within both kinds."""
        return sorted(self.groups, key=lambda group: not has_signal(group))[: self._wanted]

    def described(self) -> dict[str, float]:
        """As `Pool`, and how often there was more to sample."""
        missing = sum(not has_signal(group) for group in self.chosen())
        return {
            **super().described(),
            "resample/rounds": self.rounds - 1,
            "resample/exhausted": float(missing > 0),
        }
