"""Measure how fast triage reads a log, against ripgrep with the same patterns on the same file.

    python benchmarks/triage.py --megabytes 1000 --ripgrep rg

The log is generated: lines as trainers and engines print them, with prefixes of ranks and of Ray, and a traceback after
every 200,000 lines. Both programs read it from the page cache; ripgrep uses one thread. The fastest of three runs (by
CPU time) counts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measure import run_timed  # noqa: E402
from diagnostics import catalog  # noqa: E402
from diagnostics.triage.rules import Rules  # noqa: E402

FAILURE = """\
Traceback (most recent call last):
  File "/opt/env/lib/python3.12/site-packages/vllm/v1/core/kv_cache_utils.py", line 906, in check
    raise ValueError(
ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.
"""


LINES = (
    "(EngineCore_DP0 pid=4242) INFO {stamp} [loggers.py:123] Engine 000: Avg prompt throughput: {rate:.1f} tokens/s, "
    "Running: {small} reqs, GPU KV cache usage: {share:.1%}",
    "{{'loss': {share:.4f}, 'grad_norm': {share:.4f}, 'reward': {share:.3f}, 'kl': 0.0}}",
    "(WorkerDict pid={rank}, ip=10.0.0.{rank}) step:{step} - actor/entropy:{share:.5f}",
    "[rank{rank}]: processed {step} prompts, {rate:.0f} tokens, no failure so far",
    " {small}%|####| {step}/100000 [00:{small:02d}<12:00, {share:.2f}it/s]",
    'INFO:     127.0.0.1:{step} - "POST /v1/completions HTTP/1.1" 200 OK',
)


def log_lines(random_numbers: random.Random, count: int) -> list[str]:
    """Generate lines as trainers and engines print them, with random values."""
    result = []
    for step in range(count):
        stamp = f"01-31 {step // 3600 % 24:02d}:{step // 60 % 60:02d}:{step % 60:02d}"
        share = random_numbers.random()
        values = {"step": step, "rank": step % 8, "small": step % 60, "share": share, "rate": share * 1000}
        result.append(LINES[step % len(LINES)].format(stamp=stamp, **values))
    return result


def write_log(path: Path, megabytes: int) -> None:
    """Write at least `megabytes` MB of log, with a traceback after every 200,000 lines."""
    numbers = random.Random(1)
    with path.open("w") as log:
        while log.tell() < megabytes * 1e6:
            log.write("\n".join(log_lines(numbers, 200_000)) + "\n" + FAILURE)


def run_fastest(command: list[str], repeats: int = 3) -> tuple[float, float]:
    """Run a command repeatedly; return the wall and CPU seconds of the run with the least CPU time."""
    runs = [run_timed(command) for _ in range(repeats)]
    assert all(code in {0, 1, 3} for _wall_s, _cpu_s, code in runs), command
    return min(runs, key=lambda run: run[1])[:2]


def main() -> None:
    """Measure triage and ripgrep, and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--folder", help="folder for the log (default: the system's folder for temporary files)"
    )
    parser.add_argument("--ripgrep", default=shutil.which("rg"), help="path of ripgrep (default: rg in PATH)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        log, patterns = Path(folder) / "run.log", Path(folder) / "patterns"
        write_log(log, options.megabytes)
        rules = Rules(catalog.load())
        patterns.write_text("".join(f"{rule.pattern}\n" for rule in rules.rules))
        size = log.stat().st_size / 1e6
        wall, cpu = run_fastest([sys.executable, "-m", "diagnostics", "triage", str(log)], options.repeats)
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
        figures = {
            "megabytes": round(size),
            "lines": sum(1 for _ in log.open("rb")),
            "patterns": len(rules.rules),
        }
        figures["triage"] = {"wall_s": wall, "cpu_s": cpu, "mb_per_cpu_s": size / cpu, "most_mb": memory}
        if options.ripgrep:
            command = [options.ripgrep, "--threads", "1", "--count", "--file", str(patterns), str(log)]
            wall, cpu = run_fastest(command, options.repeats)
            figures["ripgrep"] = {"wall_s": wall, "cpu_s": cpu, "mb_per_cpu_s": size / cpu}
            figures["triage_to_ripgrep"] = (
                figures["triage"]["mb_per_cpu_s"] / figures["ripgrep"]["mb_per_cpu_s"]
            )
        print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
