"""Where prompts come from: the shipped task, or the user's own rows from disk.

The prompts of a rollout are a function of the seed, the data and the rollout's number alone. No cursor is kept, so a
resumed run, and every mode, draws the same rows.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from grpo_core import task
from grpo_core.config import ConfigError
from grpo_core.types import Prompt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grpo_core.config import Config, DataConfig

_FIRST_MESSAGE = "a text, or a list of messages with role and content"


class Prompts(Protocol):
    """The source of a run's prompts.

    Attributes:
        dropped: Rows left out because their prompt is over the limit.
        truncated: Rows whose prompt lost its first tokens for it.
    """

    dropped: int
    truncated: int

    def batch(self, number: int, count: int) -> list[Prompt]:
        """The prompts of rollout `number`, `count` in each rollout."""


class _Task:
    """The shipped task's words, drawn anew for each rollout."""

    dropped = truncated = 0

    def __init__(self, config: Config, tokenizer: Any) -> None:
        self._config, self._tokenizer = config, tokenizer

    def batch(self, number: int, count: int) -> list[Prompt]:
        """Rows of their own for each number."""
        seed = self._config.train.seed
        return task.rows(self._config.task, self._tokenizer, seed=seed, step=number, count=count)


class _Rows:
    """Rows of a data set, epoch by epoch, each in an order of its own."""

    def __init__(self, path: str, config: Config, tokenizer: Any) -> None:
        options = config.data
        self._seed = config.train.seed if options.shuffle else None
        self.dropped = self.truncated = 0
        limit = options.max_prompt_tokens or config.model.max_length - config.sampling.max_tokens
        self._rows: list[tuple[str, tuple[int, ...], dict[str, Any]]] = []
        for place, row in enumerate(_read(Path(path), options)):
            where = f"{path}, row {place + 1}"
            text, ids = _encoded(row, options, tokenizer, where)
            if len(ids) > limit:
                if options.over_limit == "error":
                    raise ConfigError(
                        f"{where}: the prompt has {len(ids)} tokens, allowed are {limit}; {_LIMITS}"
                    )
                self.dropped += options.over_limit == "drop"
                self.truncated += options.over_limit == "truncate"
                if options.over_limit == "drop":
                    continue
                ids = ids[-limit:]
                text = str(tokenizer.decode(list(ids), skip_special_tokens=False))
            columns = {name: value for name, value in row.items() if name != options.prompt}
            self._rows.append((text, ids, columns))
        if not self._rows:
            why = (
                f"all {self.dropped} prompts are over {limit} tokens; {_LIMITS}"
                if self.dropped
                else "no rows"
            )
            raise ConfigError(f"data.path = {path!r}: {why}")

    def batch(self, number: int, count: int) -> list[Prompt]:
        """Places `number * count` and on of the endless sequence of epochs."""
        prompts = []
        for place in range(count):
            epoch, index = divmod(number * count + place, len(self._rows))
            text, ids, columns = self._rows[self._order(epoch)[index]]
            prompts.append(Prompt(f"{number}.{place}", text, ids, columns))
        return prompts

    def __len__(self) -> int:
        return len(self._rows)

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._rows)))
        if self._seed is not None:
            random.Random(task.derived_seed(self._seed, "epoch", epoch)).shuffle(order)
        return order


_LIMITS = "see data.over_limit, data.max_prompt_tokens, model.max_length and sampling.max_tokens"


def build_prompts(config: Config, tokenizer: Any) -> Prompts:
    """The prompts to train on.

    Raises:
        ConfigError: The data can't be read, or no row is left.
    """
    return _Rows(config.data.path, config, tokenizer) if config.data.path else _Task(config, tokenizer)


def build_eval_prompts(config: Config, tokenizer: Any) -> list[Prompt]:
    """The prompts to evaluate on, the same each time; of a data set with fewer rows, each once."""
    if not config.eval.path:
        count, seed = config.eval.prompts, config.train.seed
        return task.rows(config.task, tokenizer, seed=seed, step="eval", count=count)
    rows = _Rows(config.eval.path, config, tokenizer)
    return rows.batch(0, min(config.eval.prompts, len(rows)))


