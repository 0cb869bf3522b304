"""Start or resume a training run in its folder, and summarise how it ended.

`train` writes `config.json` before the run. When it returns and a step was finished, it has written `summary.json`.
`Trainer` and the mode write the other files.
"""

from __future__ import annotations

import gc
import json
import os
import time
from pathlib import Path
from typing import Any

from grpo_core import modes
from grpo_core.config import Config, ConfigError
from grpo_core.machine.checkpoint import check_resumable
from grpo_core.machine.process_setup import versions
from grpo_core.run_files import mean
from grpo_core.safe_io import write_atomically
from grpo_core.trainer import Report, Trainer
from grpo_core.types import RunError

SCHEMA = "grpo-doctor.train.v1"


def train(config: Config, report: Report, *, resume: bool = False) -> dict[str, Any]:
    """Train and return the run's summary; lines already written stay, however the run ends.

    Args:
        config: Checked settings.
        report: Called with each step's metrics in the first process.
        resume: Continue the run of this name, from its beginning if it ended before its first checkpoint.

    Returns:
        The document of `train --json`. `outcome` is `ok`, `failed`, `timeout` or `interrupted`; `error` has the message
        unless it is `ok`. Rewards are means over the first and last tenth of the steps.

    Raises:
        ConfigError: The settings can't be used, a run of this name exists or can't be resumed, or a checkpoint can't be
            written.
    """
    folder = _run_folder(config, resume=resume)
    trainer = Trainer(config, folder, report, resume=resume)
    outcome, error = "ok", None
    gc.freeze()  # the garbage collector need not scan the objects of all imported packages again and again
    try:
        with trainer.interrupts.watched():
            modes.run_mode(trainer)
        trainer.save_policy()
    except (KeyboardInterrupt, Exception) as failure:
        if trainer.interrupts.received or isinstance(failure, KeyboardInterrupt):
            outcome, error = "interrupted", "interrupted (SIGINT); --resume goes on from the last checkpoint"
        elif isinstance(failure, RunError):
            outcome, error = failure.outcome, f"{type(failure).__name__}: {failure}"
        else:
            raise  # a ConfigError, or a bug of this program with its traceback
    finally:
        gc.unfreeze()
        trainer.close()
    # `picture` and `page` are no longer written, but version 1 of the document requires the keys.
    document = _summary(trainer, folder) | {"outcome": outcome, "error": error, "picture": None, "page": None}
    # All processes take part, so nothing is computed after one of them has failed.
    complete = outcome == "ok" or trainer.world.size == 1
    document["parameters"] = trainer.policy.fingerprint() if complete else None
    if complete:
        trainer.world.gather(None)  # no process ends while another still communicates with it
    if trainer.history and trainer.world.is_first:
        write_atomically(folder / "summary.json", json.dumps(document, indent=1).encode())
    return document


def _run_folder(config: Config, *, resume: bool) -> Path:
    """Create or check the run's folder, write config.json into it, and return it; a folder with a link is refused."""
    name = config.output.name or f"{config.rollout.mode}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = Path(config.output.dir) / name
    path = folder / "config.json"
    for link in (item for item in folder.rglob("*") if item.is_symlink()):
        raise ConfigError(f"{link}: a link in a run's folder; remove it, or give another output.name")
    has_steps = any(file.stat().st_size for file in folder.glob("metrics.jsonl"))
    if resume:
        check_resumable(path, config)
    elif has_steps and os.environ.get("RANK", "0") == "0":  # other ranks may come after its first step
        raise ConfigError(f"output.name = {name!r}: {folder} holds a run; --resume it, or give another name")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Each process of a run writes it; the rename keeps another from reading a part.
        write_atomically(path, json.dumps(config.as_dict(), indent=1).encode())
    except OSError as error:
        raise ConfigError(
            f"output.dir = {config.output.dir!r}, output.name = {config.output.name!r}: "
            f"can't write there: {error.strerror}"
        ) from error
    return folder


def _summary(trainer: Trainer, folder: Path) -> dict[str, Any]:
    """Return the part of the summary that the trainer knows: rewards, syncs, staleness, files and versions."""
    history, proofs, options = trainer.history, trainer.proofs, trainer.config.rollout
    curve = [entry["reward/mean"] for entry in history]
    tenth = max(len(curve) // 10, 1)
    # A rollout of the policy's own version: trainer and engine agree up to rounding, unless sampling was truncated.
    fresh = [entry["logprob_difference/max"] for entry in history if entry["staleness/max"] == 0]
    if trainer.config.sampling.truncation:
        fresh = []
    return {
        "schema": SCHEMA,
        "mode": options.mode,
        "engine": trainer.engine_name,
        "rank": trainer.world.rank,
        "processes": trainer.world.size,
        "steps": len(history),
        "reward_first": mean(curve[:tenth]),
        "reward_last": mean(curve[-tenth:]),
        "metrics": str(folder / "metrics.jsonl"),
        "completions": str(folder / "completions.jsonl"),
        "syncs": len(proofs),
        "syncs_proven": len(proofs),  # a sync without proof ends the run
        "syncs_proven_by_fingerprint": sum(proof.fingerprint is True for proof in proofs),
        "max_logprob_difference": max([*fresh, *(proof.difference for proof in proofs)], default=None),
        "resamplings_exhausted": sum(entry.get("resample/exhausted", 0) for entry in history),
        "prompts_dropped": trainer.prompts.dropped,
        "prompts_truncated": trainer.prompts.truncated,
        "max_staleness": max((entry["staleness/max"] for entry in history), default=0),
        "seconds": sum(entry["time/step_s"] for entry in history),
        "versions": versions(),
    }
