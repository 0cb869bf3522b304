"""Train with TRL's GRPOTrainer on a folder's model and prompts, one step a turn: `FOLDER SAMPLES OPTIONS`.

SAMPLES is the number of completions a step, OPTIONS the options of GRPOConfig as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.measure import Turns
from benchmarks.programs.tiny import even_words

folder, samples, options = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
turns = Turns()
if options["use_cpu"]:
    torch.set_num_threads(1)


class EndTurn(TrainerCallback):
    """Trainer callback that ends the turn when a step's metrics are logged, and reports its sampled tokens."""

    def on_log(self, *_: object, logs: dict[str, Any], **__: object) -> None:
        """End the turn if these are a step's metrics."""
        if "completions/mean_length" in logs:
            turns.end_turn(tokens=round(samples * float(logs["completions/mean_length"])))


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
    callbacks=[EndTurn()],
)
trainer.remove_callback(PrinterCallback)
turns.begin()
trainer.train()
