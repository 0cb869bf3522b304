"""NUM023: a rollout function returns no completion, and TRL's trainer says so."""

from __future__ import annotations

from typing import Any

from repro.drivers import calls, tiny_trl


def _nothing(*_: Any, **__: Any) -> dict[str, list[Any]]:
    return {"prompt_ids": [], "completion_ids": [], "logprobs": []}


def _train(mitigation: str | None) -> None:
    del mitigation
    from datasets import Dataset
    from trl import GRPOTrainer

    sizes = {
        "num_generations": 2,
        "per_device_train_batch_size": 2,
        "max_completion_length": 4,
        "max_steps": 1,
    }
    made: Any = GRPOTrainer(
        model=tiny_trl.model(),
        args=calls.trl_config(save_strategy="no", **sizes),
        processing_class=tiny_trl.tokenizer(),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": list(tiny_trl.PROMPTS)}),
        rollout_func=_nothing,
    )
    made.train()


REPRO = calls.repro(
    "NUM023",
    "No completion came back",
    needs=("trl",),
    modules=tiny_trl.MODULES,
    trigger=("empty_rollout", "a step of GRPOTrainer whose rollout_func returns nothing"),
    call=_train,
    failure=("RuntimeError", "raise RuntimeError(", ""),
    says="No completions were generated",
    untried={"find_the_root": calls.SEARCHES},
    simulated=("the engine that failed: a rollout function of ours",),
)
