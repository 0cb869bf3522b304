"""What a step has gathered to train on; dynamic sampling (DAPO, arXiv 2503.14476) asks for more until groups differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_core.metrics import deviation, mean
from grpo_core.types import RunError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_core.config import Config
    from grpo_core.types import Completion, Group, Request


class Pool:
    """The groups sampled for one step.

    Attributes:
        groups: In the order they were asked for.
        requests: What their completions answer, by request id.
        ages: Of all their tokens, in policy versions.
        rounds: Rollouts gathered.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self.groups: list[Group] = []
        self.requests: dict[str, Request] = {}
        self.ages: list[int] = []
        self.rounds = 0

    def add(self, groups: Sequence[Group], requests: Sequence[Request], ages: list[int]) -> None:
        """Takes a rollout: the groups of its prompts, in their order."""
        self.groups += groups
        self.requests.update({request.id: request for request in requests})
        self.ages += ages
        self.rounds += 1

    def ready(self) -> bool:
        """Whether a step can be made of it."""
        return self.rounds > 0

    def chosen(self) -> list[Group]:
        """The groups that the step trains on."""
        return self.groups

    def described(self) -> dict[str, float]:
        """Metrics of everything that was sampled, trained on or not: what the policy is like."""
        samples = [sample for group in self.groups for sample in group.samples]
        rewards = [sample.reward for sample in samples]
        lengths = [len(sample.completion.ids) for sample in samples]
        found = {
            "reward/mean": mean(rewards),
            "reward/std": deviation(rewards),
            "reward/zero_variance_groups": mean([not has_signal(group) for group in self.groups]),
            "completions/tokens": sum(lengths),
            "completions/mean_length": mean(lengths),
            "completions/truncated": mean([sample.completion.cut_off for sample in samples]),
            "staleness/mean": mean(self.ages),
            "staleness/max": max(self.ages),
        }
        if len(samples[0].scores) > 1:
            for name in samples[0].scores:
                scores = [sample.scores[name] for sample in samples]
                found[f"reward/{name}/mean"] = mean([score for score in scores if score is not None])
        return found


def has_signal(group: Group) -> bool:
    """Whether any of its rewards differ: otherwise no advantage but zero can come of it."""
    return min(group.rewards) < max(group.rewards)


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


class StalenessError(RunError):
    """Raised when a token is older than the run allows, or from a version the trainer never published."""


def staleness(completions: Sequence[Completion], version: int, limit: int) -> list[int]:
    """The trainer's version minus the token's, for every token.

    Raises:
        StalenessError: One is outside of 0 to `limit`; names the request.
    """
    ages = []
    for completion in completions:
        for sampled_by in completion.versions:
            age = version - sampled_by
            if not 0 <= age <= limit:
                raise StalenessError(
                    f"request {completion.request_id}: a token was sampled by version {sampled_by} and is to train "
                    f"version {version}; allowed are ages 0 to {limit} (rollout.max_staleness, async mode only)"
                )
            ages.append(age)
    return ages
