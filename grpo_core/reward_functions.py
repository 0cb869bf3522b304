"""The built-in reward functions: texts and the data's columns in, one number a completion out."""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_TIMEOUT_S = 5


class RewardError(RuntimeError):
    """Raised when a reward function raised, or returned what can't be a reward; names function and sample."""


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


def exact(prompts: list[str], completions: list[str], answer: list[Any]) -> list[float]:
    """1 where the completion is the answer, but for blanks around it.

    >>> exact(["2+2=", "2+3="], [" 4", "4"], answer=["4", 5])
    [1.0, 0.0]
    """
    del prompts
    return [
        float(given.strip() == str(right).strip()) for right, given in zip(answer, completions, strict=True)
    ]


def think_answer_format(prompts: list[str], completions: list[str]) -> list[float]:
    """1 for `<think>…</think><answer>…</answer>`, each once and in this order, nothing but blanks around and between.

    >>> think_answer_format([""] * 2, ["<think>a</think> <answer>b</answer>", "<answer>b</answer>"])
    [1.0, 0.0]
    """
    del prompts
    return [float(_well_formed(completion)) for completion in completions]


def _well_formed(completion: str) -> bool:
    # Split at the tags instead of matched as a whole: linear, whatever a policy makes up.
    parts = re.split(r"(</?(?:think|answer)>)", completion)
    tags, texts = parts[1::2], parts[::2]
    blank = not (texts[0].strip() or texts[-1].strip()) and len(texts) == 5 and not texts[2].strip()
    return tags == ["<think>", "</think>", "<answer>", "</answer>"] and blank


def repetition(prompts: list[str], completions: list[str], *, size: int = 3) -> list[float]:
    """Minus the share of a completion's word triples that were there before; 0 where there are none.

    As in Demystifying Long Chain-of-Thought Reasoning in LLMs (arXiv 2502.03373), with weight 1.

    >>> repetition([""] * 2, ["a b c d", "a b c a b c"])
    [0.0, -0.25]
    """
    del prompts
    found = []
    for completion in completions:
        words = completion.split()
        grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
        found.append(len(set(grams)) / len(grams) - 1.0 if grams else 0.0)
    return found


def soft_overlong(length: int, max_tokens: int, buffer: int, penalty: float) -> float:
    """What the length of a completion costs: nothing, then linearly more over the last `buffer` tokens.

    Equation 13 of DAPO (arXiv 2503.14476), times `penalty`.

    >>> [soft_overlong(n, max_tokens=10, buffer=4, penalty=1.0) for n in (6, 7, 10)]
    [0.0, -0.25, -1.0]
    """
    over = length - (max_tokens - buffer)
    return 0.0 - penalty * min(max(over / buffer, 0.0), 1.0) if buffer else 0.0


def math_accuracy(prompts: list[str], completions: list[str], answer: list[str]) -> list[float]:
    """1 where math-verify finds the completion's answer equal to the right one.

    Its time limit is an alarm signal, which Python allows in the main thread alone. Trainers that score in threads
    have had zeros of that for every sample. Here a thread works without the limit, and each right answer is first
    verified against itself: where that fails, nothing can be scored, and the run ends.

    Raises:
        ConfigError: math-verify is not installed.
        RewardError: A right answer can't be read, so that no completion could ever match it.
    """
    del prompts
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise ConfigError(
            f"reward.functions: math needs math-verify in this environment ({error}); "
            "pip install 'math-verify[antlr4_13_2]'"
        ) from error
    # It says with every call that there is no time limit.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    limit = _TIMEOUT_S if threading.current_thread() is threading.main_thread() else None
    right: dict[str, Any] = {}
    for place, text in enumerate(map(str, answer)):
        if text not in right:
            parsed = parse(
                f"${text}$" if "$" not in text and "\\boxed" not in text else text, parsing_timeout=limit
            )
            if not parsed or not verify(parsed, parsed, timeout_seconds=limit):
                raise RewardError(
                    f"reward function math: sample {place} has the answer {text[:80]!r}, which math-verify can't "
                    "read: no completion could ever be right"
                )
            right[text] = parsed
    return [
        float(verify(right[str(text)], parse(completion, parsing_timeout=limit), timeout_seconds=limit))
        for text, completion in zip(answer, completions, strict=True)
    ]


BUILT_IN: dict[str, Callable[..., list[float]]] = {
    "letters": letters_in_place,
    "exact": exact,
    "math": math_accuracy,
    "format": think_answer_format,
    "repetition": repetition,
}
