"""What recording rollouts and the watchdog cost, as CPU time of whole steps with and without, in turns.

`python benchmarks/overheads.py`. The work is that of the step benchmark: 2 prompts, 8 completions each of 64 tokens, a
Llama of 4 layers.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measure import Program, interval, pairs  # noqa: E402
from benchmarks.programs.tiny import make  # noqa: E402

PAIRS = 30
CASES = {
    "checkpoint every step": (["--checkpoint.every=1"], None),
    "recording every step": (["--output.record_every=1"], 0.01),
    "watchdog": (["--train.stall_s=600"], 0.002),
}


def main() -> None:
    """One line a case."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), (24, 40), prompts=64)
        for name, (options, goal) in CASES.items():
            sides = [
                Program(
                    sys.executable, "-m", "benchmarks.programs.ours", folder, f"--output.name={place}", *extra
                )
                for place, extra in enumerate(([], options))
            ]
            found = pairs(*sides, PAIRS)
            for side in sides:
                side.close()
            middle, low, high = interval([b["cpu_s"] / a["cpu_s"] - 1 for a, b in found])
            verdict = "" if goal is None else f"; goal {goal:.1%} {'pass' if middle <= goal else 'MISS'}"
            cost = f"{found[0][0]['cpu_s']:.3f} s a step without"
            print(
                f"{name}: {middle:+.2%} [{low:+.2%}, {high:+.2%}] of CPU time ({cost}){verdict}", flush=True
            )


if __name__ == "__main__":
    main()
