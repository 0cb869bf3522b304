"""Write the JSON lines files of a run (metrics and completions), read metrics back, and print the run's progress.

Each line is flushed, so an interrupted run keeps the lines written so far. `is_due` selects the steps whose completions
or records are written, `mean` averages numbers. docs/metrics.md explains the metrics.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from grpo_core.config import Config, ConfigError
from grpo_core.safe_io import open_output, read_bytes
from grpo_core.types import Sample

LONG_SILENCE_S = 20.0  # then the next step is printed


class JsonLines:
    """A file of JSON objects, one per line, that survives a kill."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        """Start a new file; with `keep_bytes`, truncate the file to this size (at a checkpoint) and append.

        Raises:
            ConfigError: The file is shorter than `keep_bytes`.
        """
        size = path.stat().st_size if path.exists() else 0
        if size < keep_bytes:
            raise ConfigError(
                f"{path}: {size} bytes, but the checkpoint was saved when it had {keep_bytes}: it was replaced or "
                "cut off since; put it back, or start another run under a new output.name"
            )
        self._file = open_output(path, keep=bool(keep_bytes))
        self._file.seek(self._file.truncate(keep_bytes))

    def position(self) -> int:
        """Return the file's size in bytes, the `keep_bytes` from which a resumed run continues."""
        return self._file.tell()

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write one line. NaN raises an error, because it is not JSON."""
        self._file.write(json.dumps(entry, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean; 0 for no values.

    >>> mean([1, 2]), mean([])
    (1.5, 0.0)
    """
    return sum(values) / len(values) if values else 0.0


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a metrics file, none if there is no file; a torn last line is dropped."""
    if not path.exists():
        return []
    lines = read_bytes(path).decode().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


class RunFiles:
    """The JSON lines files of a run, new or cut back to the steps of a checkpoint."""

    def __init__(self, config: Config, folder: Path, keep_bytes: Mapping[str, int]) -> None:
        """Open the files in `folder`; `keep_bytes` has, by name, the number of bytes to keep of each."""
        self._config = config
        self._lines = {
            name: JsonLines(folder / f"{name}.jsonl", keep_bytes=keep_bytes.get(name, 0))
            for name in ("metrics", "completions")
        }

    def write(self, step: int, samples: Sequence[Sample], entry: dict[str, Any]) -> None:
        """Write a step's metrics, and its completions if they are due; `step` counts from 1."""
        if is_due(step, self._config.output.completions_every, self._config):
            for sample in samples:
                self._lines["completions"].write(_completion_entry(step, sample))
        self._lines["metrics"].write(entry)

    def positions(self) -> dict[str, int]:
        """Return the current size of each file in bytes."""
        return {name: lines.position() for name, lines in self._lines.items()}

    def close(self) -> None:
        """Close the files."""
        for lines in self._lines.values():
            lines.close()


def _completion_entry(step: int, sample: Sample) -> dict[str, Any]:
    """Return a sample as a line of completions.jsonl."""
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
    }


def is_due(step: int, every: int, config: Config) -> bool:
    """Return whether an action is due: at the first step, every `every` steps after it, and at the last; 0: never."""
    return bool(every) and ((step - 1) % every == 0 or step == config.train.steps)


class StepProgress:
    """Prints metrics of the first and last step, of 19 to 29 between, and of a step after 20 s without a line.

    Runs of fewer than 40 steps print each step.
    """

    def __init__(
        self, steps: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Store the number of steps, the stream (None: standard error) and a clock in seconds."""
        self._steps, self._stream, self._clock = steps, stream or sys.stderr, clock
        self._printed_at = clock()

    def __call__(self, entry: Mapping[str, Any]) -> None:
        """Print a step's metrics, if they are due."""
        step, quiet_s = entry["step"], self._clock() - self._printed_at
        if step in (1, self._steps) or step % max(self._steps // 20, 1) == 0 or quiet_s >= LONG_SILENCE_S:
            self._printed_at = self._clock()
            print(
                f"step {step}/{self._steps}  reward {entry['reward/mean']:.3f}  loss {entry['loss']:+.4f}  "
                f"entropy {entry['entropy']:.2f}  staleness {entry['staleness/max']}  {entry['time/step_s']:.2f} s",
                file=self._stream,
                flush=True,
            )
