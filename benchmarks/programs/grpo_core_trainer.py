"""Train a folder's model with grpo_core, and run one step for each line that the benchmark writes to standard input.

usage: python -m benchmarks.programs.grpo_core_trainer FOLDER [--section.key=VALUE ...]

FOLDER has the folder `model` and the file `prompts.jsonl`; the run's files go to `FOLDER/grpo_core`. The reports on
standard output have the step's sampled tokens and CPU time. The benchmark ends the program before its 10,000 steps are
done. If training ends or fails earlier, the program prints the error (or None) and exits with code 1.
"""

import sys
from pathlib import Path

from benchmarks.harness import StepReporter
from grpo_core.run import train
from grpo_core.settings import load

folder, overrides = Path(sys.argv[1]), sys.argv[2:]
settings = {
    "model.path": folder / "model", "model.max_length": 512,
    "data.path": folder / "prompts.jsonl", "data.shuffle": "false",
    "reward.functions": f"{Path(__file__).parent / 'benchmark_inputs.py'}:even_words",
    "train.steps": 10_000, "train.prompts_per_step": 2, "sampling.group_size": 8, "sampling.max_tokens": 64,
    "checkpoint.every": 0, "output.completions_every": 0,
    "output.dir": folder, "output.name": "grpo_core",
}  # fmt: skip
reporter = StepReporter()
reporter.wait_for_request()
config = load(None, [f"--{key}={value}" for key, value in settings.items()] + overrides)
document = train(config, lambda entry: reporter.report_step(tokens=entry["completions/tokens"]))
sys.exit(str(document["error"]))
