"""Repros of training steps of TRL and transformers that end with an error."""

from __future__ import annotations

import tempfile
from functools import partial
from typing import Any

from repro import upstream
from repro.base import OTHER_RELEASE, InapplicableError
from repro.drivers import calls, tiny_trl

_repro = partial(calls.repro, needs=("trl",), modules=tiny_trl.MODULES)


def _reward_once(completions: list[Any], **_: Any) -> list[float]:
    return [0.0] if completions else []


@_repro(
    "CFG022",
    trigger="one_for_all",
    failure=("ValueError", "raise ValueError(", ""),
    says="rewards, but",
    changes={"one_each": "one reward for each completion"},
)
def cfg022_one_for_all(mitigation: str | None) -> None:
    """A reward function returns one number for a batch of completions."""
    tiny_trl.take_step(tiny_trl.reward_nothing if mitigation == "one_each" else _reward_once)


@_repro(
    "CFG116",
    trigger="question",
    failure=("KeyError", 'prompts = [x["prompt"] for x in inputs]', ""),
    changes={"rename": "dataset.rename_column('question', 'prompt')"},
)
def cfg116_question(mitigation: str | None) -> None:
    """The data set calls its column `question`, and TRL's trainer reads `prompt`."""
    column = "prompt" if mitigation == "rename" else "question"
    tiny_trl.take_step(tiny_trl.reward_nothing, column=column)


@calls.repro(
    "CMP025",
    needs=("transformers", "torch", "datasets"),
    modules=("torch", "transformers", "datasets", "tokenizers"),
    trigger="older_trainer",
    failure=(
        "TypeError",
        "loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)",
        "training_step",
    ),
    says="num_items_in_batch",
    changes={"take_it": "compute_loss takes num_items_in_batch=None"},
    untried={"newer": OTHER_RELEASE},
)
def cmp025_older_trainer(mitigation: str | None) -> None:
    """The Trainer of transformers calls a compute_loss of before 4.46, which takes no num_items_in_batch."""
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments

    class Older(Trainer):  # type: ignore[misc] # transformers is looked into in cells alone
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            del return_outputs
            return model(**inputs).loss

    class Newer(Trainer):  # type: ignore[misc]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            del return_outputs, num_items_in_batch
            return model(**inputs).loss

    common = {"use_cpu": True, "report_to": [], "max_steps": 1, "save_strategy": "no"}
    ids = [[3, 4]] * 8
    built = (Newer if mitigation == "take_it" else Older)(
        model=tiny_trl.model(),
        args=TrainingArguments(output_dir=tempfile.mkdtemp(), **common),
        train_dataset=Dataset.from_dict({"input_ids": ids, "labels": ids}),
    )
    built.train()


@_repro(
    "ENV012",
    trigger="use_vllm",
    failure=("ImportError", "raise ImportError(", ""),
    says="vLLM is not available",
    untried={"install": "it changes the environment: run this in one with vLLM"},
)
def env012_use_vllm(_mitigation: str | None) -> None:
    """TRL's trainer is to use vLLM, which is not installed."""
    if upstream.installed(upstream.VLLM) is not None:
        raise InapplicableError("vLLM is installed here")
    tiny_trl.take_step(tiny_trl.reward_nothing, use_vllm=True)


def _nothing(*_: Any, **__: Any) -> dict[str, list[Any]]:
    return {"prompt_ids": [], "completion_ids": [], "logprobs": []}


@_repro(
    "NUM023",
    trigger="empty_rollout",
    failure=("RuntimeError", "raise RuntimeError(", ""),
    says="No completions were generated",
    untried={"find_the_root": calls.SEARCHES},
    simulated=("the engine that failed: a rollout function of ours",),
)
def num023_empty_rollout(_mitigation: str | None) -> None:
    """A rollout function returns no completion, and TRL's trainer raises."""
    tiny_trl.take_step(tiny_trl.reward_nothing, rollouts=_nothing)


def _narrow(completions: list[Any]) -> list[float]:
    return [0.0] * len(completions)


@_repro(
    "REW002",
    trigger="narrow",
    failure=("TypeError", "output_reward_func = reward_func(", ""),
    says="got an unexpected keyword argument",
    changes={"kwargs": "def reward(completions, **kwargs)"},
    untried={"columns": "no column is missing here"},
)
def rew002_narrow(mitigation: str | None) -> None:
    """TRL calls a reward function by keyword, and the function takes completions alone."""
    tiny_trl.take_step(tiny_trl.reward_nothing if mitigation == "kwargs" else _narrow)


@calls.repro(
    "SYN014",
    needs=("trl",),
    modules=("trl.scripts.vllm_serve",),
    trigger="no_group",
    failure=(
        "RuntimeError",
        'raise RuntimeError("Communicator not initialized. Call `init_communicator` first.")',
        "update_named_param",
    ),
    untried={"order": "the group is one of NCCL, which needs GPUs"},
    simulated=("the engine around the worker extension: there is none",),
)
def syn014_no_group(_mitigation: str | None) -> None:
    """TRL's server is sent a weight before a group was made."""
    from trl.scripts.vllm_serve import WeightSyncWorkerExtension

    WeightSyncWorkerExtension().update_named_param("model.norm.weight", "torch.float32", (64,))
