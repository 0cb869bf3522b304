"""What a completion is worth: the weighted sum of reward functions, and the checks around them.

A reward function is `fn(prompts, completions, **columns) -> list[float | None]`: texts in, one number a completion
out, or None for nothing to say. It is called by keyword with what it has parameters for; columns are the other fields
of the prompts' rows, one list each, aligned with the completions.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError, RewardConfig
from grpo_core.tasks import task
from grpo_core.tasks.reward_functions import call_function, named, no_reward, raised
from grpo_core.tasks.task import letters_in_place
from grpo_core.types import Group, RunError, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grpo_core.config import Config
    from grpo_core.types import Completion, Prompt, Scored

    Function = Callable[..., Any]
    Columns = dict[str, list[Any]]
    Row = tuple[Prompt, Completion, str]
    from grpo_core.machine.world import World
    from grpo_core.types import Completion, Prompt


class RewardError(RunError):
    """Raised when a reward function raised, or returned what can't be a reward; names function and sample."""


@dataclass(frozen=True)
class TrainerState:
    """What a reward function that takes `trainer_state` is given, by the names of transformers.

    Attributes:
        global_step: Training steps done.
        max_steps: Training steps of the whole run.
    """

    global_step: int
    max_steps: int


@dataclass(frozen=True)
class RewardSet:
    """Reward functions by name, and what makes one number of theirs.

    Attributes:
        functions: Called with texts and columns.
        weights: One a function.
        threads: Functions called at the same time; nothing depends on it but the time it takes.
        overlong: Number of tokens -> what is added to the sum; None: nothing.
        convention: `text` or `trl`, see `RewardConfig`.
        steps: Steps of the whole run, for `trainer_state`.
    """

    functions: Mapping[str, Function]
    weights: Sequence[float]
    threads: int = 1
    overlong: Callable[[int], float] | None = None
    convention: str = "text"
    steps: int = 0

    def score(
        self,
        prompts: Sequence[Prompt],
        completions: Sequence[Completion],
        texts: Sequence[str],
        *,
        step: int = 0,
    ) -> list[Scored]:
        """Scores each completion; all three are aligned, so a prompt stands there once a completion.

        Returns:
            One a completion: the weighted sum, and the scores by function before weights; None where a function had
            nothing to say.

        Raises:
            ConfigError: A function needs a column that the rows don't have.
            RewardError: A function raised, or returned a wrong count or what is no finite number, or none has
                anything to say about a sample.
        """
        if not completions:
            return []
        keys = dict.fromkeys(key for prompt in prompts for key in prompt.columns)
        columns = {key: [prompt.columns.get(key) for prompt in prompts] for key in keys}
        columns |= _trl_texts(prompts, texts) if self.convention == "trl" else {
            "prompts": [prompt.text for prompt in prompts], "completions": list(texts),
        }  # fmt: skip
        columns["completion_ids"] = [list(completion.ids) for completion in completions]
        rows = list(zip(prompts, completions, texts, strict=True))
        by_function = self._by_function(columns, rows, TrainerState(step, self.steps))
        found = []
        for place, values in enumerate(zip(*by_function.values(), strict=True)):
            given = [w * v for w, v in zip(self.weights, values, strict=True) if v is not None]
            if not given:
                raise RewardError(f"{', '.join(by_function)}: None has a reward for {named(rows, place)}")
            total, scores = sum(given), dict(zip(by_function, values, strict=True))
            if self.overlong is not None:
                scores["overlong"] = penalty = self.overlong(len(completions[place].ids))
                total += penalty
            found.append((total, scores))
        return found

    def _by_function(
        self, columns: Columns, rows: Sequence[Row], state: TrainerState
    ) -> dict[str, list[float | None]]:
        """Calls all; the error of the first that raised, in their order, is raised."""

        def call(name: str) -> list[float | None]:
            trl = self.convention == "trl"
            function = _with_state(self.functions[name], state, trl=trl)
            return _checked(name, function, columns, rows, trl=trl)

        if self.threads == 1:
            return {name: call(name) for name in self.functions}
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self.threads, "reward") as pool:
            return dict(zip(self.functions, pool.map(call, self.functions), strict=True))


