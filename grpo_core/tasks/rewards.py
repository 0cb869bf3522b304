"""Compute the reward of each completion, and build groups of scored samples.

A reward is the weighted sum of the reward functions' results, plus the overlong penalty. The results are checked; a
failure raises RewardError, which names the function and, if known, the sample. It is a failure, too, if no function has
a reward for a sample. A missing column raises ConfigError.

A reward function is `fn(prompts, completions, **columns) -> list[float | None]`. It receives texts (with the convention
`trl`, messages if the prompts are messages), and returns a number or None (no reward) for each completion. It is called
by keyword, with the values that it has parameters for: columns, `completion_ids` and `trainer_state`; with `trl`,
`log_metric` and `log_extra`, too. Columns are the other fields of the prompts' rows, one list each, aligned with the
completions. An async function is awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from grpo_core.config import Config, ConfigError
from grpo_core.machine.world import World
from grpo_core.tasks.reward_functions import letters_in_place, load_functions, soft_overlong
from grpo_core.types import Completion, Group, Prompt, RunError, Sample, Scored

Function = Callable[..., Any]


class RewardError(RunError):
    """Raised if a reward function fails or returns an invalid reward; names the function and, if known, the sample."""


@dataclass(frozen=True)
class RewardSet:
    """Reward functions, with the weights and the penalty that combine their scores.

    Attributes:
        functions: The functions by name.
        weights: The weight of each function.
        overlong: Function of the number of tokens that returns a penalty to add to the sum; None for no penalty.
        convention: Kind of the functions' arguments, `text` or `trl`; see `RewardConfig`.
        steps: Number of steps of the whole run, for `trainer_state`.
    """

    functions: Mapping[str, Function]
    weights: Sequence[float]
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
        """Score each completion; prompts, completions and texts are aligned.

        Returns:
            For each completion the weighted sum plus the penalty, and the scores by function before weights (None
            where a function returned None), with the penalty as `overlong`.

        Raises:
            ConfigError: A function needs a column that the rows don't have.
            RewardError: A function raised, returned a wrong count or a value that is no number below 1e100, or all
                returned None for a sample.
        """
        if not completions:
            return []
        columns = self._columns(prompts, texts)
        extra: dict[str, Any] = {
            "completion_ids": [list(completion.ids) for completion in completions],
            "trainer_state": SimpleNamespace(global_step=step, max_steps=self.steps),
        }
        if self.convention == "trl":
            extra |= dict.fromkeys(("log_metric", "log_extra"), lambda *_, **__: None)
        calls = {
            name: functools.partial(function, **self._select(name, function, columns, extra))
            for name, function in self.functions.items()
        }
        samples = [
            f"sample {index} (request {completion.request_id}), the completion {_quote(text)} to the prompt "
            f"{_quote(prompt.text)}"
            for index, (prompt, completion, text) in enumerate(zip(prompts, completions, texts, strict=True))
        ]
        by_function = {name: _as_floats(name, values, samples) for name, values in _call_all(calls).items()}
        scored = []
        for index, values in enumerate(zip(*by_function.values(), strict=True)):
            weighed = [w * v for w, v in zip(self.weights, values, strict=True) if v is not None]
            if not weighed:
                raise RewardError(f"{', '.join(by_function)}: None has a reward for {samples[index]}")
            total, scores = sum(weighed), dict(zip(by_function, values, strict=True))
            if self.overlong is not None:
                scores["overlong"] = penalty = self.overlong(len(completions[index].ids))
                total += penalty
            scored.append((total, scores))
        return scored

    def _columns(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> dict[str, list[Any]]:
        """Return the lists that functions may name: the rows' columns, prompts and completions."""
        keys = dict.fromkeys(key for prompt in prompts for key in prompt.columns)
        columns: dict[str, list[Any]] = {key: [prompt.columns.get(key) for prompt in prompts] for key in keys}
        columns |= {"prompts": [prompt.text for prompt in prompts], "completions": list(texts)}
        if self.convention == "trl":  # prompts as in the data set, and completions of the same kind
            columns["prompts"] = [p.text if p.source is None else p.source for p in prompts]
            columns["completions"] = [
                text if isinstance(source, str) else [{"role": "assistant", "content": text}]
                for source, text in zip(columns["prompts"], texts, strict=True)
            ]
            columns.pop("completion", None)  # of a data set for SFT: TRL's functions don't get it
        return columns

    def _select(
        self, name: str, function: Function, columns: Mapping[str, list[Any]], extra: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of a function, with copies of the lists; `extra` goes only to functions that name it.

        With the convention `trl`, functions with `**kwargs` get everything.
        """
        parameters = inspect.signature(function).parameters.values()
        accepted = {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        required = [p.name for p in parameters if p.default is p.empty and p.name in accepted]
        if missing := [key for key in required if key not in columns and key not in extra]:
            raise ConfigError(
                f"reward function {name} needs a column {' and '.join(missing)}, found {', '.join(columns)}"
            )
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            accepted |= {*columns, *extra} if self.convention == "trl" else set(columns)
        arguments = {key: value for key, value in {**columns, **extra}.items() if key in accepted}
        return {key: list(value) if isinstance(value, list) else value for key, value in arguments.items()}


def build_rewards(config: Config) -> RewardSet:
    """Build the configured rewards; without a configured function, the shipped task's.

    Raises:
        ConfigError: A function can't be loaded or is named twice, or data.path is set and no function is named.
    """
    options = config.reward
    functions: Mapping[str, Function] = {"letters_in_place": letters_in_place}
    if options.functions or config.data.path:
        functions = load_functions(options.functions)
    overlong = None
    if options.overlong_buffer:
        overlong = functools.partial(
            soft_overlong,
            max_tokens=config.sampling.max_tokens,
            buffer=options.overlong_buffer,
            penalty=options.overlong_penalty,
        )
    weights = options.weights or (1.0,) * len(functions)
    return RewardSet(functions, weights, overlong, options.convention, config.train.steps)


def _call_all(calls: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Call the functions in their order, then wait for all async ones together."""
    returned: dict[str, Any] = {}
    for name, call in calls.items():
        with _named_errors(name):
            returned[name] = call()

    async def wait(name: str) -> None:
        with _named_errors(name):
            returned[name] = await returned[name]

    async def wait_for_all(names: list[str]) -> None:
        await asyncio.gather(*map(wait, names))

    if pending := [name for name, value in returned.items() if inspect.isawaitable(value)]:
        asyncio.run(wait_for_all(pending))
    return returned


@contextlib.contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """Convert an error of a reward function to a `RewardError` that names the function and the line."""
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # exit() in a function must not end the run silently
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise RewardError(
            f"reward function {name} raised {type(error).__name__}: {error} "
            f"({frame.filename}, line {frame.lineno})"
        ) from error


def _as_floats(name: str, returned: Any, samples: Sequence[str]) -> list[float | None]:
    """Return the rewards of a function as floats or None, one per sample; raise RewardError for any other result."""
    with _named_errors(name):
        values = None if returned is None else list(returned)
    if values is None or len(values) != len(samples):
        raise RewardError(
            f"reward function {name} returned {'None' if values is None else len(values)} rewards for {len(samples)} "
            "completions; it must return one each, in their order"
        )
    for value, sample in zip(values, samples, strict=True):
        if not _is_reward(value):
            raise RewardError(
                f"reward function {name} returned {value!r} for {sample}; a reward is a finite number below 1e100, "
                "or None"
            )
    return [None if value is None else float(value) for value in values]


def _is_reward(value: Any) -> bool:
    """Return True for None and for numbers of Python, numpy and torch below 1e100, so that their squares are finite.

    >>> [_is_reward(value) for value in (1, True, None, float("nan"), "1", 1e308)]
    [True, True, True, False, False, False]
    """
    try:
        return value is None or (hasattr(value, "__float__") and abs(float(value)) < 1e100)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # an array of several numbers, for example
        return False


def _quote(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


class Scorer:
    """Scores the completions of a run; each rank scores its slice."""

    def __init__(self, config: Config, tokenizer: Any, world: World) -> None:
        """Load the reward functions.

        Raises:
            ConfigError: See `build_rewards`.
        """
        self._rewards = build_rewards(config)
        self._tokenizer, self._world = tokenizer, world
        self._filter_overlong = config.sampling.overlong_filter

    def groups(self, prompts: Sequence[Prompt], completions: Sequence[Completion], step: int) -> list[Group]:
        """Score the completions, and build one group of samples per prompt.

        With `sampling.overlong_filter`, truncated completions become samples that are not trained on.

        Args:
            prompts: The prompts.
            completions: The completions, in the order of the prompts, equally many for each prompt.
            step: Number of finished training steps, for the `trainer_state` of reward functions.

        Raises:
            RewardError: A reward function failed.
            ConfigError: It needs a column that the rows don't have.
        """
        group_size, share = len(completions) // len(prompts), self._world.slice_of(len(completions))
        repeated = [prompt for prompt in prompts for _ in range(group_size)]
        texts = [self._decode(completion) for completion in completions]
        scored_texts = texts[share]
        if self._rewards.convention == "trl":
            decode = self._tokenizer.decode
            scored_texts = [str(decode(list(c.ids), skip_special_tokens=True)) for c in completions[share]]
        mine = self._rewards.score(repeated[share], completions[share], scored_texts, step=step)
        scored = itertools.chain.from_iterable(self._world.gather(mine))
        samples = (
            Sample(prompt, c, text, total, 0.0, scores, not (self._filter_overlong and c.cut_off))
            for prompt, c, text, (total, scores) in zip(repeated, completions, texts, scored, strict=True)
        )
        return [list(itertools.islice(samples, group_size)) for _ in prompts]

    def _decode(self, completion: Completion) -> str:
        """Return the completion as text, without the stop id that ended it.

        Other special tokens stay in the text, because a policy learns to exploit tokens that a reward can't see.
        """
        ids = completion.ids[:-1] if completion.finish_reason == "stop" else completion.ids
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
