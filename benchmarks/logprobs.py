"""Measure peak memory and CPU time of chunked log-probs against whole logits: 6,144 tokens, vocabulary 32,000.

`python benchmarks/logprobs.py [--toy]`; `--toy` uses a tiny size and only checks that the benchmark runs. Each
measurement runs in a separate process. The peak is the increase of the maximum resident memory (ru_maxrss).
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

TOY = "--toy" in sys.argv
TOKENS, VOCABULARY, WIDTH = (64, 128, 32) if TOY else (6144, 32000, 256)
GOALS = {"forward": 0.10, "forward and backward": 0.45}


def measure_variant(kind: str, chunk: int, *, backward: bool) -> dict[str, float]:
    """Measure one variant in this process: return the rise of peak memory (mib) and the CPU seconds (cpu_s)."""
    import torch

    from grpo_core.learn.logprobs import chunked_logprobs

    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=backward)
    weight = (torch.randn(VOCABULARY, WIDTH) * 0.02).requires_grad_(backward)
    ids = torch.randint(VOCABULARY, (TOKENS,))
    torch.log_softmax(
        hidden[:8] @ weight.T, -1
    )  # libraries allocate here what they keep, so it does not count
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with torch.set_grad_enabled(backward):
        if kind == "naive":
            logprobs = torch.log_softmax(hidden @ weight.T, -1).gather(-1, ids[:, None])[:, 0]
        else:
            logprobs, _ = chunked_logprobs(hidden, weight, ids, temperature=1.0, chunk=chunk)
        if backward:
            logprobs.sum().backward()
    cpu_s = time.process_time() - started
    return {"mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, "cpu_s": cpu_s}


def measure_in_child(kind: str, chunk: int, *, backward: bool) -> dict[str, float]:
    """Measure one variant in a separate process; return its mib and cpu_s."""
    root = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, __file__, kind, str(chunk), str(int(backward)), *(["--toy"] if TOY else [])]
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    """Print the ratios of chunked to whole log-probs: medians and intervals over pairs of runs."""
    from benchmarks.measure import interval

    print(f"{TOKENS} tokens x {VOCABULARY} ids, float32, one thread; chunked / naive, median [95 %]")
    for backward, name in enumerate(GOALS):
        for chunk in (16,) if TOY else (256, 1024):
            pairs = [
                (
                    measure_in_child("chunked", chunk, backward=bool(backward)),
                    measure_in_child("naive", 0, backward=bool(backward)),
                )
                for _ in range(1 if TOY else 3)
            ]
            for key, goal in (("mib", GOALS[name]), ("cpu_s", 1.5)):
                middle, low, high = interval([ours[key] / (naive[key] or 1) for ours, naive in pairs])
                verdict = "pass" if middle <= goal else "MISS"
                sides = f"{pairs[0][0][key]:8.1f} / {pairs[0][1][key]:8.1f} {key}"
                ratio = f"{middle:.3f} [{low:.3f}, {high:.3f}] goal {goal} {verdict}"
                print(f"{name:21} chunk {chunk:5} {sides:28} {ratio}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] not in ([], ["--toy"]):
        print(json.dumps(measure_variant(sys.argv[1], int(sys.argv[2]), backward=sys.argv[3] == "1")))
    else:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        main()
