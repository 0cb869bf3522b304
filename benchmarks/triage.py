"""How fast triage reads a log, beside ripgrep with the same patterns on the same file.

    python benchmarks/triage.py --megabytes 1000 --ripgrep rg
    python benchmarks/triage.py --megabytes 1000 --ripgrep rg --kind anchors
    python benchmarks/triage.py --ranks 2000

The log is made here: lines of training and engine as they look, with the ranks' and Ray's prefixes, a failure now and
then. Both read it from the page cache, in one thread, and the best of three counts.
"""

from __future__ import annotations

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

from diagnostics import catalog
from diagnostics.triage.rules import Rules

FAILURE = """\
Traceback (most recent call last):
  File "/opt/env/lib/python3.12/site-packages/vllm/v1/core/kv_cache_utils.py", line 906, in check
    raise ValueError(
ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.
"""


def log_lines(random_numbers: random.Random, count: int) -> list[str]:
    """Lines as trainers and engines print them, no two alike."""
    result = []
    for step in range(count):
        number = random_numbers.random
        kind = step % 6
        stamp = f"01-31 {step // 3600 % 24:02d}:{step // 60 % 60:02d}:{step % 60:02d}"
        if kind == 0:
            result.append(
                f"(EngineCore_DP0 pid=4242) INFO {stamp} [loggers.py:123] Engine 000: Avg prompt throughput: "
                f"{number() * 1000:.1f} tokens/s, Running: {step % 64} reqs, GPU KV cache usage: {number():.1%}"
            )
        elif kind == 1:
            result.append(
                f"{{'loss': {number():.4f}, 'grad_norm': {number():.4f}, 'reward': {number():.3f}, 'kl': 0.0}}"
            )
        elif kind == 2:
            result.append(
                f"(WorkerDict pid={step % 8}, ip=10.0.0.{step % 8}) step:{step} - actor/entropy:{number():.5f}"
            )
        elif kind == 3:
            result.append(
                f"[rank{step % 8}]: processed {step} prompts, {int(number() * 1e6)} tokens, no failure so far"
            )
        elif kind == 4:
            result.append(
                f" {step % 100}%|{'#' * (step % 10)}| {step}/100000 [00:{step % 60:02d}<12:00, {number():.2f}it/s]"
            )
        else:
            result.append(f'INFO:     127.0.0.1:{step % 60000} - "POST /v1/completions HTTP/1.1" 200 OK')
    return result


def write_log(path: Path, megabytes: int, kind: str) -> None:
    """Writes the log: `mixed` with a traceback every 20 MB or so, or one of the worst cases.

    In `anchors` every line has a text that a signature looks for and does not match, in `hits` every line matches, in
    `line` there is no end of line, and in `frames` a traceback never ends.
    """
    numbers = random.Random(1)
    anchored = "WARNING EngineArgs.__init__() got an unexpected keyword argument is told of {} times\n"
    hit = "[rank{0}]: ValueError: No available memory for the cache blocks. Try {0}\n"
    frame = '  File "/opt/env/lib/python3.12/site-packages/own/recursion.py", line {0}, in f{0}\n'
    with path.open("w") as log:
        if kind == "frames":
            log.write("Traceback (most recent call last):\n")
        chunk = "\n".join(log_lines(numbers, 200_000)) + "\n"
        while log.tell() < megabytes * 1e6:
            if kind == "mixed":
                log.write("\n".join(log_lines(numbers, 200_000)) + "\n" + FAILURE)
            elif kind == "line":
                log.write(chunk.replace("\n", " "))
            else:
                text = {"anchors": anchored, "hits": hit, "frames": frame}[kind]
                log.write("".join(text.format(numbers.randrange(10**6)) for _ in range(100_000)))


def write_ranks(folder: Path, count: int) -> None:
    """Writes logs of 100 lines, one a rank; every second one ends with a failure."""
    for rank in range(count):
        text = "\n".join(log_lines(random.Random(rank), 100)) + "\n"
        (folder / f"rank_{rank}.log").write_text(text + (FAILURE if rank % 2 else ""))


def ranks(count: int, folder: str | None, repeats: int) -> dict[str, float]:
    """CPU time of many small logs, judged together; the start of the program is measured by itself and taken off."""
    command = [sys.executable, "-m", "diagnostics", "triage"]
    with tempfile.TemporaryDirectory(dir=folder) as logs:
        write_ranks(Path(logs), count)
        _, cpu = best([*command, logs], repeats)
    with tempfile.TemporaryDirectory(dir=folder) as logs:
        write_ranks(Path(logs), 2)
        _, start = best([*command, logs], repeats)
    return {"logs": count, "cpu_s": cpu, "start_s": start, "ms_a_log": (cpu - start) / count * 1000}


def best(command: list[str], repeats: int = 3) -> tuple[float, float]:
    """Wall and CPU seconds of the fastest run, of the children alone."""
    runs = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode in {0, 1, 3}, command
        runs.append((wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return min(runs, key=lambda run: run[1])


def main() -> None:
    """Measures and prints one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--kind", choices=("mixed", "anchors", "hits", "line", "frames"), default="mixed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where the log is made (default: the folder for temporary files)")
    parser.add_argument("--ranks", type=int, help="so many small logs instead, and how long each takes")
    parser.add_argument("--ripgrep", default=shutil.which("rg"), help="the program (default: from PATH)")
    options = parser.parse_args()
    if options.ranks:
        print(json.dumps(ranks(options.ranks, options.folder, options.repeats), indent=1))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        log, patterns = Path(folder) / "run.log", Path(folder) / "patterns"
        write_log(log, options.megabytes, options.kind)
        rules = Rules(catalog.load())
        patterns.write_text("".join(f"{rule.pattern}\n" for rule in rules.rules))
        size = log.stat().st_size / 1e6
        wall, cpu = best([sys.executable, "-m", "diagnostics", "triage", str(log)], options.repeats)
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
        figures = {
            "kind": options.kind,
            "megabytes": round(size),
            "lines": sum(1 for _ in log.open("rb")),
            "patterns": len(rules.rules),
        }
        figures["triage"] = {"wall_s": wall, "cpu_s": cpu, "mb_per_cpu_s": size / cpu, "most_mb": memory}
        if options.ripgrep:
            command = [options.ripgrep, "--threads", "1", "--count", "--file", str(patterns), str(log)]
            wall, cpu = best(command, options.repeats)
            figures["ripgrep"] = {"wall_s": wall, "cpu_s": cpu, "mb_per_cpu_s": size / cpu}
            figures["triage_to_ripgrep"] = (
                figures["triage"]["mb_per_cpu_s"] / figures["ripgrep"]["mb_per_cpu_s"]
            )
        print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
