"""Measure CPU time and memory of `triage` for a large log, and its speed relative to ripgrep with the same patterns.

    python -m benchmarks.triage [--megabytes 200] [--ripgrep PATH]

The log is generated: lines as trainers and engines print them, with prefixes of ranks and of Ray, and a traceback after
every 200,000 lines (more often in a log below 20 MB). Both programs read it from the page cache; ripgrep uses one
thread. The fastest of three runs (by CPU time) counts. Without ripgrep only triage is measured. The figures are printed
as one JSON document.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import ROOT
from diagnostics import catalog
from diagnostics.triage.rules import Rules

FAILURE = """\
Traceback (most recent call last):
  File "/opt/env/lib/python3.12/site-packages/vllm/v1/core/kv_cache_utils.py", line 906, in check
    raise ValueError(
ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.
"""
LINES = Path(__file__).with_name("programs").joinpath("log_lines.txt").read_text().splitlines()


def log_lines(numbers: random.Random, count: int) -> list[str]:
    """Return `count` lines as trainers and engines print them, with random values."""
    result = []
    for step in range(count):
        stamp = f"01-31 {step // 3600 % 24:02d}:{step // 60 % 60:02d}:{step % 60:02d}"
        share = numbers.random()
        values = {"step": step, "rank": step % 8, "small": step % 60, "share": share, "rate": share * 1000}
        result.append(LINES[step % len(LINES)].format(stamp=stamp, **values))
    return result


def run_timed(command: list[str]) -> tuple[float, float]:
    """Run a command three times and discard its output; return the CPU and wall seconds of the run with least CPU."""
    runs = []
    for _ in range(3):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False, cwd=ROOT)
        wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode in {0, 1, 3}, command
        runs.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall_s))
    return min(runs)


def main() -> None:
    """Measure triage and ripgrep, and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--ripgrep", default=shutil.which("rg"), help="path of ripgrep (default: rg in PATH)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log, patterns = Path(folder) / "run.log", Path(folder) / "patterns"
        numbers, count = random.Random(1), min(200_000, 10_000 * options.megabytes)
        with log.open("w") as file:
            while file.tell() < options.megabytes * 1e6:
                file.write("\n".join(log_lines(numbers, count)) + "\n" + FAILURE)
        rules = Rules(catalog.load())
        patterns.write_text("".join(f"{rule.pattern}\n" for rule in rules.rules))
        size = log.stat().st_size / 1e6
        cpu_s, wall_s = run_timed([sys.executable, "-m", "diagnostics", "triage", str(log)])
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
        with log.open("rb") as lines:
            report = {"megabytes": round(size), "lines": sum(1 for _ in lines), "patterns": len(rules.rules)}
        speed = size / cpu_s
        report["triage"] = {"wall_s": wall_s, "cpu_s": cpu_s, "mb_per_cpu_s": speed, "most_mb": memory}
        if options.ripgrep:
            command = [options.ripgrep, "--threads", "1", "--count", "--file", str(patterns), str(log)]
            cpu_s, wall_s = run_timed(command)
            report["ripgrep"] = {"wall_s": wall_s, "cpu_s": cpu_s, "mb_per_cpu_s": size / cpu_s}
            report["triage_to_ripgrep"] = speed / (size / cpu_s)
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
