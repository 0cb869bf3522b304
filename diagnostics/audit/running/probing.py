"""A live audit of the run's server, in a process of its own: what it takes of memory and time is not the trainer's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.audit.errors import NotAskedError
from diagnostics.audit.model import Estimate, Fact, ProbeAnswer, RunnerUp
from diagnostics.collect.secrets import cut

if TYPE_CHECKING:
    from collections.abc import Callable

_CHECKPOINT = "checkpoint-*"


@dataclass(frozen=True)
class Probed:
    """What a live audit said.

    Attributes:
        answers: All of them.
        tokens: What it cost the engine.
        requests: Calls that were made.
    """

    answers: tuple[ProbeAnswer, ...]
    tokens: int
    requests: int


@dataclass(frozen=True)
class Probe:
    """What is asked of which server.

    Attributes:
        server: Its address.
        checkpoint: The weights that it should hold, or a folder of checkpoints: then the newest of them.
        trainer: What the trainer samples and computes with, as a file.
        tokens: At most so many.
        timeout_s: Of all of it.
        python: What runs it; has torch and transformers.
    """

    server: str
    checkpoint: Path
    trainer: Path | None = None
    tokens: int = 4000
    timeout_s: float = 600.0
    python: str = sys.executable

    def command(self, checkpoint: Path) -> list[str]:
        """Of the process."""
        words = [
            self.python, "-m", "diagnostics", "audit", f"--server={self.server}", f"--checkpoint={checkpoint}",
            f"--tokens={self.tokens}", "--format=json",
        ]  # fmt: skip
        return [*words, f"--trainer-config={self.trainer}"] if self.trainer else words

    def asked(self, started: Callable[..., Any] = subprocess.run) -> Probed:
        """Runs it, and waits.

        Raises:
            NotAskedError: It ended without an answer, or there is no checkpoint yet.
        """
        checkpoint = newest(self.checkpoint)
        if checkpoint is None:
            raise NotAskedError(f"{self.checkpoint}: no checkpoint yet")
        ours = str(Path(__file__).resolve().parents[3])
        # On no GPU: that is the trainer's.
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH", "")])),
            "CUDA_VISIBLE_DEVICES": "",
        }
        try:
            done = started(
                self.command(checkpoint), capture_output=True, text=True, timeout=self.timeout_s, check=False,
                env=environment, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotAskedError(f"{self.server}: {error}") from error
        if done.returncode not in (0, 1, 3) or not done.stdout.strip():
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise NotAskedError(cut(said[-1], 300))
        return understood(json.loads(done.stdout))


def understood(document: dict[str, Any]) -> Probed:
    """The answers of a document of a live audit."""
    return Probed(
        tuple(map(_answer, document["answers"])), int(document["tokens"]), int(document["requests"])
    )


def newest(folder: Path) -> Path | None:
    """The checkpoint itself, or of a folder of them the one with the highest number that is whole."""
    if (folder / "config.json").is_file():
        return folder
    found = [
        path
        for path in folder.glob(_CHECKPOINT)
        if path.name.rpartition("-")[2].isdigit() and (path / "config.json").is_file()
    ]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def _answer(told: dict[str, Any]) -> ProbeAnswer:
    def facts(name: str) -> tuple[Fact, ...]:
        return tuple(Fact(each["name"], each["values"], each["place"]) for each in told[name])

    second = told["runner_up"]
    names = (
        "family",
        "outcome",
        "probe",
        "code",
        "values",
        "residual",
        "floor",
        "alarm",
        "count",
        "tokens",
        "by",
    )
    return ProbeAnswer(
        **{name: told[name] for name in names},
        estimates=tuple(Estimate(**each) for each in told["estimates"]),
        runner_up=RunnerUp(**second) if second else None,
        facts=facts("facts"),
        wanted=facts("wanted"),
        decisive=told["decisive"],
    )
