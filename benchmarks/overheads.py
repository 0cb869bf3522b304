"""What checkpoints, recording rollouts and the watchdog cost, as a share of a step's CPU time.

`python benchmarks/overheads.py [--toy]`; `--toy` shows that it runs and
measures nothing. Checkpoints and recording: whole steps with and without, in turns. The watchdog costs
too little to be seen like that: its calls are measured by themselves, its thread's time included. The work is that of
the step benchmark: 2 prompts, 8 completions each of 64 tokens, a Llama of 4 layers.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measure import Program, interval, pairs  # noqa: E402
from benchmarks.programs.tiny import make  # noqa: E402
from grpo_core.config import TrainConfig  # noqa: E402
from grpo_core.show.watchdog import Watchdog  # noqa: E402

TOY = "--toy" in sys.argv
PAIRS = 1 if TOY else 30
CASES = {
    "checkpoint every step": (["--checkpoint.every=1"], None),
    "recording every step": (["--output.record_every=1"], 0.01),
}
WATCHDOG_GOAL = 0.002
BEATS = 20 if TOY else 2000


def watchdog(step_s: float) -> None:
    """One line: the time of a beat, of which a step has one, over that of a step."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(9):
            guard = Watchdog(Path(folder) / "stalls.txt", TrainConfig(stall_s=600))
            started = time.process_time()
            for _ in range(BEATS):
                guard.beat()
            found.append((time.process_time() - started) / BEATS / step_s)
            guard.close()
    middle, low, high = interval(found)
    verdict = "pass" if middle <= WATCHDOG_GOAL else "MISS"
    print(
        f"watchdog: {middle:+.3%} [{low:+.3%}, {high:+.3%}] of CPU time (one beat a step of {step_s:.3f} s); "
        f"goal {WATCHDOG_GOAL:.1%} {verdict}"
    )


def main() -> None:
    """One line a case."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), (24, 40), prompts=64)
        for name, (options, goal) in CASES.items():
            ours = (sys.executable, "-m", "benchmarks.programs.ours", folder)
            sides = [
                Program(*ours, f"--output.name={name}, {place}", *extra)
                for place, extra in enumerate(([], options))
            ]
            found = pairs(*sides, PAIRS)
            for side in sides:
                side.close()
            middle, low, high = interval([b["cpu_s"] / a["cpu_s"] - 1 for a, b in found])
            verdict = "" if goal is None else f"; goal {goal:.1%} {'pass' if middle <= goal else 'MISS'}"
            step_s = statistics.median(a["cpu_s"] for a, _ in found)
            cost = f"{step_s:.3f} s a step without"
            print(
                f"{name}: {middle:+.2%} [{low:+.2%}, {high:+.2%}] of CPU time ({cost}){verdict}", flush=True
            )
        watchdog(step_s)


if __name__ == "__main__":
    main()
