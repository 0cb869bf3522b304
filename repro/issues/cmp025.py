"""CMP025: the Trainer of transformers calls a compute_loss of before 4.46, which takes no num_items_in_batch."""

from __future__ import annotations

import tempfile
from typing import Any

from repro.drivers import calls, tiny_trl


def _train(mitigation: str | None) -> None:
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments

    class Older(Trainer):  # type: ignore[misc] # transformers is looked into in cells alone
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            del return_outputs
            return model(**inputs).loss

    class Newer(Trainer):  # type: ignore[misc]
        def compute_loss(
            self,
            model: Any,
            inputs: Any,
            return_outputs: bool = False,
            num_items_in_batch: Any = None,
        ) -> Any:
            del return_outputs, num_items_in_batch
            return model(**inputs).loss

    common = {"use_cpu": True, "report_to": [], "max_steps": 1, "save_strategy": "no"}
    ids = [[3, 4]] * 8
    made = (Newer if mitigation == "take_it" else Older)(
        model=tiny_trl.model(),
        args=TrainingArguments(output_dir=tempfile.mkdtemp(), **common),
        train_dataset=Dataset.from_dict({"input_ids": ids, "labels": ids}),
    )
    made.train()


REPRO = calls.repro(
    "CMP025",
    "transformers passes num_items_in_batch to what does not take it",
    needs=("transformers", "torch", "datasets"),
    modules=("torch", "transformers", "datasets", "tokenizers"),
    trigger=("older_trainer", "a step of a Trainer whose compute_loss has the arguments of 4.45"),
    call=_train,
    failure=(
        "TypeError",
        "loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)",
        "training_step",
    ),
    says="num_items_in_batch",
    helps={"take_it": "compute_loss takes num_items_in_batch=None"},
    untried={"newer": calls.OTHER_RELEASE},
)
