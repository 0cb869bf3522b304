"""Optional metrics for other tools: TensorBoard, and Weights & Biases without a network.

Both are rebuilt from metrics.jsonl when a run starts. A resumed run cut that file back to its checkpoint, so its curves
have each step exactly once. The wall times of earlier steps are then the time of the restart.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.config import Config, ConfigError
from grpo_core.metrics import read_metrics


@dataclass(frozen=True)
class Logger:
    """Writes metrics for another tool.

    Attributes:
        write: Writes the numbers of one entry at its `step`; skips None.
        close: Flushes and closes.
    """

    write: Callable[[Mapping[str, Any]], None]
    close: Callable[[], None]


def build_loggers(config: Config, folder: Path) -> list[Logger]:
    """Build the loggers of `config.output`, with the steps that the run in `folder` already has.

    Raises:
        ConfigError: A package is not installed.
    """
    loggers = []
    if config.output.tensorboard:
        loggers.append(_tensorboard(folder))
    if config.output.wandb:
        loggers.append(_wandb(config, folder))
    for entry in read_metrics(folder / "metrics.jsonl") if loggers else ():
        for logger in loggers:
            logger.write(entry)
    return loggers


def _tensorboard(folder: Path) -> Logger:
    """Write event files in `tensorboard/`, by PyTorch or by tensorboardX."""
    module = _import_first("output.tensorboard", "tensorboard", "torch.utils.tensorboard", "tensorboardX")
    # Purging from step 0 on makes TensorBoard drop earlier files. If they were removed, a TensorBoard that shows them
    # would never read the new one.
    writer = module.SummaryWriter(str(folder / "tensorboard"), purge_step=0)

    def write(entry: Mapping[str, Any]) -> None:
        for name, value in _numbers(entry).items():
            writer.add_scalar(name, value, entry["step"])
        writer.flush()

    return Logger(write, writer.close)


def _wandb(config: Config, folder: Path) -> Logger:
    """Write an offline run in `wandb/`; `wandb sync` uploads it."""
    # Unless this is set before the import, W&B sends reports of its own errors over the network, even offline.
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    wandb = _import_first("output.wandb", "wandb", "wandb")
    shutil.rmtree(folder / "wandb", ignore_errors=True)
    quiet = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False)
    run = wandb.init(
        mode="offline",
        dir=str(folder),
        project="grpo_core",
        name=folder.name,
        config=config.as_dict(),
        settings=quiet,
    )
    return Logger(lambda entry: run.log(_numbers(entry), step=entry["step"]), run.finish)


def _numbers(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if value is not None and name != "step"}


def _import_first(key: str, package: str, *modules: str) -> Any:
    """Import the first module that is installed."""
    for name in modules:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ConfigError(f"{key} = True: the package {package} is not installed (pip install {package})")
