"""Metrics for other tools, as options: TensorBoard, and Weights & Biases without a network.

Both are made from metrics.jsonl when a run starts: a resumed run, whose file was cut back to its checkpoint, gets
curves that hold each step once, and loses none that a tool had not written yet. (The wall times of these earlier
steps are then that of the restart.)
"""

from __future__ import annotations

import importlib
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError
from grpo_core.metrics import read_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from grpo_core.config import Config


@dataclass(frozen=True)
class Logger:
    """Takes a step's metrics to where another tool reads them.

    Attributes:
        write: Writes the numbers of one entry at its `step`; None is left out.
        close: Writes what is left, and ends.
    """

    write: Callable[[Mapping[str, Any]], None]
    close: Callable[[], None]


def build_loggers(config: Config, folder: Path) -> list[Logger]:
    """The loggers that `config.output` asks for, with the steps that the run in `folder` has already.

    Raises:
        ConfigError: A package is not installed.
    """
    wanted = {_tensorboard: config.output.tensorboard, _wandb: config.output.wandb}
    loggers = [build(config, folder) for build, asked in wanted.items() if asked]
    for entry in read_metrics(folder / "metrics.jsonl") if loggers else ():
        for logger in loggers:
            logger.write(entry)
    return loggers


def _tensorboard(_: Config, folder: Path) -> Logger:
    """Event files in `tensorboard/`, written by PyTorch, or by tensorboardX where that is."""
    module = _imported("output.tensorboard", "tensorboard", "torch.utils.tensorboard", "tensorboardX")
    # Purging from step 0 on makes TensorBoard forget the files that were there. Removing them would stop one that
    # is being looked at from ever reading the new one.
    writer = module.SummaryWriter(str(folder / "tensorboard"), purge_step=0)

    def write(entry: Mapping[str, Any]) -> None:
        for name, value in _numbers(entry).items():
            writer.add_scalar(name, value, entry["step"])
        writer.flush()

    return Logger(write, writer.close)


def _wandb(config: Config, folder: Path) -> Logger:
    """An offline run in `wandb/`; `wandb sync` sends it, if and when the user wants that."""
    # Reports of its own errors would go over the network even when offline, unless this stands before the import.
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    wandb = _imported("output.wandb", "wandb", "wandb")
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


def _imported(key: str, package: str, *modules: str) -> Any:
    """The first of the modules that there is."""
    for name in modules:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ConfigError(f"{key} = True: the package {package} is not installed (pip install {package})")
