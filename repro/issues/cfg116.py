"""CFG116: the data set calls its column `question`, and TRL's trainer reads `prompt`."""

from __future__ import annotations

from typing import Any

from repro.drivers import calls, tiny_trl


def _train(mitigation: str | None) -> None:
    from datasets import Dataset
    from trl import GRPOTrainer

    rows = Dataset.from_dict({"question": list(tiny_trl.PROMPTS)})
    if mitigation == "rename":
        rows = rows.rename_column("question", "prompt")
    sizes = {"num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 4}
    made: Any = GRPOTrainer(
        model=tiny_trl.model(),
        args=calls.trl_config(max_steps=1, save_strategy="no", **sizes),
        processing_class=tiny_trl.tokenizer(),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=rows,
    )
    made.train()


REPRO = calls.repro(
    "CFG116",
    "The data set lacks a column that the trainer reads",
    needs=("trl",),
    modules=tiny_trl.MODULES,
    trigger=("question", "a step of GRPOTrainer on a data set whose column is `question`"),
    call=_train,
    failure=("KeyError", 'prompts = [x["prompt"] for x in inputs]', ""),
    helps={"rename": "dataset.rename_column('question', 'prompt')"},
)
