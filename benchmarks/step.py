"""Measure the CPU time of a training step of grpo_core relative to TRL's GRPOTrainer, on the same model and work.

`python -m benchmarks.step [PYTHON [PAIRS]]`. PYTHON is an interpreter with TRL installed; the default is that of the
matrix cell vllm-0.31.0+trl-1.16.0 in `.matrix/environments`. Both trainers run in that environment, take PAIRS
measured steps (default 15) alternately, after two warm-up steps, and use neither vLLM nor checkpoints. A step has 4
groups of 4 or 2 groups of 8 completions of 64 tokens, a trivial reward and one update. A line for each of three cases
has the median ratio with its 95 % bootstrap interval, and whether it meets the goal for a quiet machine.
"""

import json
import sys
import tempfile

from benchmarks.harness import ROOT, Program, interval, run_to_end, step_in_turns

# Prompt lengths in tokens, group size, and the goal for the ratio of CPU times on a quiet machine; each step has 16
# completions.
CASES: list[tuple[tuple[int, ...], int, float]] = [
    ((24, 40), 4, 0.45),
    ((24, 40), 8, 0.45),
    ((200,), 8, 0.30),
]
CELL = ROOT / ".matrix" / "environments" / "vllm-0.31.0+trl-1.16.0" / "bin" / "python"


def main(python: str = str(CELL), pairs: str = "15") -> None:
    """Print one line of results for each case of prompt lengths and group size."""
    for lengths, group, goal in CASES:
        with tempfile.TemporaryDirectory() as folder:
            script = "import sys; from pathlib import Path\n"
            script += "from benchmarks.programs.benchmark_inputs import write_small_model\n"
            script += f"write_small_model(Path(sys.argv[1]), {lengths!r}, 64)"
            run_to_end(python, "-c", script, folder)
            size = [f"--train.prompts_per_step={16 // group}", f"--sampling.group_size={group}"]
            size.append("--train.micro_batch=16")  # as TRL's
            options = {
                "use_cpu": True, "bf16": False, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 1,
                "num_generations": group, "max_completion_length": 64,
            }  # fmt: skip
            programs = [
                Program(python, "-m", "benchmarks.programs.grpo_core_trainer", folder, *size),
                Program(python, "-m", "benchmarks.programs.trl_trainer", folder, "16", json.dumps(options)),
            ]
            measured = step_in_turns(programs, int(pairs))
        tokens = {(core["tokens"], trl["tokens"]) for core, trl in measured}
        middle, low, high = interval([core["cpu_s"] / trl["cpu_s"] for core, trl in measured])
        core_s, trl_s = (interval([pair[index]["cpu_s"] for pair in measured])[0] for index in (0, 1))
        print(
            f"{16 // group} groups of {group}, prompts of {lengths} tokens: "
            f"grpo_core {core_s:.3f} s, TRL {trl_s:.3f} s a step, ratio {middle:.3f} "
            f"[{low:.3f}, {high:.3f}] over {pairs} pairs, sampled tokens {tokens}; goal {goal} "
            f"{'pass' if middle <= goal else 'MISS'}",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
