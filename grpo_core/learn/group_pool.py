"""Collect the groups of samples for one step, decide when the step can train, and compute metrics over the samples.

With dynamic sampling (DAPO) a step needs enough groups whose rewards differ; after a maximal number of rollouts it
trains without them. `staleness` computes the ages of tokens, and refuses those that are too old.
"""

from __future__ import annotations

from collections.abc import Sequence

from grpo_core.config import Config
from grpo_core.learn.advantages import deviation
from grpo_core.run_files import mean
from grpo_core.types import Completion, Group, Request, RunError


class GroupPool:
    """The groups sampled for one step.

    Attributes:
        groups: The groups, in the order of their requests.
        requests: The requests of their completions, by id.
        ages: Age of each token in policy versions.
        rounds: Number of rollouts.
    """

    def __init__(self, config: Config) -> None:
        """Create an empty pool."""
        self._dynamic = config.sampling.dynamic
        self._size, self._tries = config.train.prompts_per_step, config.sampling.max_resample_times
        self.groups: list[Group] = []
        self.requests: dict[str, Request] = {}
        self.ages: list[int] = []
        self.rounds = 0

    def add(self, groups: Sequence[Group], requests: Sequence[Request], ages: list[int]) -> None:
        """Add the groups of one rollout, in the order of its prompts."""
        self.groups += groups
        self.requests.update({request.id: request for request in requests})
        self.ages += ages
        self.rounds += 1

    def ready(self) -> bool:
        """Return whether the step can train; dynamic sampling needs enough groups with a signal, or no tries left."""
        if not self._dynamic:
            return self.rounds > 0
        return sum(map(has_signal, self.groups)) >= self._size or self.rounds > self._tries

    def select(self) -> list[Group]:
        """Return the groups to train on; with dynamic sampling one step's number, groups with a signal first."""
        if not self._dynamic:
            return self.groups
        return sorted(self.groups, key=lambda group: not has_signal(group))[: self._size]

    def metrics(self) -> dict[str, float]:
        """Return metrics of all samples, also of those that are not trained on."""
        samples = [sample for group in self.groups for sample in group]
        rewards = [sample.reward for sample in samples]
        lengths = [len(sample.completion.ids) for sample in samples]
        numbers = {
            "reward/mean": mean(rewards),
            "reward/std": deviation(rewards, ddof=1),
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
                numbers[f"reward/{name}/mean"] = mean([score for score in scores if score is not None])
        if self._dynamic:
            missing = sum(not has_signal(group) for group in self.select())
            numbers |= {"resample/rounds": self.rounds - 1, "resample/exhausted": float(missing > 0)}
        return numbers


def has_signal(group: Group) -> bool:
    """Return whether any rewards of a group differ; if not, its advantages with a `group` baseline are zero."""
    return len({sample.reward for sample in group}) > 1


class StalenessError(RunError):
    """Raised when a token is older than the run allows, or from a version the trainer never published."""


def staleness(completions: Sequence[Completion], version: int, limit: int) -> list[int]:
    """Compute the age of every token: the trainer's policy version minus the version that sampled it.

    Raises:
        StalenessError: An age is outside of 0 to `limit`; the message has the request's id.
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
