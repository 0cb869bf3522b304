"""The reward functions that come with the trainer, and the process that checks mathematics for one of them."""

from __future__ import annotations

import atexit
import faulthandler
import functools
import importlib
import logging
import os
import re
import signal
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError
from grpo_core.rollout.child.frames import end_child, read_frame, start_child, write_frame

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

NGRAM = 3  # words; what open-r1 and TRL use
MODEL_BATCH = 16  # texts that the reward model reads at one time
CPU_S = 5.0  # processor time that one answer may take to check
STUCK_S = 120.0  # wall time after which the checking process gives up on one answer
_ONE_AT_A_TIME = threading.Lock()  # a user's function may call `math_answers`, too, in another thread


def letters_in_place(completions: list[str], answer: list[str]) -> list[float]:
    """The share of letters that stand where the answer has them; too long or too short costs as much.

    >>> letters_in_place(["abc", "abd", "ab", "abcabc"], answer=["abc"] * 4)
    [1.0, 0.6666666666666666, 0.6666666666666666, 0.5]
    """
    return [
        sum(a == b for a, b in zip(right, given)) / max(len(right), len(given), 1)  # noqa: B905
        for right, given in zip(answer, completions, strict=True)
    ]


def exact(completions: list[str], answer: list[Any]) -> list[float | None]:
    """1 where the completion is the answer, white space around either aside; None where the row has no answer.

    >>> exact([" 42", "42.0", "42"], answer=["42", 42, None])
    [1.0, 0.0, None]
    """
    pairs = zip(answer, completions, strict=True)
    return [None if right is None else float(given.strip() == str(right).strip()) for right, given in pairs]


def tags(prompts: list[str], completions: list[str]) -> list[float]:
    """1 for `<think>...</think><answer>...</answer>` and nothing else; the prompt may have ended with `<think>`.

    Takes linear time: the text is split at tags, not searched for a pattern that spans it.

    >>> tags(["2+2?"] * 2, ["<think>easy</think> <answer>4</answer>", "<answer>4</answer>"])
    [1.0, 0.0]
    """
    scores = []
    for prompt, completion in zip(prompts, completions, strict=True):
        text = "<think>" * prompt.rstrip().endswith("<think>") + completion
        parts = re.split(r"(</?(?:think|answer)>)", text)  # text, tag, text, ..., tag, text
        in_order = parts[1::2] == ["<think>", "</think>", "<answer>", "</answer>"]
        scores.append(float(in_order and not any(part.strip() for part in parts[::4])))
    return scores


def repetition(completions: list[str]) -> list[float]:
    """Minus the share of n-grams that repeat an earlier one; n-grams of words, in lower case.

    Source: appendix C.2 of arXiv 2502.03373, in words as open-r1 has it (`get_repetition_penalty_reward`).

    >>> repetition(["a b c d", "a b c a b c", "a b"])
    [0.0, -0.25, 0.0]
    """
    texts = [completion.lower().split() for completion in completions]
    ngrams = [[tuple(words[at : at + NGRAM]) for at in range(len(words) - NGRAM + 1)] for words in texts]
    return [(len(set(found)) - len(found)) / max(len(found), 1) for found in ngrams]