def _read(path: Path, options: DataConfig) -> Iterator[dict[str, Any]]:
    """The rows of a file or folder, all with the same columns."""
    try:
        if path.is_dir():
            rows = _from_folder(path, options.split)
        elif path.suffix == ".parquet":
            rows = _from_parquet(path)
        else:
            rows = _from_lines(path)
        columns: set[str] | None = None
        for place, row in enumerate(rows):
            if options.prompt not in row:
                raise ConfigError(
                    f"{path}, row {place + 1}: no column {options.prompt!r} (data.prompt); "
                    f"there are {', '.join(map(repr, row)) or 'none'}"
                )
            columns = columns or set(row)
            if set(row) != columns:
                odd = ", ".join(map(repr, sorted(columns ^ set(row))))
                raise ConfigError(
                    f"{path}, row {place + 1}: it differs from row 1 in the columns {odd}; "
                    "reward functions get every column of every row"
                )
            yield row
    except OSError as error:
        raise ConfigError(f"data.path = {str(path)!r}: {error.strerror or error}") from error


def _from_lines(path: Path) -> Iterator[dict[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ConfigError(
                    f"{path}:{number}: expected one JSON object a line, found {line.strip()[:60]!r}"
                )
            yield row


def _from_parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"data.path = {str(path)!r}: Parquet needs pyarrow; pip install pyarrow") from error
    try:
        yield from pa.parquet.read_table(path).to_pylist()
    except pa.ArrowInvalid as error:
        raise ConfigError(f"data.path = {str(path)!r}: not Parquet: {error}") from error


def _from_folder(path: Path, split: str) -> Iterator[dict[str, Any]]:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            f"data.path = {str(path)!r}: a folder needs datasets; pip install datasets"
        ) from error
    try:
        loaded = datasets.load_from_disk(str(path))
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(f"data.path = {str(path)!r}: not a folder of save_to_disk: {error}") from error
    if isinstance(loaded, datasets.DatasetDict):
        if split not in loaded:
            raise ConfigError(
                f"data.split = {split!r}: {path} has {', '.join(map(repr, loaded))}; name one of them"
            )
        loaded = loaded[split]
    elif split:
        raise ConfigError(f"data.split = {split!r}: {path} has no splits; leave it empty")
    yield from loaded


def _encoded(
    row: dict[str, Any], options: DataConfig, tokenizer: Any, where: str
) -> tuple[str, tuple[int, ...]]:
    """The prompt as the model sees it, as text and as ids."""
    prompt = row[options.prompt]
    messages = isinstance(prompt, list) and bool(prompt) and all(isinstance(m, dict) for m in prompt)
    if not (messages or (isinstance(prompt, str) and prompt)):
        raise ConfigError(f"{where}: {options.prompt} = {str(prompt)[:60]!r}: expected {_FIRST_MESSAGE}")
    if options.template == "none" and messages:
        raise ConfigError(f"{where}: data.template = 'none', but the prompt is a list of messages")
    if not messages and options.template != "chat":
        ids = tuple(tokenizer.encode(prompt))
        twice = ids[:2] == (tokenizer.bos_token_id,) * 2  # a text that was rendered by a template before
        return prompt, ids[1:] if twice else ids
    if not tokenizer.chat_template:
        raise ConfigError(f"{where}: a chat prompt, but the model's tokenizer has no chat template")
    chat = prompt if messages else [{"role": "user", "content": prompt}]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    except Exception as error:
        raise ConfigError(
            f"{where}: the chat template refuses it: {type(error).__name__}: {error}"
        ) from error
    # The template has written the special tokens; the tokenizer must not put a second one in front.
    return text, tuple(tokenizer.encode(text, add_special_tokens=False))
