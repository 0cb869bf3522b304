"""TRL's GRPOTrainer on a model and prompts in a folder, a step a turn: what the programs that measure it share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from datasets import load_dataset
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.programs.tiny import even_words

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.measure import Turns


class EndTurn(TrainerCallback):
    """Ends the turn when a step's metrics are logged."""

    def __init__(self, turns: Turns, samples: int) -> None:
        """`samples` are those of a step."""
        self._turns, self._samples = turns, samples

    def on_log(self, args: object, state: object, control: object, logs: dict[str, Any], **_: object) -> None:
        """Says how many tokens were sampled."""
        del args, state, control
        if "completions/mean_length" in logs:
            self._turns.end_turn(tokens=round(self._samples * float(logs["completions/mean_length"])))


def take_steps(folder: Path, turns: Turns, samples: int, **options: Any) -> None:
    """Without end, without checkpoints or written completions; `options` are GRPOConfig's."""
    config = GRPOConfig(
        max_steps=10_000, gradient_checkpointing=False, shuffle_dataset=False, logging_steps=1, report_to="none",
        save_strategy="no", disable_tqdm=True, **options,
    )  # fmt: skip
    prompts = str(folder / "prompts.jsonl")
    trainer = GRPOTrainer(
        model=str(folder / "model"),
        reward_funcs=even_words,
        args=config,
        train_dataset=load_dataset(
            "json", data_files=prompts, split="train", cache_dir=str(folder / "cache")
        ),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        callbacks=[EndTurn(turns, samples)],
    )
    trainer.remove_callback(PrinterCallback)
    turns.begin()
    trainer.train()
