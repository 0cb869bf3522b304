"""Evaluation between two steps, pinned to one policy version."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grpo_core.learn.staleness import staleness
from grpo_core.metrics import mean
from grpo_core.rollout.checks import check_answers
from grpo_core.tasks.data import build_eval_prompts
from grpo_core.tasks.task import derived_seed
from grpo_core.types import Request

if TYPE_CHECKING:
    from grpo_core.config import Config
    from grpo_core.rollout.engine import Engine
    from grpo_core.tasks.judge import Judge
    from grpo_core.types import SamplingParams


class Evaluation:
    """The same prompts each time, one completion each."""

    def __init__(self, config: Config, tokenizer: Any, judge: Judge) -> None:
        """Reads the prompts.

        Raises:
            ConfigError: They can't be read, or there are none.
        """
        self._judge, self._temperature = judge, config.eval.temperature
        self._prompts, seed = build_eval_prompts(config, tokenizer), config.train.seed
        self._requests = [Request(p.id, p.ids, derived_seed(seed, "eval", p.id)) for p in self._prompts]

    def of(self, engine: Engine, sampling: SamplingParams, version: int, vocabulary: int) -> dict[str, float]:
        """Metrics of what the engine samples, all of it from this very version."""
        completions = engine.generate(self._requests, replace(sampling, temperature=self._temperature))
        check_answers(completions, self._requests, engine.name, vocabulary=vocabulary)
        staleness(completions, version, 0)
        groups = self._judge.groups(self._prompts, completions)
        return {
            "eval/policy_version": version,
            "eval/reward/mean": mean([reward for group in groups for reward in group.rewards]),
            "eval/completions/mean_length": mean([len(completion.ids) for completion in completions]),
        }
