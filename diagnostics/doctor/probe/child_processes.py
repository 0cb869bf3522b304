"""Run the probe programs in child processes of the examined environment's Python, and clean up afterwards.

Each child has its own session, no standard input, a time limit and a scratch folder. Every child gets a variable with a
unique value; processes that outlive it are found by that value and killed, also after an interrupt.
"""

from __future__ import annotations

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
from types import TracebackType
from typing import Any, Self

from diagnostics import process, safe_io

_PROGRAMS = Path(__file__).parent / "programs"
_MARK = "GRPO_DOCTOR_CHILD"
_END_S = 10.0
_CACHES = (
    "TMPDIR", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR",
)  # fmt: skip
_SWITCHES = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@dataclass(frozen=True)
class ChildResult:
    """The result of a child process that ended.

    Attributes:
        what: Name of the probe in messages.
        answer: The last document that the child wrote; empty if it wrote none.
        code: Exit code, negative for a signal.
        log: File with the child's output.
    """

    what: str
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
    """A context manager that starts child processes in a scratch folder; at its end no process and no file is left."""

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
        """Create the folder."""
        self._folder = Path(tempfile.mkdtemp(prefix="grpo-doctor-tried-"))
        shutil.copytree(_PROGRAMS, self._folder / "programs", ignore=shutil.ignore_patterns("__pycache__"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End remaining processes and remove the folder."""
        self._end_strays()
        shutil.rmtree(self._folder, ignore_errors=True)

    def folder(self) -> Path:
        """Return a new folder for a child's files."""
        return Path(tempfile.mkdtemp(dir=self._folder))

    def run_program(
        self, what: str, program: str, *arguments: str, limit_s: float, offline: bool = False
    ) -> ChildResult:
        """Run a program to its end or its limit.

        Args:
            what: Name of the probe in messages.
            program: Name of the program in `programs`.
            arguments: The program's arguments.
            limit_s: Seconds after which the program is killed.
            offline: Whether access to the hub is switched off.
        """
        place = self.folder()
        answer = place / "answer.json"
        try:
            done = process.run(
                [self._python, self._folder / "programs" / f"{program}.py", *arguments],
                env=self._variables(place, answer, offline=offline),
                log=place / "log",
                timeout_s=limit_s,
                cwd=place,
            )
        finally:
            self._end_strays()
        return ChildResult(what, _read_answer(answer), done.code, done.timed_out, done.seconds, place / "log")

    def _variables(self, place: Path, answer: Path, *, offline: bool) -> dict[str, str]:
        """Return the user's variables, with every cache redirected into the scratch folder."""
        scratch = str(place)
        variables = {_MARK: self._mark, "GRPO_DOCTOR_ANSWER": str(answer)}
        variables |= dict.fromkeys(_CACHES, scratch) | dict.fromkeys(_SWITCHES, "1")
        return {**self._environ, **variables, **(dict.fromkeys(_OFFLINE, "1") if offline else {})}

    def _end_strays(self) -> None:
        """Kill remaining processes that carry our marker variable; a child may have started some in other sessions."""
        mark = f"{_MARK}={self._mark}".encode()
        with contextlib.ExitStack() as stack:
            ending = []
            for entry in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        descriptor = os.pidfd_open(int(entry.name))
                        stack.callback(os.close, descriptor)
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                        ending.append(descriptor)
            # A process in uninterruptible sleep is not waited for any longer.
            for descriptor in ending:
                select.select([descriptor], [], [], _END_S)


def _read_answer(path: Path) -> dict[str, Any]:
    try:
        document = safe_io.parse_json(safe_io.read_text(path, safe_io.DOCUMENT_LIMIT))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
