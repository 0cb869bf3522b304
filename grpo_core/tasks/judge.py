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
    """The rewards of a run. Each process scores its share of the completions.

    Attributes:
        step: Training steps done, which reward functions may ask for (`trainer_state`).
    """

    def __init__(self, config: Config, tokenizer: Any, world: World) -> None:
        """Looks the reward functions up.

        Raises:
            ConfigError: One is not there.
        """
        self._score: Any = task.score
        self._tokenizer, self._world, self.step = tokenizer, world, 0
        self._stripped = config.reward.convention == "trl"
        if config.data.path or config.reward != RewardConfig():
            from grpo_core.tasks.rewards import build_rewards

            rewards = build_rewards(config)
            self._score = lambda *samples: rewards.score(*samples, step=self.step)
        self._filter = config.sampling.overlong_filter

    def groups(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> list[Group]:
        """One a prompt: the completions come in the order of the prompts, as many for each.

        Raises:
            RewardError: A reward function is broken.
        """
        each, share = len(completions) // len(prompts), self._world.share(len(completions))
        asked = [prompt for prompt in prompts for _ in range(each)]
        texts = [self._text(completion) for completion in completions]
        judged_texts = texts[share]
        if self._stripped:
            decode = self._tokenizer.decode
            judged_texts = [str(decode(list(c.ids), skip_special_tokens=True)) for c in completions[share]]
        mine = self._score(asked[share], completions[share], judged_texts)
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
