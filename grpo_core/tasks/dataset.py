"""Build prompts from a data set or from the shipped task, and rollouts (prompts with seeded requests) from them.

`build_prompts` builds the prompts, and `rollout` a rollout. Data sets are JSON lines (also gzipped), Parquet, or
folders of Hugging Face datasets. Overlong prompts are dropped or truncated, or end the run. The module also builds the
evaluation prompts and the prompt of the weight-sync probe, derives seeds, and computes the number of steps from
`train.epochs`.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import importlib
import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_core.config import Config, ConfigError
from grpo_core.tasks.model import SEPARATOR, first_line
from grpo_core.types import Prompt, Request, Rollout

PROBE_TOKENS = 160  # see `long_prompt`


class DataSet:
    """Tokenized rows of a file or folder; overlong prompts are dropped, truncated or refused.

    Attributes:
        rows: For each row: token ids, other columns, and the prompt as in the data set.
        dropped: Number of rows over the limit that were left out.
        truncated: Number of rows over the limit that lost their first tokens.
    """

    def __init__(self, config: Config, tokenizer: Any, key: str, path: str, split: str) -> None:
        """Read and tokenize the rows of `path`; `key` is the option that names it, for messages.

        Raises:
            ConfigError: The data can't be read, a row can't be used, or none is left.
        """
        self._tokenizer, self._config, options = tokenizer, config, config.data
        self.rows: list[tuple[tuple[int, ...], dict[str, Any], Any]] = []
        self.dropped = self.truncated = 0
        limit = options.max_prompt_tokens or config.model.max_length - config.sampling.max_tokens
        with _wrap_errors(f"{key} = {path!r}"):
            rows = _read_rows(path, split)
            begin = tokenizer("")["input_ids"][:1]
        for number, row in enumerate(rows, start=1):
            with _wrap_errors(f"{key} = {path!r}, row {number}"):
                ids = _tokenize(tokenizer, _prompt(config, row, rows[0]), begin)
                if len(ids) > limit and (options.over_limit == "error" or limit < 1):
                    raise ValueError(f"a prompt of {len(ids)} tokens; at most {limit} are allowed")
            if len(ids) > limit and options.over_limit == "drop":
                self.dropped += 1
                continue
            self.truncated += len(ids) > limit
            columns = {name: value for name, value in row.items() if name != options.prompt}
            self.rows.append((tuple(ids[-limit:]), columns, _without_none(row[options.prompt])))
        if not self.rows:
            counts = f"{len(rows)} rows, {self.dropped} of them dropped for more than {limit} tokens"
            raise ConfigError(f"{key} = {path!r}: no prompts: {counts}")

    def batch(self, number: int, count: int) -> list[Prompt]:
        """Return batch `number` of `count` prompts. The rows repeat in epochs, each shuffled if data.shuffle is set."""
        prompts = []
        for place in range(count):
            epoch, row = divmod(number * count + place, len(self.rows))
            if self._config.data.shuffle:
                row = _epoch_order(len(self.rows), self._config.train.seed, epoch)[row]
            prompts.append(self.prompt(f"{number}.{place}", row))
        return prompts

    def prompt(self, prompt_id: str, row: int) -> Prompt:
        """Return a row as a prompt with the id `prompt_id`."""
        ids, columns, source = self.rows[row]
        text = self._tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return Prompt(prompt_id, text, ids, columns, source)


@functools.lru_cache(maxsize=2)  # a batch may end in the next epoch
def _epoch_order(rows: int, seed: int, epoch: int) -> list[int]:
    """Shuffle the rows for an epoch."""
    order = list(range(rows))
    random.Random(derived_seed(seed, "epoch", epoch)).shuffle(order)
    return order


@contextlib.contextmanager
def _wrap_errors(where: str) -> Iterator[None]:
    """Convert any error of a template or package to one line that names the location."""
    try:
        yield
    except Exception as error:
        remedy = "; install it" if isinstance(error, ImportError) else ""
        raise ConfigError(f"{where}: {first_line(error)}{remedy}") from error


def _prompt(config: Config, row: dict[str, Any], first: dict[str, Any]) -> Any:
    """Return a row's prompt, a text or messages; all rows must have the form of the first row."""
    name, template = config.data.prompt, config.data.template
    if name not in first:
        raise ValueError(f"no column {name!r} (data.prompt); there are {', '.join(first)}")
    if missing := sorted(row.keys() ^ first.keys()):
        raise ValueError(f"not every row has a column {missing[0]!r}; write null where there is no value")
    value, letters = _without_none(row[name]), config.task.letters + SEPARATOR
    is_text = isinstance(value, str)
    if is_text != isinstance(first[name], str) or not (is_text or _is_chat(value)) or not value:
        wrong = "expected a text, or else in every row a list of messages with role and content"
    elif not is_text and template == "none":
        wrong = "messages need a template, and data.template is 'none'"
    elif is_text and not config.model.path and not set(value) <= set(letters):
        wrong = f"the tiny model reads {letters} only; set model.path"
    else:
        return [{"role": "user", "content": value}] if is_text and template == "chat" else value
    raise ValueError(f"{name} = {repr(value)[:80]}: {wrong}")


