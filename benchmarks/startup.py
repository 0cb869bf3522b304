"""CPU time from nothing to the end of the first step, against imports of PyTorch and transformers alone, in turns.

`python benchmarks/startup.py [--toy]`; `--toy` shows that it runs and measures nothing. Each measurement is a process
of its own on one thread, its interpreter's start included.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measure import interval  # noqa: E402

TOY = "--toy" in sys.argv
ROUNDS, GOAL = 1 if TOY else 9, 1.2
BASES = {"imports": "torch and transformers", "model": "torch, transformers and the model's class"}


def seconds(what: str, folder: str) -> float:
    """The CPU seconds of one start."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "benchmarks.programs.first_step", what, folder]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """One line for each of what it is compared to."""
    found = []
    for place in range(ROUNDS + 1):  # the first reads from the disk
        with tempfile.TemporaryDirectory() as folder:
            one = {what: seconds(what, folder) for what in ("train", *BASES)}
        found += [one] if place or TOY else []
    for what, name in BASES.items():
        middle, low, high = interval([each["train"] / each[what] for each in found])
        ours_s, theirs_s = (interval([each[side] for each in found])[0] for side in ("train", what))
        print(
            f"to the end of the first step {ours_s:.2f} s, importing {name} {theirs_s:.2f} s, ratio {middle:.3f} "
            f"[{low:.3f}, {high:.3f}] over {len(found)} rounds; goal {GOAL} {'pass' if middle <= GOAL else 'MISS'}"
        )


if __name__ == "__main__":
    main()
