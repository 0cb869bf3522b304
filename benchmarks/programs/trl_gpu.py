"""TRL's GRPOTrainer on a device, a step a turn: `trl_gpu.py FOLDER with|without OPTIONS`, the former with vLLM."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from datasets import load_dataset
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.measure import Turns
from benchmarks.programs.tiny import even_words

folder, vllm, size, turns = Path(sys.argv[1]), sys.argv[2] == "with", json.loads(sys.argv[3]), Turns()
samples = size["prompts"] * size["group"]


class EndTurn(TrainerCallback):
    """Ends the turn when a step's metrics are logged."""

    def on_log(self, args: object, state: object, control: object, logs: dict[str, Any], **_: object) -> None:
        """Says how many tokens were sampled."""
        del args, state, control
        if "completions/mean_length" in logs:
            turns.end(tokens=round(samples * float(logs["completions/mean_length"])))


with_vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3} if vllm else {}
options = GRPOConfig(
    output_dir=str(folder / f"trl-{sys.argv[2]}"), max_steps=10_000, use_cpu=size["device"] == "cpu",
    bf16=size["dtype"] == "bfloat16", gradient_checkpointing=False, num_generations=size["group"],
    per_device_train_batch_size=min(samples, 16), gradient_accumulation_steps=max(1, samples // 16),
    max_completion_length=size["tokens"], shuffle_dataset=False, logging_steps=1, report_to="none",
    save_strategy="no", disable_tqdm=True, **with_vllm,
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