def _is_chat(value: Any) -> bool:
    """Return whether a value is a list of messages with role and content."""
    keys = {"role", "content"}
    return isinstance(value, list) and all(isinstance(item, dict) and keys <= item.keys() for item in value)


def _without_none(value: Any) -> Any:
    """Remove keys with None: Arrow adds every key to every message, and templates check whether a key exists."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _tokenize(tokenizer: Any, prompt: Any, begin: list[int]) -> list[int]:
    """Return the token ids of a prompt.

    The begin token of a chat is left to its template. A plain text gets the begin token if the tokenizer adds one, but
    no end token.
    """
    if isinstance(prompt, str):
        ids: list[int] = tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"]
        if begin == [tokenizer.bos_token_id] != ids[:1]:
            ids = begin + ids
    else:
        encoded = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)
        ids = encoded["input_ids"]
    if not ids:
        raise ValueError(f"the tokenizer makes no tokens of {prompt!r}")
    return ids


def _read_rows(path: str, split: str) -> list[dict[str, Any]]:
    """Read all rows of a file, or of a split of a folder."""
    if Path(path).is_dir():
        loaded = importlib.import_module("datasets").load_from_disk(path)
        splits: dict[str, Any] = loaded if isinstance(loaded, dict) else {"": loaded}
    elif path.endswith(".parquet"):
        splits = {"": importlib.import_module("pyarrow.parquet").ParquetFile(path).read().to_pylist()}
    else:
        splits = {"": _json_lines(path)}
    if len(splits) == 1 and not split:
        (split,) = splits
    if split not in splits:
        names = ", ".join(filter(None, splits)) or "none"
        raise ValueError(
            f"no split {split!r} (data.split) among: {names}; the folder of a split is a path, too"
        )
    rows = splits[split]
    return rows if isinstance(rows, list) else list(rows.to_list())


def _json_lines(path: str) -> list[dict[str, Any]]:
    """Read the rows of a file, skipping blank lines."""
    rows = []
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                with _wrap_errors(f"line {number}: expected a JSON object"):
                    rows.append({**json.loads(line.strip())})
    return rows


class ShippedTask:
    """Generated rows of the shipped task: repeat a word, or reverse it.

    Attributes:
        dropped: Always 0: there is no length limit.
        truncated: Always 0.
    """

    def __init__(self, config: Config, tokenizer: Any) -> None:
        self.dropped = self.truncated = 0
        self._options, self._tokenizer, self._seed = config.task, tokenizer, config.train.seed

    def batch(self, number: int | str, count: int) -> list[Prompt]:
        """Return `count` prompts; they depend only on the settings and the number, so they are equal in every mode.

        Args:
            number: The rollout's number, or a name such as "eval" for rows drawn apart from those of training.
            count: How many rows.

        Raises:
            ValueError: The tokenizer returns no tokens for a prompt.
        """
        options, draw = self._options, random.Random(derived_seed(self._seed, "rows", number))
        prompts = []
        for place in range(count):
            length = draw.randint(options.min_length, options.max_length)
            word = "".join(draw.choice(options.letters) for _ in range(length))
            text = word + SEPARATOR
            ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
            if not ids:
                raise ValueError(f"the tokenizer makes no tokens of the prompt {text!r}")
            answer = word if options.kind == "repeat" else word[::-1]
            prompts.append(Prompt(f"{number}.{place}", text, ids, {"answer": answer}))
        return prompts


def build_prompts(config: Config, tokenizer: Any) -> ShippedTask | DataSet:
    """Build the prompts to train on; reads and tokenizes the data set, if there is one.

    Raises:
        ConfigError: The data can't be read or used; the message says where and why.
    """
    if not config.data.path:
        return ShippedTask(config, tokenizer)
    return DataSet(config, tokenizer, "data.path", config.data.path, config.data.split)


def with_steps(config: Config, prompts: ShippedTask | DataSet) -> Config:
    """Return the settings with `train.steps` computed from `train.epochs`, if that is set and there is a data set."""
    if not (config.train.epochs and isinstance(prompts, DataSet)):
        return config
    steps = math.ceil(config.train.epochs * len(prompts.rows) / config.train.prompts_per_step)
    return replace(config, train=replace(config.train, steps=steps))


def build_eval_prompts(config: Config, tokenizer: Any) -> list[Prompt]:
    """Build the evaluation prompts: at most `eval.prompts` first rows of eval.path, or words of the shipped task.

    Raises:
        ConfigError: The data can't be read or used, or data.path is set without eval.path.
    """
    if config.eval.path:
        data = DataSet(config, tokenizer, "eval.path", config.eval.path, "")
        return [data.prompt(f"eval.{row}", row) for row in range(min(config.eval.prompts, len(data.rows)))]
    if config.data.path:
        raise ConfigError("eval.path = '': a run on data.path is evaluated on a data set of its own; name it")
    return ShippedTask(config, tokenizer).batch("eval", config.eval.prompts)


def rollout(source: ShippedTask | DataSet, number: int, config: Config) -> Rollout:
    """Build the prompts and requests of a rollout; they depend only on the settings, the data and its number."""
    prompts = source.batch(number, config.train.prompts_per_step)
    requests = requests_for(prompts, config.sampling.group_size, config.train.seed)
    return Rollout(number, tuple(prompts), tuple(requests))


def requests_for(prompts: list[Prompt], group_size: int, seed: int) -> list[Request]:
    """Build `group_size` requests per prompt, each with its own seed, in the order of the prompts."""
    return [
        Request(f"{prompt.id}.{index}", prompt.ids, derived_seed(seed, "sample", prompt.id, index))
        for prompt in prompts
        for index in range(group_size)
    ]


def long_prompt(ids: tuple[int, ...], room: int) -> tuple[int, ...]:
    """Repeat or cut a probe's prompt to 160 tokens, or to as many as there is room for.

    Engines cache a prompt's keys in whole blocks, of 128 tokens in vLLM's CPU build. A shorter prompt would not detect
    stale keys that were cached under the old weights.

    >>> long_prompt((1, 2, 3), room=5)
    (1, 2, 3, 1, 2)
    """
    length = max(1, min(PROBE_TOKENS, room))
    return (ids * length)[:length]


def derived_seed(*parts: object) -> int:
    """Derive a seed below 2**63 from values that identify its use; stable across processes, unlike `hash`.

    >>> derived_seed(0, "sample", "3.1", 0) == derived_seed(0, "sample", "3.1", 0)
    True
    >>> derived_seed(0, "sample", "3.1", 0) == derived_seed(0, "sample", "3.1", 1)
    False
    """
    digest = hashlib.sha256("/".join(map(repr, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
