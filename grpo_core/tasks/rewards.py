"""Rewards: the weighted sum of reward functions, and the checks of their results.

A reward function is `fn(prompts, completions, **columns) -> list[float | None]`: texts in, one number per completion
out, or None for no opinion. It is called by keyword with the values it has parameters for; columns are the other fields
of the prompts' rows, one list each, aligned with the completions.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from grpo_core.config import Config, ConfigError
from grpo_core.machine.world import World
from grpo_core.tasks.reward_functions import (
    call_function,
    describe_bad_return,
    describe_error,
    describe_sample,
    letters_in_place,
    load_functions,
    soft_overlong,
)
from grpo_core.types import Completion, Group, Prompt, RunError, Sample, Scored

Function = Callable[..., Any]
Columns = dict[str, list[Any]]
Row = tuple[Prompt, Completion, str]


class RewardError(RunError):
    """Raised when a reward function raises, or returns something else than a reward; names function and sample."""


@dataclass(frozen=True)
class TrainerState:
    """The argument `trainer_state` of a reward function, by the names of transformers.

    Attributes:
        global_step: Training steps done.
        max_steps: Training steps of the whole run.
    """

    global_step: int
    max_steps: int


@dataclass(frozen=True)
class RewardSet:
    """Reward functions by name, and how their numbers are combined.

    Attributes:
        functions: Called with texts and columns.
        weights: One per function.
        threads: Functions called at the same time; this changes only the time.
        overlong: Number of tokens -> penalty added to the sum; None: no penalty.
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
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], texts: Sequence[str], *, step: int = 0
    ) -> list[Scored]:  # fmt: skip
        """Score each completion; all three are aligned, so each completion has its prompt.

        Returns:
            One per completion: the weighted sum, and the scores by function before weights; None where a function
            returned None.

        Raises:
            ConfigError: A function needs a column that the rows don't have.
            RewardError: A function raised, returned a wrong count or a value that is no finite number, or all returned
                None for a sample.
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
        by_function = self._call_functions(columns, rows, TrainerState(step, self.steps))
        scored = []
        for place, values in enumerate(zip(*by_function.values(), strict=True)):
            weighed = [w * v for w, v in zip(self.weights, values, strict=True) if v is not None]
            if not weighed:
                raise RewardError(
                    f"{', '.join(by_function)}: None has a reward for {describe_sample(rows, place)}"
                )
            total, scores = sum(weighed), dict(zip(by_function, values, strict=True))
            if self.overlong is not None:
                scores["overlong"] = penalty = self.overlong(len(completions[place].ids))
                total += penalty
            scored.append((total, scores))
        return scored

    def _call_functions(
        self, columns: Columns, rows: Sequence[Row], state: TrainerState
    ) -> dict[str, list[float | None]]:
        """Call all functions; raise the error of the first that failed, in their order."""

        def call(name: str) -> list[float | None]:
            trl = self.convention == "trl"
            function = _with_state(self.functions[name], state, trl=trl)
            return _call_checked(name, function, columns, rows, trl=trl)

        if self.threads == 1:
            return {name: call(name) for name in self.functions}
        with ThreadPoolExecutor(self.threads, "reward") as pool:
            return dict(zip(self.functions, pool.map(call, self.functions), strict=True))


def build_rewards(config: Config) -> RewardSet:
    """Build the configured rewards; without a configured function, the shipped task's.

    Raises:
        ConfigError: A function, its file or a package does not exist, or a function is named twice.
    """
    options = config.reward
    functions: Mapping[str, Function] = {"letters_in_place": letters_in_place}
    if options.functions or options.model or config.data.path:
        functions = load_functions(options, config.train.device)
    overlong = None
    if options.overlong_buffer:
        overlong = functools.partial(
            soft_overlong, max_tokens=config.sampling.max_tokens,
            buffer=options.overlong_buffer, penalty=options.overlong_penalty,
        )  # fmt: skip
    weights = options.weights or (1.0,) * len(functions)
    return RewardSet(
        functions, weights, options.threads, overlong, options.convention, steps=config.train.steps
    )


def _trl_texts(prompts: Sequence[Prompt], texts: Sequence[str]) -> Columns:
    """Return prompts as in the data set, and completions of the same kind: texts, or lists of messages.

    As in TRL, an assistant message that ends a prompt is the beginning of the completion.
    """
    columns: Columns = {"prompts": [], "completions": []}
    for prompt, text in zip(prompts, texts, strict=True):
        source = prompt.text if prompt.source is None else prompt.source
        completion: Any = text
        if not isinstance(source, str):
            beginning = ""
            if source[-1]["role"] == "assistant":
                source, beginning = source[:-1], source[-1]["content"] or ""
            completion = [{"role": "assistant", "content": f"{beginning}{text}"}]
        columns["prompts"].append(source)
        columns["completions"].append(completion)
    return columns


def _with_state(function: Function, state: TrainerState, *, trl: bool) -> Function:
    parameters = inspect.signature(function).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if "trainer_state" in parameters or (trl and open_ended):
        return functools.partial(function, trainer_state=state)
    return function


def _call_checked(
    name: str, function: Function, columns: Columns, rows: Sequence[Row], *, trl: bool
) -> list[float | None]:
    """Call the function and check that it returns a finite number or None for each sample."""
    arguments = _arguments(name, function, columns, trl=trl)
    try:
        returned = call_function(function, arguments)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # exit() in a function must not end the run silently
        raise RewardError(describe_error(name, function, arguments, rows, error)) from error
    if returned is None or len(returned) != len(rows) or not all(map(_is_reward, returned)):
        raise RewardError(describe_bad_return(name, returned, rows, _is_reward))
    return [None if value is None else float(value) for value in returned]


def _arguments(name: str, function: Function, columns: Columns, *, trl: bool) -> Columns:
    """Select the columns that the function has parameters for; ** takes ids only by TRL's convention."""
    parameters = inspect.signature(function).parameters.values()
    open_ended = [p for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    needed = [p.name for p in parameters if p.default is p.empty and p not in open_ended]
    if missing := [key for key in needed if key not in columns]:
        existing = ", ".join(key for key in columns if key != "completion_ids")
        raise ConfigError(f"reward function {name} needs a column {' and '.join(missing)}, found {existing}")
    names = {p.name for p in parameters}
    if any(p.kind is p.VAR_KEYWORD for p in open_ended):
        names |= set(columns) - (set() if trl else {"completion_ids"})
    return {key: values for key, values in columns.items() if key in names}


def _is_reward(value: Any) -> bool:
    """Return True for None and finite numbers of Python, numpy and torch whose squares are finite, too.

    >>> [_is_reward(value) for value in (1, True, None, float("nan"), "1", 1e308)]
    [True, True, True, False, False, False]
    """
    try:
        return value is None or (hasattr(value, "__float__") and abs(float(value)) < 1e100)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # an array of several numbers, for example
        return False


class Scorer:
    """Scores the completions of a run. Each process scores its share.

    Attributes:
        step: Training steps done, for the `trainer_state` of reward functions.
    """

    def __init__(self, config: Config, tokenizer: Any, world: World) -> None:
        """Load the reward functions.

        Raises:
            ConfigError: One does not exist.
        """
        self._rewards = build_rewards(config)
        self._tokenizer, self._world, self.step = tokenizer, world, 0
        self._filter_overlong = config.sampling.overlong_filter

    def groups(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> list[Group]:
        """Build one group per prompt; completions are in the order of the prompts, equally many for each.

        Raises:
            RewardError: A reward function failed.
        """
        group_size, share = len(completions) // len(prompts), self._world.share(len(completions))
        repeated = [prompt for prompt in prompts for _ in range(group_size)]
        texts = [self._decode(completion) for completion in completions]
        scored_texts = texts[share]
        if self._rewards.convention == "trl":
            decode = self._tokenizer.decode
            scored_texts = [str(decode(list(c.ids), skip_special_tokens=True)) for c in completions[share]]
        mine = self._rewards.score(repeated[share], completions[share], scored_texts, step=self.step)
        scored = itertools.chain.from_iterable(self._world.gather(mine))
        samples = (
            Sample(prompt, c, text, total, 0.0, scores, not (self._filter_overlong and c.cut_off))
            for prompt, c, text, (total, scores) in zip(repeated, completions, texts, scored, strict=True)
        )
        return [Group(prompt, tuple(itertools.islice(samples, group_size))) for prompt in prompts]

    def _decode(self, completion: Completion) -> str:
        """Return the completion as text, without the stop id that ended it.

        Other special tokens stay: a policy learns to exploit what a reward can't see.
        """
        ids = completion.ids[:-1] if completion.finish_reason == "stop" else completion.ids
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