def build_rewards(config: Config) -> RewardSet:
    """The reward that the settings ask for; where they name no function, the shipped task's own.

    Raises:
        ConfigError: A function, its file or a package is not there, or a function is named twice.
    """
    options = config.reward
    functions: Mapping[str, Function] = {"letters_in_place": letters_in_place}
    if options.functions or options.model or config.data.path:
        from grpo_core.tasks.reward_functions import chosen

        functions = chosen(options, config.train.device)
    overlong = None
    if options.overlong_buffer:
        from grpo_core.tasks.reward_functions import overlong_of

        overlong = overlong_of(options, config.sampling.max_tokens)
    weights = options.weights or (1.0,) * len(functions)
    return RewardSet(
        functions, weights, options.threads, overlong, options.convention, steps=config.train.steps
    )


def _trl_texts(prompts: Sequence[Prompt], texts: Sequence[str]) -> Columns:
    """Prompts as the data set has them, and completions of the same kind: texts, or lists of messages.

    As in TRL, an assistant message that ends a prompt is the begin of the completion.
    """
    asked: list[Any] = []
    answered: list[Any] = []
    for prompt, text in zip(prompts, texts, strict=True):
        source = prompt.text if prompt.source is None else prompt.source
        if isinstance(source, str):
            asked.append(source)
            answered.append(text)
            continue
        begun = source[-1]["content"] if source[-1]["role"] == "assistant" else None
        asked.append(source if begun is None else source[:-1])
        answered.append([{"role": "assistant", "content": f"{begun or ''}{text}"}])
    return {"prompts": asked, "completions": answered}


def _with_state(function: Function, state: TrainerState, *, trl: bool) -> Function:
    parameters = inspect.signature(function).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if "trainer_state" in parameters or (trl and open_ended):
        return functools.partial(function, trainer_state=state)
    return function


def _checked(
    name: str, function: Function, columns: Columns, rows: Sequence[Row], *, trl: bool
) -> list[float | None]:
    """What the function returns, if that is a finite number or None for each sample."""
    wanted = _wanted(name, function, columns, trl=trl)
    try:
        found = call_function(function, wanted)
    except ConfigError:
        raise
    except (
        Exception,
        SystemExit,
    ) as error:  # an exit() in a function is no end of the run that anybody asked for
        raise RewardError(raised(name, function, wanted, rows, error)) from error
    if found is None or len(found) != len(rows) or not all(map(_is_reward, found)):
        raise RewardError(no_reward(name, found, rows, _is_reward))
    return [None if value is None else float(value) for value in found]


def _wanted(name: str, function: Function, columns: Columns, *, trl: bool) -> Columns:
    """The columns that the function has parameters for; ids are for those that name them, or as TRL has it for **."""
    parameters = inspect.signature(function).parameters.values()
    open_ended = [p for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    needed = [p.name for p in parameters if p.default is p.empty and p not in open_ended]
    if missing := [key for key in needed if key not in columns]:
        found = ", ".join(key for key in columns if key != "completion_ids")
        raise ConfigError(f"reward function {name} needs a column {' and '.join(missing)}, found {found}")
    names = {p.name for p in parameters}
    if any(p.kind is p.VAR_KEYWORD for p in open_ended):
        names |= set(columns) - (set() if trl else {"completion_ids"})
    return {key: values for key, values in columns.items() if key in names}


def _is_reward(value: Any) -> bool:
    """True for None, Python's finite numbers, and those of numpy and torch, which only convert; squares have to fit.

    >>> [_is_reward(value) for value in (1, True, None, float("nan"), "1", 1e308)]
    [True, True, True, False, False, False]
    """
    try:
        return value is None or (hasattr(value, "__float__") and abs(float(value)) < 1e100)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # an array of several numbers, say
        return False


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
