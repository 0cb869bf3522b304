"""TRL's GRPOTrainer on the tiny model, without vLLM, a step of 16 samples a turn: `trl_step.py FOLDER GROUP_SIZE`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.measure import Turns
from benchmarks.programs.tiny import even_words

folder, group, turns = Path(sys.argv[1]), int(sys.argv[2]), Turns()
torch.set_num_threads(1)


class EndTurn(TrainerCallback):
    """Ends the turn when a step's metrics are logged."""

    def on_log(self, args: object, state: object, control: object, logs: dict[str, Any], **_: object) -> None:
        """Says how many tokens were sampled."""
        del args, state, control
        if "completions/mean_length" in logs:
            turns.end(tokens=round(16 * float(logs["completions/mean_length"])))


options = GRPOConfig(
    output_dir=str(folder / "trl"), max_steps=10_000, use_cpu=True, bf16=False, gradient_checkpointing=False,
    per_device_train_batch_size=16, gradient_accumulation_steps=1, num_generations=group, max_completion_length=64,
    shuffle_dataset=False, logging_steps=1, report_to="none", save_strategy="no", disable_tqdm=True,
)  # fmt: skip
trainer = GRPOTrainer(
    model=str(folder / "model"),
    reward_funcs=even_words,
    args=options,
    train_dataset=load_dataset(
        "json", data_files=str(folder / "prompts.jsonl"), split="train", cache_dir=str(folder / "cache")
    ),
    processing_class=AutoTokenizer.from_pretrained(folder / "model"),
    callbacks=[EndTurn()],
)
trainer.remove_callback(PrinterCallback)
turns.begin()
trainer.train()
