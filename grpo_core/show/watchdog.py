"""Notices a run that stands still, and writes down where."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from grpo_core.config import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from grpo_core.config import TrainConfig


class Watchdog:
    """Writes the stacks of all threads to a file when nothing was done for a while; ends nothing.

    Python's faulthandler waits and writes without the interpreter, so that a stall inside C++ is seen, too. With
    `stall_look` a process of its own hears each sign of life, and looks at this one and all below it when none comes.
    """

    def __init__(self, path: Path, config: TrainConfig) -> None:
        """Starts watching.

        Raises:
            ConfigError: What is to look is not installed.
        """
        self._stall_s = config.stall_s
        self._looks = _looking(path.with_name("hang.txt"), config.stall_s) if config.stall_look else None
        self._file = path.open("a", encoding="utf-8")

    def beat(self) -> None:
        """Something was done: the wait begins anew."""
        faulthandler.dump_traceback_later(self._stall_s, file=self._file)
        if self._looks is not None and self._looks.stdin is not None:
            # It may be gone, or busy with looking: the run goes on without it.
            with contextlib.suppress(OSError):
                os.write(self._looks.stdin.fileno(), b"train\n")

    def close(self) -> None:
        """Stops watching."""
        if not self._file.closed:
            faulthandler.cancel_dump_traceback_later()
            self._file.close()
            if self._looks is not None and self._looks.stdin is not None:
                self._looks.stdin.close()
                self._looks.wait()


def _looking(path: Path, stall_s: float) -> subprocess.Popen[bytes]:
    if find_spec("diagnostics") is None:
        raise ConfigError(
            "train.stall_look = true: needs grpo-doctor itself here: pip install 'grpo-doctor[hang]'"
        )
    words = ["hang", "--beats", "--pid", str(os.getpid()), "--stall", str(stall_s)]
    with path.open("ab") as told:
        looks = subprocess.Popen(
            [sys.executable, "-m", "diagnostics", *words], stdin=subprocess.PIPE, stdout=told, stderr=told
        )
    assert looks.stdin
    os.set_blocking(looks.stdin.fileno(), False)
    return looks
