"""What a run writes down: metrics and completions, one JSON object a line, flushed line by line.

An interrupted run keeps every line it had written. docs/metrics.md explains each name.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from grpo_core.config import Config
    from grpo_core.types import Sample


class JsonLines:
    """A file of JSON objects, one a line."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        """Starts the file anew, or goes on behind its first `keep_bytes`: what stands there was written later.

        Raises:
            ConfigError: The file is shorter than that.
        """
        if keep_bytes:
            from grpo_core.machine.checkpoint import cut_back

            cut_back(path, keep_bytes)
        self.path = path
        self._file = path.open("ab" if keep_bytes else "wb")

    def position(self) -> int:
        """Bytes in the file, all of them whole lines: the `keep_bytes` that goes on from here."""
        return self._file.tell()

    def write(self, entry: Mapping[str, Any]) -> None:
        """Writes one line. NaN is refused: it is not JSON, and nothing here may be NaN."""
        self._file.write(json.dumps(entry, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def completion_entry(step: int, sample: Sample) -> dict[str, Any]:
    """One line of completions.jsonl: what people read, and what a replay needs."""
    completion = sample.completion
    return {
        "step": step,
        "request": completion.request_id,
        "prompt": sample.prompt.text,
        "completion": sample.text,
        "reward": sample.reward,
        "advantage": sample.advantage,
        "finish_reason": completion.finish_reason,
        "prompt_ids": list(sample.prompt.ids),
        "ids": list(completion.ids),
        "logprobs": list(completion.logprobs),
        "versions": list(completion.versions),
        **getattr(completion, "told", {}),  # of a conversation
    }


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; 0 of nothing.

    >>> mean([1, 2]), mean([])
    (1.5, 0.0)
    """
    return sum(values) / len(values) if values else 0.0


def deviation(values: Sequence[float]) -> float:
    """The standard deviation with n - 1; 0 of fewer than two.

    >>> deviation([1.0, 3.0])
    1.4142135623730951
    """
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return float((sum((value - centre) ** 2 for value in values) / (len(values) - 1)) ** 0.5)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics file, none if there is no file; a last line cut off by a kill is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


class RunFiles:
    """Started anew, or cut back to the steps of a checkpoint and gone on with."""

    def __init__(self, config: Config, folder: Path, kept: Mapping[str, int]) -> None:
        """Opens the files in `folder`; `kept` says how many bytes of each stay."""
        self._config = config
        both = ("metrics", "completions")
        self._lines = {of: JsonLines(folder / f"{of}.jsonl", keep_bytes=kept.get(of, 0)) for of in both}
        self._loggers: Sequence[Any] = ()
        if config.output.tensorboard or config.output.wandb:
            from grpo_core.extras import extra

            self._loggers = extra("loggers").build_loggers(config, folder)

    def write(self, step: int, samples: Sequence[Sample], entry: dict[str, Any]) -> None:
        """Writes one step down; `step` counts from 1."""
        if due(step, self._config.output.completions_every, self._config):
            for sample in samples:
                self._lines["completions"].write(completion_entry(step, sample))
        self._lines["metrics"].write(entry)
        for logger in self._loggers:
            logger.write(entry)

    def curves(self, step: int, numbers: Mapping[str, float]) -> None:
        """More numbers of a step that is written down: for other tools, and not for the lines that a resume counts."""
        for logger in self._loggers:
            logger.write({"step": step, **numbers})

    def positions(self) -> dict[str, int]:
        """How many bytes each file of lines has now."""
        return {name: lines.position() for name, lines in self._lines.items()}

    def close(self) -> None:
        """Closes them."""
        for one in (*self._lines.values(), *self._loggers):
            one.close()


def due(step: int, every: int, config: Config) -> bool:
    """The first step, every so many behind it, and the last."""
    return bool(every) and ((step - 1) % every == 0 or step == config.train.steps)
