"""The files a run writes while it goes: metrics, completions, and what other tools read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grpo_core.metrics import JsonLines, completion_entry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from grpo_core.config import Config
    from grpo_core.types import Sample


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
