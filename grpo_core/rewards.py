"""What completions are worth: several functions with weights, a reward model, and the checks around them.

A reward function is `fn(prompts, completions, **columns) -> list[float | None]`: texts in, one number a completion
out, or None where it has nothing to say; `columns` are the data's other fields, one list each.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError
from grpo_core.reward_functions import BUILT_IN, RewardError, letters_in_place, soft_overlong

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grpo_core.config import Config
    from grpo_core.types import Completion, Prompt

    Function = Callable[..., Sequence[float | None]]

__all__ = ["RewardError", "RewardSet", "Scores", "build_rewards", "score"]


@dataclass(frozen=True)
class Scores:
    """The rewards of some samples.

    Attributes:
        totals: The weighted sums, less the penalty for length.
        by_function: What each function said, before weights.
    """

    totals: list[float]
    by_function: dict[str, list[float | None]]


class RewardSet:
    """The run's reward functions."""

    def __init__(self, functions: Mapping[str, Function], weights: Sequence[float], config: Config) -> None:
        """One weight a function."""
        self._functions, self._weights, self._config = dict(functions), list(weights), config
        threads = min(config.reward.threads, len(self._functions))
        self._pool = ThreadPoolExecutor(threads, "reward") if threads > 1 else None

    def score(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], texts: Sequence[str]
    ) -> Scores:
        """Calls all functions.

        Raises:
            RewardError: One raised or returned what can't be a reward, or none had anything to say of a sample.
            ConfigError: One needs a column that the data doesn't have.
        """
        if not texts:
            return Scores([], {name: [] for name in self._functions})
        asked = [prompt.text for prompt in prompts]
        columns = {key: [prompt.columns[key] for prompt in prompts] for key in prompts[0].columns}

        def call(name: str) -> list[float | None]:
            function = self._functions[name]
            return score(name, function, asked, list(texts), _wanted(name, function, columns))

        by_function = dict(
            zip(self._functions, (self._pool.map if self._pool else map)(call, self._functions), strict=True)
        )
        options = self._config.reward
        totals = []
        for place, completion in enumerate(completions):
            said = [
                (values[place], weight)
                for values, weight in zip(by_function.values(), self._weights, strict=True)
            ]
            known = [value * weight for value, weight in said if value is not None]
            if not known:
                raise RewardError(
                    f"no reward function has anything to say of sample {place}, the completion "
                    f"{_shown(texts[place])} to the prompt {_shown(asked[place])}"
                )
            length = soft_overlong(
                len(completion.ids),
                self._config.sampling.max_tokens,
                options.overlong_buffer,
                options.overlong_penalty,
            )
            totals.append(sum(known) + length)
        return Scores(totals, by_function)


def build_rewards(config: Config) -> RewardSet:
    """The functions that `[reward]` names; none named: the shipped task's own.

    Raises:
        ConfigError: One is not there, or the reward model can't be loaded.
    """
    options = config.reward
    functions: dict[str, Function] = {name.rpartition(":")[2]: _found(name) for name in options.functions}
    if len(functions) < len(options.functions):
        raise ConfigError(f"reward.functions = {list(options.functions)}: two have the same name")
    if options.model:
        from grpo_core.reward_model import RewardModel

        functions["model"] = RewardModel(options.model)
    if not functions:
        if config.data.path:
            raise ConfigError(
                "reward.functions is empty: name the functions that score the rows of data.path"
            )
        functions = {"letters": letters_in_place}
    return RewardSet(functions, options.weights or [1.0] * len(functions), config)


def score(
    name: str,
    function: Function,
    prompts: list[str],
    completions: list[str],
    columns: Mapping[str, list[Any]],
) -> list[float | None]:
    """Calls a reward function and refuses what is not one finite number, or None, a completion.

    Raises:
        RewardError: It raised, or returned a wrong count, something that isn't a number, NaN or infinity.
    """
    try:
        returned = list(function(prompts, completions, **columns))
    except (RewardError, ConfigError):
        raise
    except Exception as error:
        place = _culprit(function, prompts, completions, columns)
        which = "a batch, though on no sample of it alone" if place is None else f"sample {place}"
        raise RewardError(
            f"reward function {name} raised {type(error).__name__}: {error} on {which}: the completion "
            f"{_shown(completions[place or 0])} to the prompt {_shown(prompts[place or 0])}"
        ) from error
    if len(returned) != len(completions):
        raise RewardError(
            f"reward function {name} returned {len(returned)} rewards for {len(completions)} completions; "
            "it must return one each, in their order"
        )
    for place, (value, completion) in enumerate(zip(returned, completions, strict=True)):
        if value is None or _is_finite_number(value):
            continue
        raise RewardError(
            f"reward function {name} returned {value!r} for sample {place}, the completion "
            f"{_shown(completion)} to the prompt {_shown(prompts[place])}; a reward is a finite number"
        )
    return [None if value is None else float(value) for value in returned]


def _culprit(
    function: Function, prompts: list[str], completions: list[str], columns: Mapping[str, list[Any]]
) -> int | None:
    """The first sample that makes it raise, by halving: a dozen calls for thousands of samples."""

    def raises(part: slice) -> bool:
        try:
            function(
                prompts[part], completions[part], **{key: values[part] for key, values in columns.items()}
            )
        except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
            return True
        return False

    low, high = 0, len(completions)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if raises(slice(low, middle)) else (middle, high)
    return low if raises(slice(low, high)) else None


def _wanted(name: str, function: Function, columns: Mapping[str, list[Any]]) -> Mapping[str, list[Any]]:
    """The columns that a function takes."""
    parameters = list(inspect.signature(function).parameters.values())[2:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return columns
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in columns]
    if missing:
        there = ", ".join(map(repr, columns)) or "none"
        raise ConfigError(f"reward function {name} needs the column {missing[0]!r}; the data has {there}")
    return {p.name: columns[p.name] for p in parameters if p.name in columns}


def _found(name: str) -> Function:
    """A built-in function, or `file.py:function`."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    path, colon, function = name.rpartition(":")
    if not colon:
        raise ConfigError(
            f"reward.functions: {name!r}: expected file.py:function or one of {', '.join(BUILT_IN)}"
        )
    if not Path(path).is_file():
        raise ConfigError(f"reward.functions: {name!r}: there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"reward_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"reward.functions: {name!r}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"reward.functions: {name!r}: {path}: {type(error).__name__}: {error}") from error
    found = getattr(module, function, None)
    if not callable(found):
        there = ", ".join(key for key, value in vars(module).items() if inspect.isfunction(value)) or "none"
        raise ConfigError(f"reward.functions: {name!r}: {path} has no function {function}; it has {there}")
    return found  # type: ignore[no-any-return]


def _is_finite_number(value: Any) -> bool:
    """True for Python's numbers and for those of numpy and torch, which only convert."""
    return hasattr(value, "__float__") and math.isfinite(float(value))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
