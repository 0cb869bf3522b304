"""A hook for our own trainer: `grpo_core.run.train(config, AuditReport(folder, report))` looks at each step.

It is what `train` calls with each step's metrics; the step's completions it reads from the run's completions.jsonl,
which has them every `output.completions_every` steps. What it returns goes where the run's curves go
(`output.tensorboard`, `output.wandb`). Beside a run that is started by its command, `audit --watch` does the same,
without curves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.audit.recorded.readers import metrics
from diagnostics.audit.recorded.rows import Row
from diagnostics.audit.running.growing import Reader
from diagnostics.audit.running.guarded import Guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from diagnostics.audit.running.probing import Probe


class AuditReport:
    """Takes each step's metrics, looks at them, and hands them on.

    Attributes:
        guarded: What looks.
    """

    def __init__(
        self,
        folder: Path,
        then: Callable[[dict[str, Any]], None] = lambda _: None,
        *,
        share: float = 0.01,
        probe: Probe | None = None,
        every: int = 100,
    ) -> None:
        """Looks at the run of a folder.

        Args:
            folder: Of the run; audit.jsonl and audit.json are written there.
            then: Is given the metrics afterwards.
            share: Looking at samples takes at most so much of the time.
            probe: What is asked of the run's server; None: nothing.
            every: Steps between two such questions, at least.
        """
        self.guarded = Guarded(folder, {"run": str(folder)}, share, probe, every)
        self._then = then
        self._completions = Reader(folder / "completions.jsonl")

    def __call__(self, entry: Mapping[str, Any]) -> dict[str, float]:
        """One step's; returns the scalars for the run's TensorBoard and W&B."""
        step = int(entry["step"])
        row = metrics.logged(entry, f"metrics.jsonl: step {step}", step)
        # What there was no time for is not read later.
        left_out = self.guarded.watcher.left_out
        scalars = self.guarded.look(step, row, lambda: self._samples(step))
        if self.guarded.watcher.left_out > left_out:
            self._completions.skip()
        self.guarded.ask(step)
        self._then(dict(entry))
        return scalars

    def close(self) -> None:
        """Writes the document."""
        self._completions.close()
        self.guarded.close()

    def _samples(self, step: int) -> list[Row]:
        """Those of this step, where they were written."""
        try:
            found, _ = self._completions.more()
        except OSError:
            return []
        return [each for each in found if isinstance(each, Row) and each.step == step]
