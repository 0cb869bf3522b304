"""Evaluation between two steps, pinned to one policy version."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError
from grpo_core.learn.pool import staleness
from grpo_core.metrics import mean
from grpo_core.rollout.engine import check_answers
from grpo_core.tasks.dataset import ShippedTask
from grpo_core.tasks.task import derived_seed
from grpo_core.types import Request

if TYPE_CHECKING:
    from grpo_core.config import Config
    from grpo_core.rollout.engine import Engine
    from grpo_core.tasks.rewards import Judge
    from grpo_core.types import Prompt, SamplingParams


def build_eval_prompts(config: Config, tokenizer: Any) -> list[Prompt]:
    """The prompts of every evaluation: the first `eval.prompts` rows of eval.path, or all where there are fewer.

    Raises:
        ConfigError: As `build_prompts`; or there is a data set to train on and none to evaluate on.
    """
    if config.eval.path:
        from grpo_core.tasks.dataset import DataSet

        data = DataSet(config, tokenizer, "eval.path", config.eval.path, "")
        return [data.prompt(f"eval.{row}", row) for row in range(min(config.eval.prompts, len(data.rows)))]
    if config.data.path:
        raise ConfigError("eval.path = '': a run on data.path is evaluated on a data set of its own; name it")
    return ShippedTask(config, tokenizer).batch("eval", config.eval.prompts)


class Evaluation:
    """The same prompts each time, one completion each."""

    def __init__(self, config: Config, tokenizer: Any, judge: Judge) -> None:
        """Reads the prompts.

        Raises:
            ConfigError: They can't be read, or there are none.
        """
        self._judge, self._temperature, self._every = judge, config.eval.temperature, config.eval.every
        self._at, self._found = -1, dict[str, float]()
        self._prompts, seed = build_eval_prompts(config, tokenizer), config.train.seed
        self._requests = [Request(p.id, p.ids, derived_seed(seed, "eval", p.id)) for p in self._prompts]

    def due(self, step: int) -> bool:
        """Whether this step begins with one; no more when it has been made."""
        return step % self._every == 0 and self._at != step

    def make(
        self, step: int, engine: Engine, sampling: SamplingParams, version: int, vocabulary: int
    ) -> None:
        """Has the engine sample, all of it from this very version, and keeps the metrics until they are taken."""
        completions = engine.generate(self._requests, replace(sampling, temperature=self._temperature))
        check_answers(completions, self._requests, engine.name, vocabulary=vocabulary)
        staleness(completions, version, 0)
        groups = self._judge.groups(self._prompts, completions)
        self._found = {
            "eval/policy_version": version,
            "eval/reward/mean": mean([reward for group in groups for reward in group.rewards]),
            "eval/completions/mean_length": mean([len(completion.ids) for completion in completions]),
        }
        self._at = step  # not before: an engine that failed is asked again when it is back

    def taken(self) -> dict[str, float]:
        """The metrics, for the one step that they belong to."""
        found, self._found = self._found, {}
        return found
