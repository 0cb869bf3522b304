"""The repros of hangs as cases of the bench: each trigger as `repro run` runs it, with each rank guilty in its turn."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from diagnostics.hang.collect import discovery, proc
from diagnostics.hang.collect.snapshot import Selection, take_snapshot
from repro.drivers import hangs
from repro.issues import REPROS

# Correct diagnoses of each trigger, and the number of ranks that can be the blocking one.
_RIGHT: dict[str, dict[str, tuple[tuple[str, ...], int]]] = {
    "HNG001": {
        "gather_on_main": (("mismatch",), 3),
        "gather_skipped": (("mismatch",), 3),
        "full_tensor_on_main": (("mismatch",), 3),
        "state_dict_on_main": (("mismatch",), 3),
    },
    "HNG002": {
        "answer_missing": (("lost_message",), 3),
        "batch_missing": (("lost_message",), 3),
        "thread_at_exit": (("absent", "lost_message"), 3),
        "update_failed": (("absent",), 0),
    },
    "HNG003": {"update_beside_step": (("two_threads",), 2)},
    "HNG004": {
        "stopped": (("stopped",), 3),
        "loader_stopped": (("stopped",), 0),
        "actor_stopped": (("stopped",), 0),
        "engine_stopped": (("stopped",), 0),
    },
    "HNG005": {
        "pipe_left_open": (("dead",), 0),
        "lock_of_killed": (("dead",), 0),
        "store_key_of_killed": (("dead",), 3),
    },
    "HNG006": {
        "two_orders": (("locks",), 0),
        "raised_with_lock": (("lock",), 0),
        "fork_with_lock": (("lock",), 0),
    },
    "HNG007": {"holder_stopped": (("stopped", "file_lock"), 0), "baton_left": (("file_lock",), 0)},
    "HNG008": {"wandb_login": (("input",), 3), "breakpoint_left": (("input",), 3)},
    "HNG009": {
        "own_health": (("blocked_loop",), 0),
        "own_health_uvloop": (("blocked_loop",), 0),
        "get_in_actor": (("blocked_loop", "deadlock"), 0),
    },
    "HNG010": {
        "task_lost": (("lost_answer",), 0),
        "engine_paused": (("lost_answer",), 0),
        "trl_client": (("lost_answer",), 0),
    },
    "HNG011": {
        "tower_in_thread": (("spin_python",), 0),
        "answer_in_log": (("spin_python",), 0),
        "pattern_backtracks": (("spin_python",), 0),
    },
    "HNG012": {"wait_before_read": (("deadlock", "full_pipe"), 0), "join_before_get": (("deadlock", "full_pipe"), 0)},
    "HNG013": {"answer_before_weights": (("deadlock",), 0), "actors": (("deadlock",), 0)},
    "HNG014": {"inner_task": (("pool",), 0)},
    "HNG015": {
        "one_too_many": (("rendezvous",), 3),
        "other_port": (("rendezvous",), 3),
        "constructor_raised": (("rendezvous",), 3),
    },
    "HNG016": {
        "worker_gone": (("lost_message",), 0),
        "producer_raised": (("lost_message",), 0),
        "pool_of_parent": (("lost_message",), 0),
        "reply_lost": (("lost_message",), 0),
        "group_pending": (("pending",), 0),
    },
}  # fmt: skip
# The blocker is no longer a process, or never was one.
_NOT_THERE = ("one_too_many", "constructor_raised")
READY_S = 900.0
# Nothing of a job runs any more when it used less than this share of a processor for so long; what computes for ever
# is looked at after a while all the same. On a busy machine a process takes minutes to end.
CALM_S, CALM_SHARE, COMPUTES_S = 3.0, 0.03, 60.0


@dataclass(frozen=True)
class ReproCase:
    """A trigger of a repro and its correct diagnoses."""

    code: str
    trigger: str
    causes: tuple[str, ...]
    guilty_rank: int | None = None
    guilty: str = "culprit"
    healthy: bool = False

    @property
    def name(self) -> str:
        """Name of the case in tables."""
        rank = "" if self.guilty_rank is None else f"-{self.guilty_rank}"
        return f"{self.code}-{self.trigger}{rank}"


def cases() -> list[ReproCase]:
    """All of them; a trigger that is not in the table is a mistake."""
    all_cases = []
    for code in (code for code in REPROS if code.startswith("HNG")):
        for trigger in REPROS[code].triggers:
            causes, ranks = _RIGHT[code][trigger.name]
            turns = range(ranks) if ranks else (None,)
            guilty = "nobody" if trigger.name in _NOT_THERE else "culprit"
            all_cases += [ReproCase(code, trigger.name, causes, rank, guilty) for rank in turns]
    return all_cases


def _program(case: ReproCase) -> hangs.HangProgram:
    assert case.code in REPROS  # which registers the programs
    return hangs.PROGRAMS[case.code][case.trigger]


@cache
def _has(python: str, needs: tuple[str, ...]) -> bool:
    names = [name.replace("-", "_") for name in needs]
    program = (
        "import sys\nfrom importlib.util import find_spec\nsys.exit(not all(map(find_spec, sys.argv[1:])))"
    )
    return not subprocess.run([python, "-c", program, *names], check=False).returncode


def observe(case: ReproCase, pythons: tuple[str, ...]) -> tuple[object, dict[str, set[int]]]:
    """Run a trigger, take a snapshot when it is stuck, and end it: (snapshot, processes by name).

    Raises:
        RuntimeError: None of these has what it needs, or it was not ready in time.
    """
    needs = (*REPROS[case.code].distributions, *_program(case).needs)
    python = next((candidate for candidate in pythons if _has(candidate, needs)), None)
    if python is None:
        raise RuntimeError(f"{case.name}: nobody has {', '.join(needs)}")
    report_path = Path(tempfile.mkdtemp(prefix="grpo-doctor-"), "told")
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if case.guilty_rank is not None:
        environment[hangs.BLOCKING_RANK] = str(case.guilty_rank)
    with report_path.open("wb") as file:
        environment[hangs.REPORTS] = str(file.fileno())
        process = subprocess.Popen(
            [python, "-m", _program(case).run.__module__, case.trigger, ""],
            env=environment,
            pass_fds=[file.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        _ready(process, case, report_path)
        _wait_until_idle(process.pid, COMPUTES_S if "spin_python" in case.causes else READY_S)
        # Longer than the patience: of what computes without letting go of the interpreter no other time is known.
        return take_snapshot(Selection((process.pid,), seconds=2.5)), _names(report_path)
    finally:
        end_tree(process.pid)
        process.wait()


def _reported_lines(told: Path) -> list[list[str]]:
    return [line.split(" ", 2) for line in told.read_text().splitlines()]


def _ready(process: subprocess.Popen[bytes], case: ReproCase, told: Path) -> None:
    names = set(_program(case).names)
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        if names <= {name for word, _, name in _reported_lines(told) if word == "ready"}:
            return
        time.sleep(0.2)
    raise RuntimeError(f"{case.name}: not ready: {told.read_text()!r}")


def _names(told: Path) -> dict[str, set[int]]:
    """Return the processes that block and those that wait."""
    guilty, ready = (
        {int(pid) for word, pid, _ in _reported_lines(told) if word == which} for which in ("guilty", "ready")
    )
    return {"culprit": guilty, "victim": ready - guilty}


def _wait_until_idle(pid: int, limit_s: float) -> None:
    """Wait until nothing below a process runs any more, or for so long: some hangs compute."""
    deadline = time.monotonic() + limit_s
    before, since = _ticks(pid), time.monotonic()
    while time.monotonic() < min(deadline, since + CALM_S):
        time.sleep(0.5)
        now = _ticks(pid)
        if now - before > CALM_SHARE * CALM_S * os.sysconf("SC_CLK_TCK"):
            before, since = now, time.monotonic()


def _ticks(pid: int) -> int:
    """Return the processor ticks used by all processes below one."""
    fields = [
        proc.stat_fields(process) for process in discovery.descendants(discovery.process_table(), [pid])
    ]
    return sum(int(stat[11]) + int(stat[12]) for stat in fields if stat)


def end_tree(pid: int) -> None:
    """End a process and all below it."""
    for process in discovery.descendants(discovery.process_table(), [pid]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
