"""A trainer that goes on where an earlier run of the same name had come to."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from grpo_core.learn.update import go_on, put_back
from grpo_core.machine.checkpoint import completion_from, load
from grpo_core.metrics import read_metrics
from grpo_core.publish import Proof
from grpo_core.trainer import Trainer

if TYPE_CHECKING:
    from pathlib import Path

    from grpo_core.config import Config
    from grpo_core.publish import Publisher
    from grpo_core.rollout.engine import Engine
    from grpo_core.trainer import Report


class ResumedTrainer(Trainer):
    """From the newest checkpoint; from the beginning, if there is none."""

    def __init__(self, config: Config, folder: Path, report: Report) -> None:
        """As `Trainer`, and takes over what was saved.

        Raises:
            ConfigError: As `Trainer`.
        """
        found = load(folder / "checkpoints")
        if found is None and os.environ.get("RANK", "0") == "0":  # what was begun there is begun again
            for name in ("checkpoints", "rollouts"):
                shutil.rmtree(folder / name, ignore_errors=True)
            (folder / "rollouts.jsonl").unlink(missing_ok=True)
        super().__init__(config, folder, report, found)
        if found is None:
            return
        put_back(self.policy, found.tensors.pop("policy"))
        go_on(self._updater, self.policy, found.tensors.pop("optimizer"), found.version)
        self.step, self._round = found.step, found.round
        self.proofs = [Proof(**found.proof)] if found.proof else []
        self.history = read_metrics(folder / "metrics.jsonl")

    def publisher(self, engine: Engine) -> Publisher:
        """What publishes this policy to an engine; it knows the last probe."""
        sync = super().publisher(engine)
        if self.resumed is not None and self.resumed.probe is not None:
            sync.last = completion_from(self.resumed.probe)
        return sync
