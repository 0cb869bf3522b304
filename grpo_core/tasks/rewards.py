"""What a completion is worth: the weighted sum of reward functions, and the checks around them.

A reward function is `fn(prompts, completions, **columns) -> list[float | None]`: texts in, one number a completion
out, or None for nothing to say. It is called by keyword with what it has parameters for; columns are the other fields
of the prompts' rows, one list each, aligned with the completions.
"""

from __future__ import annotations

import functools
import inspect
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError
from grpo_core.tasks.reward_functions import BUILT_IN, soft_overlong

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grpo_core.config import Config
    from grpo_core.types import Completion, Prompt

    Function = Callable[..., Any]
    Columns = dict[str, list[Any]]


class RewardError(RuntimeError):
    """Raised when a reward function raised, or returned what can't be a reward; names function and sample."""


@dataclass(frozen=True)
class Scores:
    """Rewards of a batch, in its order.

    Attributes:
        totals: The weighted sum, one a completion.
        by_function: Before weights, one a completion; None where a function had nothing to say.
    """

    totals: list[float]
    by_function: dict[str, list[float | None]]


@dataclass(frozen=True)
class RewardSet:
    """Reward functions by name, and what makes one number of theirs.

    Attributes:
        functions: Called with texts and columns.
        weights: One a function.
        threads: Functions called at the same time; nothing depends on it but the time it takes.
        overlong: Number of tokens -> what is added to the sum; None: nothing.
    """

    functions: Mapping[str, Function]
    weights: Sequence[float]
    threads: int = 1
    overlong: Callable[[int], float] | None = None

    def score(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], texts: Sequence[str]
    ) -> Scores:
        """Scores each completion; all three are aligned, so a prompt stands there once a completion.

        Raises:
            ConfigError: A function needs a column that the rows don't have.
            RewardError: A function raised, or returned a wrong count or what is no finite number, or none has
                anything to say about a sample.
        """
        if not completions:
            return Scores([], {})
        keys = dict.fromkeys(key for prompt in prompts for key in prompt.columns)
        columns = {key: [prompt.columns.get(key) for prompt in prompts] for key in keys}
        columns |= {"prompts": [prompt.text for prompt in prompts], "completions": list(texts)}
        named = [
            f"sample {place} (request {completion.request_id}), the completion {_shown(text)} to the prompt "
            f"{_shown(prompt.text)}"
            for place, (prompt, completion, text) in enumerate(zip(prompts, completions, texts, strict=True))
        ]
        by_function = self._by_function(columns, named)
        totals = []
        for place, values in enumerate(zip(*by_function.values(), strict=True)):
            given = [w * v for w, v in zip(self.weights, values, strict=True) if v is not None]
            if not given:
                raise RewardError(f"{', '.join(by_function)}: None has a reward for {named[place]}")
            totals.append(sum(given))
        if self.overlong is not None:
            by_function["overlong"] = [self.overlong(len(completion.ids)) for completion in completions]
            totals = [
                total + (penalty or 0.0)
                for total, penalty in zip(totals, by_function["overlong"], strict=True)
            ]
        return Scores(totals, by_function)

    def _by_function(self, columns: Columns, named: list[str]) -> dict[str, list[float | None]]:
        """Calls all; the error of the first that raised, in their order, is raised."""

        def call(name: str) -> list[float | None]:
            return _checked(name, self.functions[name], columns, named)

        if self.threads == 1:
            return {name: call(name) for name in self.functions}
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self.threads, "reward") as pool:
            return dict(zip(self.functions, pool.map(call, self.functions), strict=True))


def build_rewards(config: Config) -> RewardSet:
    """The reward that the settings ask for.

    Raises:
        ConfigError: A function, its file or a package is not there, or a function is named twice.
    """
    options, built = config.reward, dict[str, "Function"]()
    shipped = () if config.data.path or options.model else ("letters_in_place",)
    for spec in options.functions or shipped:
        name = Path(spec).name
        if name in built:
            raise ConfigError(f"reward.functions: {name!r} is named twice")
        built[name] = BUILT_IN.get(spec) or _found(spec)
    if options.model:
        from grpo_core.tasks.reward_model import RewardModel

        built["model"] = RewardModel(options.model, config.train.device)
    if not built:
        raise ConfigError("reward.functions: expected one or more, or reward.model, where data.path is set")
    limits = {"max_tokens": config.sampling.max_tokens, "buffer": options.overlong_buffer}
    overlong = functools.partial(soft_overlong, penalty=options.overlong_penalty, **limits)
    weights = options.weights or (1.0,) * len(built)
    return RewardSet(built, weights, options.threads, overlong if options.overlong_buffer else None)


def _found(spec: str) -> Function:
    from grpo_core.tasks.own_rewards import function

    return function(spec)


def _checked(name: str, function: Function, columns: Columns, named: list[str]) -> list[float | None]:
    """What the function returns, if that is a finite number or None for each sample."""
    wanted = _wanted(name, function, columns)
    returned = _called(function, wanted, range(len(named)))
    if isinstance(returned, Exception):
        place = _culprit(function, wanted, len(named))
        where = f"a batch of {len(named)}, but on none of them alone" if place is None else named[place]
        shown = f"{type(returned).__name__}: {returned}"
        raise RewardError(f"reward function {name} raised {shown}, on {where}") from returned
    count = None if returned is None else len(returned)
    if count != len(named):
        raise RewardError(
            f"reward function {name} returned {count} rewards for {len(named)} completions; "
            "it must return one each, in their order"
        )
    for value, sample in zip(returned, named, strict=True):
        if value is not None and not _is_finite_number(value):
            wrong = f"returned {value!r} for {sample}; a reward is a finite number, or None"
            raise RewardError(f"reward function {name} {wrong}")
    return [None if value is None else float(value) for value in returned]


def _wanted(name: str, function: Function, columns: Columns) -> Columns:
    """The columns that the function has parameters for."""
    parameters = inspect.signature(function).parameters.values()
    open_ended = [p for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    needed = [p.name for p in parameters if p.default is p.empty and p not in open_ended]
    if missing := [key for key in needed if key not in columns]:
        found = ", ".join(columns)
        raise ConfigError(f"reward function {name} needs a column {' and '.join(missing)}, found {found}")
    names = columns if any(p.kind is p.VAR_KEYWORD for p in open_ended) else {p.name for p in parameters}
    return {key: values for key, values in columns.items() if key in names}


def _called(function: Function, columns: Columns, places: Sequence[int]) -> Any:
    """What the function returns for some samples, as a list; or what it raised."""
    try:
        returned = function(**{key: [values[place] for place in places] for key, values in columns.items()})
        return None if returned is None else list(returned)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - named, with its sample, by whoever called
        return error


def _culprit(function: Function, columns: Columns, count: int) -> int | None:
    """A sample on which alone the function raises, found by halving: few calls, should they be expensive."""
    places: Sequence[int] = range(count)
    while len(places) > 1:
        half = len(places) // 2
        raised = isinstance(_called(function, columns, places[:half]), Exception)
        places = places[:half] if raised else places[half:]
    return places[0] if isinstance(_called(function, columns, places), Exception) else None


def _is_finite_number(value: Any) -> bool:
    """True for Python's numbers and for those of numpy and torch, which only convert.

    >>> [_is_finite_number(value) for value in (1, True, float("nan"), "1")]
    [True, True, False, False]
    """
    try:
        return hasattr(value, "__float__") and math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError, RuntimeError):  # an array of several numbers, say
        return False


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
