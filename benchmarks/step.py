"""CPU time of a training step, ours against TRL's GRPOTrainer, on the same model and work, in turns.

`python benchmarks/step.py [PYTHON [--toy]]`; `--toy` shows that it runs and
measures nothing. PYTHON has TRL; the matrix's cell with the newest, unless another is given. Both
sides run in that environment, without vLLM, checkpoints or written completions. 2 prompts, 8 completions each of 64
tokens, one update; the reward is trivial.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measure import Program, interval, pairs  # noqa: E402

TOY = "--toy" in sys.argv
PAIRS, GOAL = 1 if TOY else 15, 0.60
LENGTHS: tuple[tuple[int, ...], ...] = ((8,),) if TOY else ((24, 40), (200,))
CELL = ROOT / ".matrix" / "environments" / "vllm-0.31.0+trl-1.16.0" / "bin" / "python"


def main(python: str) -> None:
    """One line for each length of the prompts."""
    for lengths in LENGTHS:
        with tempfile.TemporaryDirectory() as folder:
            program = "import sys; from pathlib import Path; from benchmarks.programs.tiny import make; "
            program += f"make(Path(sys.argv[1]), {lengths!r}, prompts=64)"
            Program.run(python, "-c", program, folder)
            sides = [
                Program(python, "-m", f"benchmarks.programs.{name}", folder) for name in ("ours", "trl_step")
            ]
            found = pairs(*sides, PAIRS)
            for side in sides:
                side.close()
        tokens = {(ours["tokens"], theirs["tokens"]) for ours, theirs in found}
        middle, low, high = interval([ours["cpu_s"] / theirs["cpu_s"] for ours, theirs in found])
        ours_s, theirs_s = (interval([pair[side]["cpu_s"] for pair in found])[0] for side in (0, 1))
        print(
            f"prompts of {lengths} tokens: ours {ours_s:.3f} s, TRL {theirs_s:.3f} s a step, ratio {middle:.3f} "
            f"[{low:.3f}, {high:.3f}] over {PAIRS} pairs, sampled tokens {tokens}; goal {GOAL} "
            f"{'pass' if middle <= GOAL else 'MISS'}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(CELL))
