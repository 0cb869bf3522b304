"""How long a look at many processes of one host takes, in wall and CPU time, against a goal for 64.

python benchmarks/hang.py [--processes N] [--repeats N]

Each process is Python's and waits for a lock in two threads, as the ranks of a job that hangs do. Half of what is told
is the look itself: three samples (two where there are many) within 1.5 s. Exit code 1 where the goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOAL_S = 3.0
WAITS = """
import threading
held = threading.Event()
threading.Thread(target=held.wait).start()
print("stands", flush=True)
held.wait()
"""


def look(pids: list[int]) -> tuple[float, float]:
    """Wall and CPU seconds of the command, its children counted."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "diagnostics", "hang", "--format", "json", *(f"--pid={pid}" for pid in pids)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode in {0, 1, 3}, done.stderr
    assert len(json.loads(done.stdout)["processes"]) >= len(pids)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu_s


def main() -> int:
    """Measures and prints one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    started = [
        subprocess.Popen([sys.executable, "-S", "-c", WAITS], stdout=subprocess.PIPE, text=True)
        for _ in range(options.processes)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        walls, cpus = zip(
            *(look([process.pid for process in started]) for _ in range(options.repeats)), strict=True
        )
    finally:
        for process in started:
            process.kill()
            process.communicate()
    wall_s = statistics.median(walls)
    figures = {
        "load": os.getloadavg()[0],
        "processes": options.processes,
        "wall_s": round(wall_s, 2),
        "least_wall_s": round(min(walls), 2),
        "cpu_s": round(statistics.median(cpus), 2),
        "goal_s": GOAL_S,
    }
    print(json.dumps(figures, indent=1))
    return 1 if wall_s > GOAL_S else 0


if __name__ == "__main__":
    sys.exit(main())