def soft_overlong(tokens: int, max_tokens: int, buffer: int, penalty: float) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, equation 13), times `penalty`.

    0 up to `max_tokens - buffer` tokens, from there linear to `-penalty` at `max_tokens`.

    >>> [soft_overlong(tokens, max_tokens=20, buffer=4, penalty=1.0) for tokens in (16, 17, 20, 21)]
    [0.0, -0.25, -1.0, -1.0]
    """
    return 0.0 - penalty * min(max(tokens - (max_tokens - buffer), 0) / buffer, 1.0)


class RewardModel:
    """The score that a sequence classification model with one label gives to prompt and completion."""

    def __init__(self, folder: str, device: str) -> None:
        """Loads it, in float32.

        Raises:
            ConfigError: Not such a model, no pad token, or weights that are not in the checkpoint.
        """
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        where = f"reward.model = {folder!r}: expected a sequence classification model"
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model, info = AutoModelForSequenceClassification.from_pretrained(
                folder, local_files_only=True, output_loading_info=True
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where}: {str(error).strip().partition(chr(10))[0]}") from error
        config, pad = self._model.config, self._tokenizer.pad_token_id
        if config.num_labels != 1 or pad is None or info["missing_keys"]:
            missing = (
                ", ".join(sorted(info["missing_keys"])) or "none"
            )  # transformers makes these up at random
            found = f"{config.num_labels} labels, pad token {pad}, missing weights: {missing}"
            raise ConfigError(
                f"{where} with 1 label, all its weights and a tokenizer with a pad token, found {found}"
            )
        config.pad_token_id, self._tokenizer.padding_side = pad, "right"
        self._model.float().to(device).eval()
        longest = getattr(config, "max_position_embeddings", self._tokenizer.model_max_length)
        self._limit = min(longest, self._tokenizer.model_max_length)

    def __call__(self, prompts: list[str], completions: list[str]) -> list[float]:
        """One score a completion.

        Raises:
            ValueError: A text is longer than the model takes; it is not cut.
        """
        import torch

        texts = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
        scores: list[float] = []
        bos = self._tokenizer.bos_token  # a chat template writes it into the prompt itself
        special = not (bos and texts[0].startswith(bos))
        for start in range(0, len(texts), MODEL_BATCH):
            part = texts[start : start + MODEL_BATCH]
            rows = self._tokenizer(part, padding=True, return_tensors="pt", add_special_tokens=special)
            mask_BT = rows["attention_mask"].to(self._model.device)
            length = int(mask_BT.sum(1).max())
            if length > self._limit:
                raise ValueError(f"{length} tokens, and the reward model takes {self._limit}")
            with torch.inference_mode():
                ids_BT = rows["input_ids"].to(self._model.device)
                scores += self._model(input_ids=ids_BT, attention_mask=mask_BT).logits[:, 0].tolist()
        return scores


def math_answers(completions: list[str], **columns: list[Any]) -> list[float | None]:
    """1 where math-verify finds the completion equal to the column `answer`, else `solution`; None without one.

    math-verify limits its time by SIGALRM, which works in a main thread alone: elsewhere 0.6 and 0.7 find everything
    wrong, 0.8 and 0.9 raise, and without a limit `9**9**9**9` is not done in any reasonable time. So it runs in a
    process of its own, under a limit of processor time, which the load of the machine does not use up.

    Raises:
        ConfigError: There is neither column.
        ValueError: An expected answer can't be read: no completion could ever be right.
        ChildProcessError: The process died over a sample.
    """
    expected = columns.get("answer", columns.get("solution"))
    if expected is None:
        raise ConfigError(
            f"reward function math needs a column answer or solution, found {', '.join(columns)}"
        )
    pairs = zip(expected, completions, strict=True)
    return [None if gold is None else _math(str(gold), completion) for gold, completion in pairs]


@functools.lru_cache
def _checker() -> subprocess.Popen[bytes]:
    child = start_child(["grpo_core.tasks.reward_functions"], threads=1)
    atexit.register(_end, child)
    return child


def _end(child: subprocess.Popen[bytes]) -> None:
    end_child(child, grace_s=1.0)
    if child.stdout is not None:
        child.stdout.close()


def _math(gold: str, completion: str) -> float:
    """Asks the checking process; what takes too long is 0, and a warning says so."""
    with _ONE_AT_A_TIME:
        child, answer = _checker(), None
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            write_frame(child.stdin, {"gold": gold, "completion": completion, "cpu_s": CPU_S})
            answer = read_frame(child.stdout)
        finally:
            if answer is None:  # what it may still say must not be taken for another sample's
                _checker.cache_clear()
                _end(child)
    if answer is None:
        raise ChildProcessError("the process that runs math-verify ended")
    if not answer[0]["readable"]:
        raise ValueError(f"math-verify (0.8 or newer) can't read the expected answer {gold!r}")
    if answer[0]["equal"] is None:
        text = f"math: not checked in {CPU_S:g} s, so 0: the completion that ends in {completion[-80:]!r}"
        warnings.warn(text, stacklevel=2)
    return float(answer[0]["equal"] or 0)


BUILT_IN: dict[str, Callable[..., Any]] = {
    "exact": exact,
    "format": tags,
    "letters_in_place": letters_in_place,
    "math": math_answers,
    "repetition": repetition,
}


class _OutOfTime(BaseException):  # no Exception: math-verify catches those, and finds the answer wrong
    """Raised in the checking process by its timer."""


def _out_of_time(*_: Any) -> None:
    raise _OutOfTime


def _limited(cpu_s: float, check: Callable[..., Any], *arguments: Any) -> Any:
    """What the check returns; None if it took too long."""
    try:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            return check(*arguments)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except _OutOfTime:
        return None


@functools.lru_cache
def _expected(gold: str) -> tuple[Any, ...]:
    r"""The expected answer as math-verify reads it; nothing if it does not even equal itself.

    Bare LaTeX is taken as a whole: left as it is, math-verify reads the first number, 2 of `2\sqrt{3}`.
    """
    library = importlib.import_module("math_verify")
    marked = re.search(r"\$.*\$|\\boxed|\\\(|\\\[", gold, re.DOTALL)  # one $ alone is money
    found = library.parse(gold if marked else rf"\boxed{{{gold}}}", parsing_timeout=None)
    return tuple(found) if library.verify(found, found, timeout_seconds=None) else ()


def _equal(expected: tuple[Any, ...], completion: str) -> bool:
    library = importlib.import_module("math_verify")
    given = library.parse(completion, parsing_timeout=None)
    return bool(library.verify(list(expected), given, timeout_seconds=None))


def _serve() -> None:
    """The checking process: answers until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed must not get between the frames
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it would warn that its own limit is off
    signal.signal(signal.SIGPROF, _out_of_time)
    importlib.import_module("math_verify")  # takes a second or two, which is nobody's answer's
    while (question := read_frame(sys.stdin.buffer)) is not None:
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        gold, completion, cpu_s = (question[0][key] for key in ("gold", "completion", "cpu_s"))
        expected = _limited(cpu_s, _expected, gold)
        equal = _limited(cpu_s, _equal, expected, completion) if expected else None
        faulthandler.cancel_dump_traceback_later()
        write_frame(answers, {"readable": bool(expected), "equal": equal})


if __name__ == "__main__":
    _serve()
