"""Run the triggers of the hang repros as cases of `evaluation.hang.bench`, once for each rank that can block."""

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
_EXPECTED: dict[str, dict[str, tuple[tuple[str, ...], int]]] = {
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
# Triggers whose blocking process has ended or never existed.
_NO_BLOCKING_PROCESS = ("one_too_many", "constructor_raised")
READY_S = 900.0
# A job is idle when it used less than this share of a core for IDLE_S seconds. A job that computes for ever is observed
# after SPIN_WAIT_S seconds.
IDLE_S, IDLE_CPU_SHARE, SPIN_WAIT_S = 3.0, 0.03, 60.0


@dataclass(frozen=True)
class ReproCase:
    """A trigger of a repro, the blocking rank if there are ranks, and the correct diagnoses."""

    code: str
    trigger: str
    causes: tuple[str, ...]
    guilty_rank: int | None = None
    guilty: str = "culprit"
    healthy: bool = False

    @property
    def name(self) -> str:
        """Return the name of the case in tables."""
        rank = "" if self.guilty_rank is None else f"-{self.guilty_rank}"
        return f"{self.code}-{self.trigger}{rank}"


def cases() -> list[ReproCase]:
    """Return all cases; a trigger without an entry in `_EXPECTED` raises KeyError."""
    all_cases = []
    for code in (code for code in REPROS if code.startswith("HNG")):
        for trigger in REPROS[code].triggers:
            causes, ranks = _EXPECTED[code][trigger.name]
            guilty_ranks = range(ranks) if ranks else (None,)
            guilty = "nobody" if trigger.name in _NO_BLOCKING_PROCESS else "culprit"
            all_cases += [ReproCase(code, trigger.name, causes, rank, guilty) for rank in guilty_ranks]
    return all_cases


def _program(case: ReproCase) -> hangs.HangProgram:
    assert case.code in REPROS  # importing REPROS registers the programs
    return hangs.PROGRAMS[case.code][case.trigger]


@cache
def _has_packages(python: str, needs: tuple[str, ...]) -> bool:
    names = [name.replace("-", "_") for name in needs]
    program = (
        "import sys\nfrom importlib.util import find_spec\nsys.exit(not all(map(find_spec, sys.argv[1:])))"
    )
    return not subprocess.run([python, "-c", program, *names], check=False).returncode


def observe(case: ReproCase, pythons: tuple[str, ...]) -> tuple[object, dict[str, set[int]]]:
    """Run a trigger, take a snapshot when it is stuck, and end it; return the snapshot and the pids by role.

    Raises:
        RuntimeError: No interpreter has the required packages, or the trigger was not ready in time.
    """
    needs = (*REPROS[case.code].distributions, *_program(case).needs)
    python = next((candidate for candidate in pythons if _has_packages(candidate, needs)), None)
    if python is None:
        raise RuntimeError(f"{case.name}: no interpreter has {', '.join(needs)}")
    report_path = Path(tempfile.mkdtemp(prefix="grpo-doctor-"), "told")
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if case.guilty_rank is not None:
        environment[hangs.BLOCKING_RANK] = str(case.guilty_rank)
    with report_path.open("wb") as file:
        environment[hangs.REPORTS_FD] = str(file.fileno())
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
        _wait_until_ready(process, case, report_path)
        _wait_until_idle(process.pid, SPIN_WAIT_S if "spin_python" in case.causes else READY_S)
        # Longer than the patience: a computation that never releases the GIL shows no idle time before the snapshot.
        return take_snapshot(Selection((process.pid,), seconds=2.5)), _read_pids(report_path)
    finally:
        end_tree(process.pid)
        process.wait()


def _reported_lines(report: Path) -> list[list[str]]:
    return [line.split(" ", 2) for line in report.read_text().splitlines()]


def _wait_until_ready(process: subprocess.Popen[bytes], case: ReproCase, report: Path) -> None:
    names = set(_program(case).names)
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        if names <= {name for word, _, name in _reported_lines(report) if word == "ready"}:
            return
        time.sleep(0.2)
    raise RuntimeError(f"{case.name}: not ready: {report.read_text()!r}")


def _read_pids(report: Path) -> dict[str, set[int]]:
    """Return the pids of the blocking and of the waiting processes."""
    blocking, ready = (
        {int(pid) for word, pid, _ in _reported_lines(report) if word == which}
        for which in ("blocking", "ready")
    )
    return {"culprit": blocking, "victim": ready - blocking}


def _wait_until_idle(pid: int, limit_s: float) -> None:
    """Wait until a process and its descendants are idle, at most `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    before, since = _ticks(pid), time.monotonic()
    while time.monotonic() < min(deadline, since + IDLE_S):
        time.sleep(0.5)
        now = _ticks(pid)
        if now - before > IDLE_CPU_SHARE * IDLE_S * os.sysconf("SC_CLK_TCK"):
            before, since = now, time.monotonic()


def _ticks(pid: int) -> int:
    """Return the CPU ticks used by a process and its descendants."""
    fields = [
        proc.stat_fields(process) for process in discovery.descendants(discovery.process_table(), [pid])
    ]
    return sum(int(stat[11]) + int(stat[12]) for stat in fields if stat)


def end_tree(pid: int) -> None:
    """Kill a process and all its descendants."""
    for process in discovery.descendants(discovery.process_table(), [pid]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
