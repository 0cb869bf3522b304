"""What a run writes down: metrics and completions, one JSON object a line, flushed line by line.

An interrupted run keeps every line it had written. docs/metrics.md explains each name.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from grpo_core.types import Sample


class JsonLines:
    """A file of JSON objects, one a line."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        """Starts the file anew, or goes on behind its first `keep_bytes`: what stands there was written later.

        Raises:
            ConfigError: The file is shorter than that.
        """
        if keep_bytes:
            from grpo_core.machine.restore import cut_back

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
