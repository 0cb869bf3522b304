"""The reward functions that come with the trainer; the shipped task's own is in `task`."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import inspect
import re
import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError
from grpo_core.machine.resources import torch_device
from grpo_core.tasks.mathematics import math_answers
from grpo_core.tasks.model import loaded
from grpo_core.tasks.task import letters_in_place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from grpo_core.config import RewardConfig
    from grpo_core.types import Completion, Prompt

    Rows = Sequence[tuple[Prompt, Completion, str]]

NGRAM = 3  # words; what open-r1 and TRL use


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


def overlong_of(options: RewardConfig, max_tokens: int) -> Callable[[int], float]:
    """`soft_overlong` as these settings have it."""
    limits = {"max_tokens": max_tokens, "buffer": options.overlong_buffer}
    return functools.partial(soft_overlong, penalty=options.overlong_penalty, **limits)


BUILT_IN: dict[str, Callable[..., Any]] = {
    "exact": exact,
    "format": tags,
    "letters_in_place": letters_in_place,
    "repetition": repetition,
}


def chosen(options: RewardConfig, device: str) -> dict[str, Callable[..., Any]]:
    """Those of the settings by name, the reward model last.

    Raises:
        ConfigError: One is not there, or named twice, or none is named.
    """
    built: dict[str, Callable[..., Any]] = {}
    for spec in options.functions:
        name = Path(spec).name
        if name in built:
            raise ConfigError(f"reward.functions: {name!r} is named twice")
        built[name] = function(spec)
    if options.model:
        from grpo_core.tasks.reward_functions import RewardModel

        built["model"] = RewardModel(options.model, device)
    if not built:
        raise ConfigError("reward.functions: expected one or more, or reward.model, where data.path is set")
    return built


def function(spec: str) -> Callable[..., Any]:
    """That of `file.py:function`, or one that is built in.

    Raises:
        ConfigError: It is not there.
    """
    if spec == "math" and importlib.util.find_spec("math_verify") is None:
        raise ConfigError("reward.functions: 'math' needs math-verify; pip install 'math-verify>=0.8'")
    file, colon, name = spec.rpartition(":")
    try:
        there = _run(Path(file).resolve()) if colon else KNOWN
    except (Exception, SystemExit) as error:
        shown = f"{type(error).__name__}: {error}"
        raise ConfigError(f"reward.functions: {spec!r}: running {file} raised {shown}") from error
    if not callable(there.get(name)):
        known = ", ".join(key for key, value in there.items() if inspect.isfunction(value)) or "none"
        where = file if colon else "what is built in (others are written file.py:function)"
        raise ConfigError(f"reward.functions: {spec!r}: no function {name!r} in {where}; there are: {known}")
    return there[name]


@functools.lru_cache
def _run(path: Path) -> dict[str, Any]:
    """What a file defines; run once, under its own path as a name, which no other module has."""
    return runpy.run_path(str(path), run_name=str(path))


KNOWN = dict(sorted({**BUILT_IN, "math": math_answers}.items()))


MODEL_BATCH = 16  # texts that the reward model reads at one time


class RewardModel:
    """The score that a sequence classification model with one label gives to prompt and completion."""

    def __init__(self, folder: str, device: str) -> None:
        """Loads it, in float32.

        Raises:
            ConfigError: Not such a model, no pad token, or weights that are not in the checkpoint.
        """
        where = f"reward.model = {folder!r}: expected a sequence classification model"
        self._tokenizer = loaded("AutoTokenizer", folder, where)
        kind = "AutoModelForSequenceClassification"
        self._model, info = loaded(kind, folder, where, output_loading_info=True)
        config, pad = self._model.config, self._tokenizer.pad_token_id
        if config.num_labels != 1 or pad is None or info["missing_keys"]:
            # Transformers makes these up at random.
            missing = ", ".join(sorted(info["missing_keys"])) or "none"
            found = f"{config.num_labels} labels, pad token {pad}, missing weights: {missing}"
            raise ConfigError(
                f"{where} with 1 label, all its weights and a tokenizer with a pad token, found {found}"
            )
        config.pad_token_id, self._tokenizer.padding_side = pad, "right"
        self._model.float().to(torch_device(device)).eval()
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


def call_function(function: Callable[..., Any], columns: Mapping[str, list[Any]]) -> list[Any] | None:
    """Call a reward function with copies of the columns; an async one is waited for."""
    returned = function(**{key: list(values) for key, values in columns.items()})
    if inspect.isawaitable(returned):
        returned = _awaited(returned)
    return None if returned is None else list(returned)


def _awaited(returned: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await returned

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1) as pool:  # in a notebook, whose loop runs in this thread
        return pool.submit(asyncio.run, wait()).result()


def named(rows: Rows, place: int) -> str:
    """A sample, for people."""
    prompt, completion, text = rows[place]
    return (
        f"sample {place} (request {completion.request_id}), the completion {_shown(text)} to the prompt "
        f"{_shown(prompt.text)}"
    )


def raised(
    name: str,
    function: Callable[..., Any],
    columns: Mapping[str, list[Any]],
    rows: Rows,
    error: BaseException,
) -> str:
    """Of a function that raised: what, and on which sample."""
    place = _culprit(function, columns, len(rows))
    where = f"a batch of {len(rows)}, but on none of them alone" if place is None else named(rows, place)
    return f"reward function {name} raised {type(error).__name__}: {error}, on {where}"


def no_reward(name: str, returned: Sequence[Any] | None, rows: Rows, fine: Callable[[Any], bool]) -> str:
    """Of what a function returned: the wrong count, or the first value that is not `fine`."""
    count = None if returned is None else len(returned)
    if returned is None or count != len(rows):
        return (
            f"reward function {name} returned {count} rewards for {len(rows)} completions; "
            "it must return one each, in their order"
        )
    place = [fine(value) for value in returned].index(False)
    wrong = f"returned {returned[place]!r} for {named(rows, place)}; a reward is a finite number below 1e100, or None"
    return f"reward function {name} {wrong}"


def _culprit(function: Callable[..., Any], columns: Mapping[str, list[Any]], count: int) -> int | None:
    """A sample on which alone the function raises, found by halving: few calls, should they be expensive."""
    places: Sequence[int] = range(count)
    while len(places) > 1:
        half = len(places) // 2
        places = places[:half] if _raises(function, columns, places[:half]) else places[half:]
    return places[0] if _raises(function, columns, places) else None


def _raises(function: Callable[..., Any], columns: Mapping[str, list[Any]], places: Sequence[int]) -> bool:
    """Whether a call with some of the samples alone fails, too."""
    try:
        call_function(function, {key: [values[place] for place in places] for key, values in columns.items()})
    except ConfigError:
        raise
    except (Exception, SystemExit):  # noqa: BLE001 - whatever it is, it is what is looked for
        return True
    return False


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
