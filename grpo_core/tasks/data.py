"""Where prompts come from: the shipped task, or the user's own rows from a file or a folder.

A batch is a function of the seed, the data and the batch's number alone. There is no cursor to save: a run that
goes on after a restart, and a run in another mode, draw the same rows.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from grpo_core.tasks import task
from grpo_core.types import Rollout

if TYPE_CHECKING:
    from grpo_core.config import Config
    from grpo_core.tasks.dataset import DataSet
    from grpo_core.types import Prompt


def build_prompts(config: Config, tokenizer: Any) -> ShippedTask | DataSet:
    """The prompts to train on; reads and tokenizes the data set, if there is one.

    Raises:
        ConfigError: The data can't be read or used; says where and why.
    """
    if not config.data.path:
        return ShippedTask(config, tokenizer)
    from grpo_core.tasks.dataset import DataSet

    return DataSet(config, tokenizer, "data.path", config.data.path, config.data.split)


class ShippedTask:
    """Rows of the shipped task, made on the spot.

    Attributes:
        dropped: Rows left out because they are over a data set's limit: none.
        truncated: Rows over the limit that lost their first tokens: none.
    """

    def __init__(self, config: Config, tokenizer: Any) -> None:
        self.dropped = self.truncated = 0
        self._rows = functools.partial(task.rows, config.task, tokenizer, seed=config.train.seed)

    def batch(self, number: int | str, count: int) -> list[Prompt]:
        """As many of an endless sequence; a batch with a name has rows that no step of training has."""
        return self._rows(step=number, count=count)


def rollout(source: ShippedTask | DataSet, number: int, config: Config) -> Rollout:
    """What to ask for: a function of the seed and the number alone."""
    prompts = source.batch(number, config.train.prompts_per_step)
    requests = task.requests_for(prompts, config.sampling.group_size, config.train.seed)
    return Rollout(number, tuple(prompts), tuple(requests))
