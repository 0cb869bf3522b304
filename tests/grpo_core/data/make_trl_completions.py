"""Train a tiny model for two steps in a cell with TRL, which writes the Parquet files in this folder.

The files were written by TRL 1.16.0 with transformers 5.17.0, torch 2.13.0 and pyarrow 26.0.1, on a CPU. Arguments:
the folder to train in; its `completions` folder then holds the files.
"""

from __future__ import annotations

import sys
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from grpo_core.config import ModelConfig, TaskConfig
from grpo_core.tasks.model import load_model, load_tokenizer, make_tiny


def letters(prompts, completions, *, log_extra, **columns):
    """Reward the share of letters of the alphabet's first half; None for prompts that begin with g."""
    log_extra("length", [len(text) for text in completions])
    return [
        None if text[:1] == "g" else sum(letter in "abcde" for letter in text) / max(len(text), 1)
        for text in completions
    ]


def brief(prompts, completions, **columns):
    """Reward short completions; None for prompts that begin with e."""
    return [
        None if prompt[0] == "e" else -0.125 * len(text)
        for prompt, text in zip(prompts, completions, strict=True)
    ]


def main(folder: Path) -> None:
    model = folder / "model"
    make_tiny(model, ModelConfig(), TaskConfig().letters, seed=0)
    words = ["abc", "bca", "cab", "dea", "ebd", "fgh", "ghi", "hij"]
    options = GRPOConfig(
        output_dir=str(folder), max_steps=2, logging_steps=1, log_completions=True, report_to=[],
        per_device_train_batch_size=8, num_generations=4, max_completion_length=5, reward_weights=[1.0, 0.5],
        learning_rate=1e-3, seed=1, use_cpu=True, bf16=False, save_strategy="no", num_completions_to_print=0,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=load_model(model),
        reward_funcs=[letters, brief],
        args=options,
        train_dataset=Dataset.from_dict({"prompt": [word + ">" for word in words]}),
        processing_class=load_tokenizer(model),
    )
    trainer.train()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
