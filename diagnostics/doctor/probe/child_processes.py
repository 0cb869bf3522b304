"""Run the probe programs in child processes of the examined environment's Python, and clean up afterwards.

A child has its own session, an empty standard input, a time limit, and a scratch folder for caches and for its answer,
a JSON file. Variables switch off the Hugging Face hub and usage reports. Its environment has a variable with a unique
value. Processes that outlive the child are found by this value in /proc and killed, also after an interrupt; one whose
environment lacks the variable, or cannot be read in time, may remain.
"""

import contextlib
import os
import select
import shutil
import signal
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from diagnostics import process, safe_io
from diagnostics.collect.blocking_reads import list_pids, read_process_file

_PROGRAMS = Path(__file__).parent / "programs"
_MARK_VARIABLE = "GRPO_DOCTOR_CHILD"
_KILL_WAIT_S = 10.0
_CACHES = (
    "TMPDIR", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR",
)  # fmt: skip
_SWITCHES = (
    "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
)  # fmt: skip


@dataclass(frozen=True)
class ChildResult:
    """The result of a child process.

    Attributes:
        name: Name of the probe in messages.
        answer: The last document that the child wrote; empty if it wrote none.
        code: Exit code; negative for a signal.
        log: File with what the child printed.
    """

    name: str
    answer: dict[str, Any]
    code: int
    timed_out: bool
    seconds: float
    log: Path

    @property
    def ok(self) -> bool:
        """Whether the probe succeeded."""
        return bool(self.answer.get("ok")) and self.code == 0 and not self.timed_out


class ChildProcesses:
    """Runs programs in child processes with a scratch folder; as a context manager it cleans up at the end."""

    def __init__(self, python: Path, environ: Mapping[str, str]) -> None:
        """Store the interpreter and the variables; nothing is started yet.

        Args:
            python: The examined environment's interpreter.
            environ: Variables for the children.
        """
        self._python = python
        self._environ = environ
        self._mark = uuid.uuid4().hex

    def __enter__(self) -> Self:
        """Create the scratch folder, with a copy of the probe programs."""
        self._folder = Path(tempfile.mkdtemp(prefix="grpo-doctor-tried-"))
        shutil.copytree(_PROGRAMS, self._folder / "programs", ignore=shutil.ignore_patterns("__pycache__"))
        return self

    def __exit__(self, *_: object) -> None:
        """End remaining processes and remove the folder."""
        self._end_strays()
        shutil.rmtree(self._folder, ignore_errors=True)

    def create_folder(self) -> Path:
        """Create and return a new folder for a child's files."""
        return Path(tempfile.mkdtemp(dir=self._folder))

    def run_program(self, name: str, program: str, *arguments: str, limit_s: float) -> ChildResult:
        """Run a program to its end or its limit, with the Hugging Face hub switched off.

        Args:
            name: Name of the probe in messages.
            program: Name of the program in `programs`.
            arguments: The program's arguments.
            limit_s: Seconds after which the program is killed.

        Raises:
            OSError: The interpreter cannot be started.
        """
        temp = self.create_folder()
        answer = temp / "answer.json"
        try:
            done = process.run(
                [self._python, self._folder / "programs" / f"{program}.py", *arguments],
                env=self._variables(temp, answer),
                log=temp / "log",
                timeout_s=limit_s,
                cwd=temp,
            )
        finally:
            self._end_strays()
        return ChildResult(name, _read_answer(answer), done.code, done.timed_out, done.seconds, temp / "log")

    def _variables(self, folder: Path, answer: Path) -> dict[str, str]:
        """Return the user's variables, changed so that caches are in the scratch folder and nothing is reported."""
        scratch = str(folder)
        variables = {_MARK_VARIABLE: self._mark, "GRPO_DOCTOR_ANSWER": str(answer)}
        variables |= dict.fromkeys(_CACHES, scratch) | dict.fromkeys(_SWITCHES, "1")
        return {**self._environ, **variables}

    def _end_strays(self) -> None:
        """Kill remaining processes that carry our marker variable; a child may have started some in other sessions."""
        mark = f"{_MARK_VARIABLE}={self._mark}"
        with contextlib.ExitStack() as stack:
            ending = []
            for pid in list_pids():
                with contextlib.suppress(OSError):
                    if mark in read_process_file(pid, "environ").split("\0"):
                        descriptor = os.pidfd_open(pid)
                        stack.callback(os.close, descriptor)
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                        ending.append(descriptor)
            # A process in uninterruptible sleep may not end, so the wait is limited.
            for descriptor in ending:
                select.select([descriptor], [], [], _KILL_WAIT_S)


def _read_answer(path: Path) -> dict[str, Any]:
    try:
        document = safe_io.parse_json(safe_io.read_text(path, safe_io.DOCUMENT_LIMIT))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
