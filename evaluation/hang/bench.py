"""Run hanging and healthy programs, diagnose them with `hang`, and score the verdicts.

usage: python -m evaluation.hang.bench [--only PATTERN] [--times N] [--repros] [--save FOLDER] [--from FOLDER] ...

The programs are in `programs`. Prints a line for each run, then a confusion table by cause. `--only PATTERN` selects
cases by name. `--repros` runs the triggers of the hang repros instead, each with the first `--python` that has the
required packages. `--save FOLDER` saves the snapshots, `--from FOLDER` diagnoses saved snapshots without running
anything. `--target PYTHON` runs the programs with another Python. The tests diagnose saved snapshots, and run a few
programs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from diagnostics.hang.collect import snapshot as collect
from diagnostics.hang.diagnosis import Patience, diagnose
from diagnostics.hang.parsers import bundle, dump_files
from diagnostics.hang.verdict import HANG
from evaluation.hang import bench_repros

HERE = Path(__file__).parent / "programs"
PATIENCE = Patience(2.0, 600.0)
SETTLE_S = 3.0
READY_S = 300.0


@dataclass(frozen=True)
class Case:
    """A case of a program, and its correct diagnoses.

    Attributes:
        program: File in `programs`.
        case: Argument that selects the case.
        causes: Correct causes; empty for a healthy case.
        lines: Number of lines that the program prints before it is stuck.
        guilty: Role of the blocking process, as printed by the program.
        world: Number of ranks, or 0 for programs without ranks.
        rank: The blocking rank.
    """

    program: str
    case: str
    causes: tuple[str, ...]
    lines: int
    guilty: str = "culprit"
    world: int = 0
    rank: int = 0

    @property
    def name(self) -> str:
        """Return the name of the case in tables."""
        return f"{self.case}-{self.rank}of{self.world}" if self.world else self.case

    @property
    def healthy(self) -> bool:
        """Return whether the case is healthy, so that no hang may be reported."""
        return not self.causes


# Cases of host.py: correct causes, and the number of lines that a case prints before it is stuck.
_HOST = {
    "two_locks": (("locks",), 1),
    "lock_not_given_back": (("lock",), 1),
    "queue_nobody_fills": (("lost_message",), 1),
    "pool_waits_for_itself": (("pool",), 1),
    "pipe_of_dead_child": (("dead",), 2),
    "pipes_crossed": (("deadlock",), 2),
    "full_pipe": (("full_pipe",), 2),
    "child_output_unread": (("deadlock",), 2),
    "shared_lock_holder_waits": (("lock",), 2),
    "shared_lock_holder_stopped": (("stopped",), 2),
    "processes_queue": (("lost_message",), 2),
    "worker_stopped": (("stopped",), 2),
    "file_lock": (("file_lock",), 2),
    "filelock_library": (("file_lock",), 2),
    "prompt": (("input",), 1),
    "prompt_in_child": (("input",), 2),
    "secret_prompt": (("input",), 1),
    "handler_waits": (("lost_message",), 2),
    "server_stopped": (("stopped",), 2),
    "servers_crossed": (("deadlock",), 2),
    "asyncio_lost": (("lost_answer",), 2),
    "asyncio_blocked": (("blocked_loop",), 2),
    "zmq_lost": (("lost_message",), 2),
    "symbols": (("spin_python",), 1),
    "connect_blocked": (("connect",), 1),
    "unix_lost": (("lost_answer", "lost_message"), 2),
    "uvicorn_lost": (("lost_answer",), 2),
    "uvicorn_blocked": (("blocked_loop",), 2),
    "event_never_set": (("lost_message",), 1),
    "fork_with_lock": (("lock",), 2),
    "pool_worker_killed": (("lost_message", "dead"), 1),
    "thread_joins_stuck": (("lost_message", "lock"), 1),
    "semaphore_of_dead": (("lock", "dead"), 2),
    "ring_of_three": (("deadlock",), 3),
}
# Cases of ranks.py: correct causes, and the role of the blocking process.
_RANKS = {
    "poll": (("absent",), "culprit"),
    "event": (("absent",), "culprit"),
    "stopped": (("stopped",), "culprit"),
    "prompt": (("input",), "culprit"),
    "other_branch": (("mismatch",), "culprit"),
    "skipped": (("mismatch",), "culprit"),
    "http": (("lost_message",), "server"),
    "file_lock": (("stopped",), "holder"),
    "two_locks": (("locks",), "culprit"),
    "symbols": (("spin_python",), "culprit"),
    "loader": (("stopped",), "worker"),
    "child_asks": (("input",), "asker"),
    "full_tensor": (("mismatch",), "culprit"),
    "two_threads": (("two_threads",), "culprit"),
    "rendezvous": (("absent",), "culprit"),
}
_HEALTHY = (
    "healthy_idle_server",
    "healthy_kept_alive",
    "healthy_busy",
    "healthy_child_works",
    "healthy_pool_waits",
    "healthy_imports",
    "healthy_slow_steps",
    "healthy_requests",
    "healthy_paused_server",
    "healthy_slow_handler",
    "healthy_asyncio_idle",
    "healthy_lock_contended",
)


def cases() -> list[Case]:
    """Return all hanging and healthy cases of host.py and ranks.py."""
    all_cases = [Case("host.py", name, causes, lines) for name, (causes, lines) in _HOST.items()]
    for name, (causes, guilty) in _RANKS.items():
        extra = guilty != "culprit"
        all_cases += [Case("ranks.py", name, causes, 3 + extra, guilty, 3, rank) for rank in range(3)]
        all_cases += [Case("ranks.py", name, causes, 4 + extra, guilty, 4, rank) for rank in (1, 3)]
    all_cases += [Case("host.py", name, (), 1) for name in _HEALTHY]
    for name in ("computing", "importing", "steps", "slow_rank"):
        all_cases += [Case("ranks.py", name, (), 3, world=3, rank=rank) for rank in range(3)]
    return all_cases


def observe(case: Case, python: str = sys.executable) -> tuple[object, dict[str, set[int]]]:
    """Run a program, take a snapshot when it is stuck, and end it; return the snapshot and the pids by role."""
    words = [python, str(HERE / case.program), case.case]
    words += [str(case.rank), str(case.world)] if case.world else []
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    read, write = os.pipe()
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words, stdin=read, env=environment, start_new_session=True, **quiet)
    try:
        names = _read_roles(process, case)
        if case.case == "full_tensor":
            time.sleep(15.0)  # it imports a compiler first
        time.sleep(SETTLE_S)
        # A computation that holds the GIL shows no idle time: its snapshot must last longer than the patience.
        seconds = 2.5 if case.case == "symbols" else collect.SECONDS
        return collect.take_snapshot(collect.Selection((process.pid,), seconds=seconds)), names
    finally:
        bench_repros.end_tree(process.pid)
        process.wait()
        process.stdout.close()
        os.close(read)
        os.close(write)


def _read_roles(process: subprocess.Popen[bytes], case: Case) -> dict[str, set[int]]:
    pids_by_role: dict[str, set[int]] = {}
    text = b""
    os.set_blocking(process.stdout.fileno(), False)
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            text += os.read(process.stdout.fileno(), 65536)
        references = re.findall(
            r"(culprit|victim|healthy|server|holder|worker|asker) (\d+)\n", text.decode(errors="replace")
        )
        if len(references) >= case.lines:
            for name, pid in references:
                pids_by_role.setdefault(name, set()).add(int(pid))
            return pids_by_role
        time.sleep(0.1)
    raise RuntimeError(f"{case.name}: not ready: {text!r}")


def score(
    case: Case | bench_repros.ReproCase, snapshot: object, pids_by_role: dict[str, set[int]]
) -> dict[str, object]:
    """Diagnose a snapshot and compare the verdict with the case; return a row for the tables."""
    verdict = diagnose(snapshot, PATIENCE).verdict
    pids = {int(key.rpartition("/")[2]) for key in verdict.culprits if key.rpartition("/")[2].isdigit()}
    hang = verdict.outcome == HANG
    guilty = pids_by_role.get(case.guilty, set())
    # If the blocking process does not exist, no process may be named.
    named_right = hang and bool(pids or case.guilty == "nobody") and pids <= guilty
    return {
        "case": case.name,
        "outcome": verdict.outcome,
        "cause": verdict.cause,
        "expected": list(case.causes),
        "right_process": named_right if not case.healthy else not hang,
        "right_cause": hang and verdict.cause in case.causes if not case.healthy else not hang,
        "victim_named": hang and bool(pids & (pids_by_role.get("victim", set()) - guilty)),
        "healthy": case.healthy,
        "sentence": verdict.sentence,
    }


def save_snapshot(snapshot: object, path: Path) -> None:
    """Save a snapshot, with the paths of this machine replaced by neutral ones."""
    bundle.save(snapshot, path)
    text = path.read_text(encoding="utf-8")
    places = (
        (str(HERE), "/job"),
        (sys.prefix, "/opt/env"),
        (sys.base_prefix, "/usr/local"),
        (str(HERE.parents[2]), "/job"),
    )
    for place, name in places:
        text = text.replace(place, name)
    # Remove user folders from the remaining paths of the repros.
    text = re.sub(r'[^"\s]*/(repro/|told\b)', r"/job/\1", text)
    path.write_text(
        json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8"
    )


def render_figures(rows: list[dict[str, object]]) -> str:
    """Render the totals and the confusion table as text."""
    hangs = [row for row in rows if not row["healthy"]]
    healthy_rows = [row for row in rows if row["healthy"]]
    count = {
        key: sum(bool(row[key]) for row in hangs) for key in ("right_process", "right_cause", "victim_named")
    }
    lines = [
        f"{len(hangs)} hangs: process right {count['right_process']}, cause right {count['right_cause']}, "
        f"a victim named {count['victim_named']}",
        f"{len(healthy_rows)} healthy: hang claimed {sum(row['outcome'] == HANG for row in healthy_rows)}",
        "", f"{'expected':<24}{'said':<24}{'runs':>5}",
    ]  # fmt: skip
    pairs = Counter(
        ("/".join(row["expected"]) or "(healthy)", f"{row['outcome']} {row['cause']}".strip()) for row in rows
    )
    lines += [
        f"{expected:<24}{observed:<24}{number:>5}" for (expected, observed), number in sorted(pairs.items())
    ]
    return "\n".join(lines)


def render_markdown(rows: list[dict[str, object]]) -> str:
    """Render the results as Markdown: a confusion table, then each program with its runs."""
    pairs = Counter(
        ("/".join(row["expected"]) or "none", row["cause"] if row["outcome"] == HANG else row["outcome"])
        for row in rows
    )
    lines = ["| right | said | runs |", "|---|---|---|"]
    lines += [
        f"| {expected} | {observed} | {number} |" for (expected, observed), number in sorted(pairs.items())
    ]
    lines += ["", "| program | runs | process right | cause right | victim named |", "|---|---|---|---|---|"]
    names = {re.sub(r"-\d+(of\d+)?$", "", row["case"]): [] for row in rows}
    for row in rows:
        names[re.sub(r"-\d+(of\d+)?$", "", row["case"])].append(row)
    for name, some in names.items():
        counts = [
            sum(bool(row[key]) for row in some) for key in ("right_process", "right_cause", "victim_named")
        ]
        lines.append(f"| {name} | {len(some)} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def main() -> int:
    """Run or load the selected cases, and print their scores and the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--from", dest="saved_snapshots", type=Path)
    parser.add_argument("--repros", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--target", default=sys.executable)
    options = parser.parse_args()
    rows = []
    chosen = bench_repros.cases() if options.repros else cases()
    for case in [case for case in chosen if re.search(options.only, case.name)]:
        for time_ in range(options.times):
            name = f"{case.name}.{time_}" if time_ else case.name
            snapshot_path = (options.saved_snapshots or Path()) / f"{name}.json"
            if options.saved_snapshots and not snapshot_path.is_file():
                continue
            try:
                if options.saved_snapshots:
                    names = json.loads(snapshot_path.with_suffix(".names").read_text())
                    snapshot, culprits = (
                        dump_files.read_files([str(snapshot_path)]),
                        {key: set(pids) for key, pids in names.items()},
                    )
                elif isinstance(case, Case):
                    snapshot, culprits = observe(case, options.target)
                else:
                    snapshot, culprits = bench_repros.observe(case, (sys.executable, *options.python))
            except (RuntimeError, collect.NoProcessError) as error:
                print(f"ERROR {error}", flush=True)
                continue
            if options.save:
                options.save.mkdir(parents=True, exist_ok=True)
                save_snapshot(snapshot, options.save / f"{name}.json")
                (options.save / f"{name}.names").write_text(
                    json.dumps({k: sorted(v) for k, v in culprits.items()})
                )
            row = score(case, snapshot, culprits)
            rows.append(row)
            word = "ok   " if row["right_process"] and row["right_cause"] else "WRONG"
            print(f"{word} {name:<28} {row['outcome']} {row['cause']}: {row['sentence']}", flush=True)
    print(render_markdown(rows) if options.markdown else render_figures(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
