"""Train a folder's model with TRL's GRPOTrainer, and run one step for each line that the benchmark writes to stdin.

usage: python -m benchmarks.programs.trl_trainer FOLDER SAMPLES OPTIONS. SAMPLES is the number of completions per step,
OPTIONS are options of GRPOConfig as a JSON object. It must contain `use_cpu`; if true, PyTorch uses one thread. The
reports on standard output have the step's CPU time and its sampled tokens, computed from the mean length that TRL logs.
The benchmark ends the program before its 10,000 steps are done.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.harness import StepReporter
from benchmarks.programs.benchmark_inputs import even_words

folder, samples, options = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
reporter = StepReporter()
if options["use_cpu"]:
    torch.set_num_threads(1)


class ReportStep(TrainerCallback):
    """Trainer callback that reports each finished step to the benchmark, and waits for the next step request."""

    def on_log(self, *_: object, logs: dict[str, Any], **__: object) -> None:
        """Report the number of sampled tokens of a step; ignore the logs of the run's end."""
        if "completions/mean_length" in logs:
            reporter.report_step(tokens=round(samples * float(logs["completions/mean_length"])))


config = GRPOConfig(
    output_dir=str(folder / "trl"),
    max_steps=10_000,
    gradient_checkpointing=False,
    shuffle_dataset=False,
    logging_steps=1,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
    **options,
)
prompts = str(folder / "prompts.jsonl")
trainer = GRPOTrainer(
    model=str(folder / "model"),
    reward_funcs=even_words,
    args=config,
    train_dataset=load_dataset("json", data_files=prompts, split="train", cache_dir=str(folder / "cache")),
    processing_class=AutoTokenizer.from_pretrained(folder / "model"),
    callbacks=[ReportStep()],
)
trainer.remove_callback(PrinterCallback)
reporter.wait_for_request()
trainer.train()
