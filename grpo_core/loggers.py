"""Metrics for other tools, as options: TensorBoard, and Weights & Biases without a network.

Both are made from metrics.jsonl when a run starts: a resumed run, whose file was cut back to its checkpoint, gets
curves that hold each step once, and loses none that a tool had not written yet. (The wall times of these earlier
steps are then that of the restart.)
"""

from __future__ import annotations

import importlib
import os
import shutil
from typing import TYPE_CHECKING, Any, Protocol

from grpo_core.config import ConfigError
from grpo_core.metrics import read_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from grpo_core.config import Config


class Logger(Protocol):
    """Takes a step's metrics to where another tool reads them."""

    def write(self, entry: Mapping[str, Any]) -> None:
        """Writes the numbers of one entry at its `step`; None is left out."""

    def close(self) -> None:
        """Writes what is left, and ends."""


def build_loggers(config: Config, folder: Path) -> list[Logger]:
    """The loggers that `config.output` asks for, with the steps that the run in `folder` has already.

    Raises:
        ConfigError: A package is not installed.
    """
    wanted = {TensorBoard: config.output.tensorboard, WeightsAndBiases: config.output.wandb}
    loggers: list[Logger] = [kind(config, folder) for kind, asked in wanted.items() if asked]
    for entry in read_metrics(folder / "metrics.jsonl") if loggers else ():
        for logger in loggers:
            logger.write(entry)
    return loggers


class TensorBoard:
    """Event files in `tensorboard/` of the run's folder; written by PyTorch, or by tensorboardX where that is."""

    def __init__(self, config: Config, folder: Path) -> None:  # noqa: ARG002 - as all loggers
        """Starts anew."""
        module = _imported("output.tensorboard", "tensorboard", "torch.utils.tensorboard", "tensorboardX")
        shutil.rmtree(folder / "tensorboard", ignore_errors=True)
        # Purging from step 0 on makes a TensorBoard that is being looked at forget the files removed here.
        self._writer = module.SummaryWriter(str(folder / "tensorboard"), purge_step=0)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Writes scalars, and flushes them."""
        for name, value in _numbers(entry).items():
            self._writer.add_scalar(name, value, entry["step"])
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()


class WeightsAndBiases:
    """An offline run in `wandb/` of the run's folder; `wandb sync` sends it, if and when the user wants that."""

    def __init__(self, config: Config, folder: Path) -> None:
        """Starts anew; reads no account, collects nothing about the machine, prints nothing."""
        # Reports of its own errors and use go over the network even when offline, unless told before the import.
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        wandb = _imported("output.wandb", "wandb", "wandb")
        shutil.rmtree(folder / "wandb", ignore_errors=True)
        quiet = {"silent": True, "console": "off", "x_disable_stats": True, "x_disable_meta": True}
        self._run = wandb.init(
            mode="offline",
            dir=str(folder),
            project="grpo_core",
            name=folder.name,
            config=config.as_dict(),
            settings=wandb.Settings(**quiet, disable_git=True, save_code=False),
        )

    def write(self, entry: Mapping[str, Any]) -> None:
        """Logs one step."""
        self._run.log(_numbers(entry), step=entry["step"])

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()


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
