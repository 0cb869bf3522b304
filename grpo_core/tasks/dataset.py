"""The user's own rows, from a file or a folder."""

from __future__ import annotations

import contextlib
import functools
import gzip
import importlib
import json
import random
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError
from grpo_core.tasks import task
from grpo_core.tasks.model import SEPARATOR, first_line
from grpo_core.types import Prompt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grpo_core.config import Config


class DataSet:
    """Rows of a file or a folder, tokenized: those within the limit, and those that were cut to it."""

    def __init__(self, config: Config, tokenizer: Any, key: str, path: str, split: str) -> None:
        self._tokenizer, self._config, options = tokenizer, config, config.data
        self.rows: list[tuple[array[int], dict[str, Any], Any]] = []  # ids (4 bytes each), columns, prompt
        self.dropped = self.truncated = 0
        room = config.model.max_length - config.sampling.max_tokens
        limit = min(options.max_prompt_tokens or room, room)
        with _named(f"{key} = {path!r}"):
            rows = _read(path, split)
            begin = tokenizer("")["input_ids"][:1]
        for number, row in enumerate(rows, start=1):
            with _named(f"{key} = {path!r}, row {number}"):
                ids = _ids(tokenizer, _prompt(config, row, rows[0]), begin)
                if len(ids) > limit and (options.over_limit == "error" or limit < 1):
                    raise ValueError(f"a prompt of {len(ids)} tokens; at most {limit} are allowed")
            if len(ids) > limit and options.over_limit == "drop":
                self.dropped += 1
                continue
            self.truncated += len(ids) > limit
            columns = {name: value for name, value in row.items() if name != options.prompt}
            self.rows.append((array("i", ids[-limit:]), columns, _without_none(row[options.prompt])))
        if not self.rows:
            found = f"{len(rows)} rows, {self.dropped} of them dropped for more than {limit} tokens"
            raise ConfigError(f"{key} = {path!r}: no prompts: {found}")

    def batch(self, number: int, count: int) -> list[Prompt]:
        """Rows `number * count` up to `(number + 1) * count` of an endless sequence of epochs."""
        prompts = []
        for place in range(count):
            epoch, row = divmod(number * count + place, len(self.rows))
            if self._config.data.shuffle:
                row = _order(len(self.rows), self._config.train.seed, epoch)[row]
            prompts.append(self.prompt(f"{number}.{place}", row))
        return prompts

    def prompt(self, name: str, row: int) -> Prompt:
        """A row under a name."""
        packed, columns, source = self.rows[row]
        ids = packed.tolist()
        text = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return Prompt(name, text, tuple(ids), columns, source)


@functools.lru_cache(maxsize=2)  # a batch may end in the next epoch
def _order(rows: int, seed: int, epoch: int) -> list[int]:
    """The rows in the order of an epoch."""
    order = list(range(rows))
    random.Random(task.derived_seed(seed, "epoch", epoch)).shuffle(order)
    return order


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    """Whatever is raised, by a template or a package, as one line that says where."""
    try:
        yield
    except Exception as error:
        remedy = "; install it" if isinstance(error, ImportError) else ""
        raise ConfigError(f"{where}: {first_line(error)}{remedy}") from error


def _prompt(config: Config, row: dict[str, Any], first: dict[str, Any]) -> Any:
    """A row's prompt, a text or a list of messages, if the row is made as the first one is."""
    name, template = config.data.prompt, config.data.template
    if name not in first:
        raise ValueError(f"no column {name!r} (data.prompt); there are {', '.join(first)}")
    if odd := sorted(row.keys() ^ first.keys()):
        raise ValueError(f"not every row has a column {odd[0]!r}; write null where there is no value")
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
    keys = {"role", "content"}
    return isinstance(value, list) and all(isinstance(item, dict) and keys <= item.keys() for item in value)


def _without_none(value: Any) -> Any:
    """Arrow gives every message the keys that any has, with None; but templates ask whether a key is there."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _ids(tokenizer: Any, prompt: Any, begin: list[int]) -> list[int]:
    """What the model is given.

    A template writes its begin token itself; tokenizing its text as any other text would add a second one. A text
    gets the begin token if the tokenizer begins with it, once, and never the end token that some tokenizers add.
    """
    if isinstance(prompt, str):
        ids: list[int] = tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"]
        if begin == [tokenizer.bos_token_id] != ids[:1]:
            ids = begin + ids
    else:
        told = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)
        ids = told["input_ids"]
    if not ids:
        raise ValueError(f"the tokenizer makes no tokens of {prompt!r}")
    return ids


def _read(path: str, split: str) -> list[dict[str, Any]]:
    """All rows of a file, or of a split of a folder."""
    if Path(path).is_dir():
        found = importlib.import_module("datasets").load_from_disk(path)
        splits: dict[str, Any] = found if isinstance(found, dict) else {"": found}
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
    """The rows of a file; blank lines are none."""
    rows = []
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                with _named(f"line {number}: expected a JSON object"):
                    rows.append({**json.loads(line.strip())})
    return rows
