"""NUM045: the policy is changed after it was loaded; TRL loads the reference from where the policy's name points."""

from __future__ import annotations

import tempfile
from typing import Any

from repro.drivers import calls, tiny_trl

LIMIT = 0.01  # of the first step's KL


def _first_kl(mitigation: str | None) -> str | None:
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        tiny_trl.model().save_pretrained(folder)
        held = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        # As merging an adapter into it would.
        with torch.no_grad():
            held.lm_head.weight.mul_(3)
        if mitigation == "same":
            held.save_pretrained(folder)
        told: list[float] = []

        class Logged(transformers.TrainerCallback):  # type: ignore[misc] # transformers is looked into in cells alone
            """Keeps the KL of each step."""

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                del args, state, control
                told.extend(logs[key] for key in ("kl",) if key in logs)

        trained = tiny_trl.trainer(
            lambda completions, **_: [float(len(text) % 3) for text in completions],
            Logged(),
            held=held,
            beta=0.1,
            learning_rate=0.0,
            max_steps=1,
            logging_strategy="steps",
            logging_steps=1,
            num_generations=4,
            max_completion_length=8,
            per_device_train_batch_size=4,
        )
        trained.train()
    if not told:
        raise RuntimeError("TRL logged no KL")
    return None if abs(told[0]) < LIMIT else f"KL {told[0]:.3f} before the first update"


REPRO = calls.repro(
    "NUM045",
    "The reference is another model than the policy began with",
    needs=("trl", "transformers", "torch"),
    modules=tiny_trl.MODULES,
    trigger=("changed_after_loading", "a policy whose weights are changed in memory, and beta above 0"),
    call=_first_kl,
    failure=("", "", ""),
    helps={"same": "the changed weights are saved to the folder that the policy's name points to"},
    silent=True,
)
