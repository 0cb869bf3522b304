"""Completions become groups: with their texts and rewards, each group made once and kept together from here on."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from grpo_core.config import RewardConfig
from grpo_core.tasks import task
from grpo_core.types import Group, Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_core.config import Config
    from grpo_core.machine.world import World
    from grpo_core.types import Completion, Prompt


class Judge:
    """The rewards of a run. Each process scores its share of the completions."""

    def __init__(self, config: Config, tokenizer: Any, world: World) -> None:
        """Looks the reward functions up.

        Raises:
            ConfigError: One is not there.
        """
        self._score, self._tokenizer, self._world = task.score, tokenizer, world
        if config.data.path or config.reward != RewardConfig():
            from grpo_core.tasks.rewards import build_rewards

            self._score = build_rewards(config).score
        self._filter = config.sampling.overlong_filter

    def groups(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> list[Group]:
        """One a prompt: the completions come in the order of the prompts, as many for each.

        Raises:
            RewardError: A reward function is broken.
        """
        each, share = len(completions) // len(prompts), self._world.share(len(completions))
        asked = [prompt for prompt in prompts for _ in range(each)]
        texts = [self._text(completion) for completion in completions]
        mine = self._score(asked[share], completions[share], texts[share])
        judged = itertools.chain.from_iterable(self._world.gather(mine))
        samples = (
            Sample(prompt, answer, text, total, 0.0, by_name, not (self._filter and answer.cut_off))
            for prompt, answer, text, (total, by_name) in zip(asked, completions, texts, judged, strict=True)
        )
        return [Group(prompt, tuple(itertools.islice(samples, each))) for prompt in prompts]

    def _text(self, completion: Completion) -> str:
        """The completion as text, without the stop id that ended it.

        Special tokens elsewhere stay: what a reward can't see, a policy soon learns to hide things behind.
        """
        ids = completion.ids[:-1] if completion.finish_reason == "stop" else completion.ids
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
