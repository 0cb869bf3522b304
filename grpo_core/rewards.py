"""Reward functions and the checks around them.

A reward function is `fn(prompts, completions, **columns) -> list[float]`: texts in, one number a completion out;
`columns` holds the task's other fields, one list each, aligned with the prompts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any


class RewardError(RuntimeError):
    """Raised when a reward function raised, or returned what can't be a reward; names function and sample."""


class RewardFunction(Protocol):
    """What the trainer calls."""

    __name__: str

    # Any: a function names the columns it wants.
    @property
    def __call__(self) -> Callable[..., Sequence[float]]:
        """One number a completion."""


def letters_in_place(prompts: list[str], completions: list[str], answer: list[str]) -> list[float]:
    """The share of letters that stand where the answer has them; too long or too short costs as much.

    >>> letters_in_place(["abc>"] * 4, ["abc", "abd", "ab", "abcabc"], answer=["abc"] * 4)
    [1.0, 0.6666666666666666, 0.6666666666666666, 0.5]
    """
    del prompts
    return [
        sum(a == b for a, b in zip(right, given)) / max(len(right), len(given), 1)  # noqa: B905
        for right, given in zip(answer, completions, strict=True)
    ]


def score(
    function: RewardFunction, prompts: list[str], completions: list[str], columns: Mapping[str, list[Any]]
) -> list[float]:
    """Calls a reward function and refuses what is not one finite number a completion.

    Raises:
        RewardError: It raised, or returned a wrong count, something that isn't a number, NaN or infinity.
    """
    name = function.__name__
    try:
        returned = list(function(prompts, completions, **columns))
    except Exception as error:
        shown = f"{type(error).__name__}: {error}"
        raise RewardError(
            f"reward function {name} raised {shown} on a batch of {len(completions)} completions, "
            f"the first being {_shown(completions[0])} to the prompt {_shown(prompts[0])}"
        ) from error
    if len(returned) != len(completions):
        raise RewardError(
            f"reward function {name} returned {len(returned)} rewards for {len(completions)} completions; "
            "it must return one each, in their order"
        )
    for place, (value, completion) in enumerate(zip(returned, completions, strict=True)):
        if _is_finite_number(value):
            continue
        raise RewardError(
            f"reward function {name} returned {value!r} for sample {place}, the completion "
            f"{_shown(completion)} to the prompt {_shown(prompts[place])}; a reward is a finite number"
        )
    return [float(value) for value in returned]


def _is_finite_number(value: Any) -> bool:
    """True for Python's numbers and for those of numpy and torch, which only convert."""
    return hasattr(value, "__float__") and math.isfinite(float(value))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


class _S:
    def __init__(self, t):
        self.totals, self.by_function = t, {"letters_in_place": t}


class _R:
    def score(self, prompts, completions, texts):
        cols = {k: [p.columns[k] for p in prompts] for k in prompts[0].columns} if prompts else {"answer": []}
        return _S(score(letters_in_place, [p.text for p in prompts], list(texts), cols))


def build_rewards(config, model_dir):
    return _R()
