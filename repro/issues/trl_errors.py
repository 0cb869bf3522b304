"""Reproduce errors of unmodified TRL and transformers about options, data, rewards and rollouts; the model is tiny.

Options: CFG101, CFG110, CFG111, CFG113. Data: CFG116. Rewards: CFG022, REW002. Rollouts and engine: ENV012, NUM023,
SYN014. An older `compute_loss`: CMP025.
"""

import tempfile
from functools import partial
from typing import Any

from repro import upstream
from repro.drivers import single_call, tiny_trl
from repro.registry import InapplicableError

_options_repro = partial(single_call.repro, needs=("trl",))
_repro = partial(single_call.repro, needs=("trl",), modules=tiny_trl.MODULES)


@_options_repro("CFG101", raises="ValueError: must be divisible by num_generations")
def cfg101_sizes(mitigation: str | None) -> None:
    """Configure TRL with a generation batch that is not a whole number of groups."""
    group = 3 if mitigation == "group_divides" else 8
    tiny_trl.config(num_generations=group, per_device_train_batch_size=3)


@_options_repro("CFG110", raises="ValueError: at least 2 generations")
def cfg110_one(mitigation: str | None) -> None:
    """Configure TRL with a group of one completion."""
    group = 8 if mitigation == "a_group" else 1
    tiny_trl.config(num_generations=group, per_device_train_batch_size=8)


@_options_repro("CFG111", raises="ValueError: can not be both configured")
def cfg111_both(mitigation: str | None) -> None:
    """Set two options of TRL that exclude each other."""
    second = {} if mitigation == "one_of_them" else {"steps_per_generation": 2}
    tiny_trl.config(generation_batch_size=8, **second)


@_options_repro("CFG113", raises="ValueError: vllm_device")
def cfg113_vllm_device(mitigation: str | None) -> None:
    """Pass an option of another release to TRL's parser."""
    from trl import GRPOConfig, TrlParser

    option = ["--vllm_mode", "colocate"] if mitigation == "rename" else ["--vllm_device", "cuda:1"]
    arguments = ["--output_dir", tempfile.mkdtemp(), "--use_cpu", "true", "--bf16", "false", *option]
    TrlParser((GRPOConfig,)).parse_args_and_config(arguments)


@_repro("CFG022", raises="ValueError: rewards, but")
def cfg022_one_for_all(mitigation: str | None) -> None:
    """Train with a reward function that returns one number for a batch of completions."""
    tiny_trl.take_step(tiny_trl.reward_nothing if mitigation == "one_each" else lambda **_: [0.0])


@_repro("CFG116", raises="KeyError: 'prompt'")
def cfg116_question(mitigation: str | None) -> None:
    """Train on a dataset whose column is `question`, while TRL's trainer reads `prompt`."""
    column = "prompt" if mitigation == "rename" else "question"
    tiny_trl.take_step(tiny_trl.reward_nothing, column=column)


@single_call.repro(
    "CMP025", needs=("transformers", "torch", "datasets"), raises="TypeError: num_items_in_batch"
)
def cmp025_older_trainer(mitigation: str | None) -> None:
    """Train with a compute_loss for transformers before 4.46, which does not take num_items_in_batch."""
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments

    class Older(Trainer):  # type: ignore[misc] # transformers is not checked outside of cells
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            del return_outputs
            return model(**inputs).loss

    class Newer(Older):
        def compute_loss(self, *arguments: Any, num_items_in_batch: Any = None, **options: Any) -> Any:
            del num_items_in_batch
            return super().compute_loss(*arguments, **options)

    ids = [[3, 4]] * 8
    trainer = (Newer if mitigation == "take_it" else Older)(
        model=tiny_trl.model(),
        args=TrainingArguments(
            output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], max_steps=1, save_strategy="no"
        ),
        train_dataset=Dataset.from_dict({"input_ids": ids, "labels": ids}),
    )
    trainer.train()


@_repro("ENV012", raises="ImportError: vLLM is not available")
def env012_use_vllm(_mitigation: str | None) -> None:
    """Train with use_vllm=True while vLLM is not installed."""
    if upstream.first_installed(upstream.VLLM) is not None:
        raise InapplicableError("vLLM is installed here")
    tiny_trl.take_step(tiny_trl.reward_nothing, use_vllm=True)


@_repro(
    "NUM023",
    raises="RuntimeError: No completions were generated",
    simulated=("the engine that failed: a rollout function",),
)
def num023_empty_rollout(_mitigation: str | None) -> None:
    """Train with a rollout function that returns no completions."""
    empty: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "logprobs": []}
    tiny_trl.take_step(tiny_trl.reward_nothing, rollouts=lambda *_, **__: empty)


@_repro("REW002", raises="TypeError: got an unexpected keyword argument")
def rew002_narrow(mitigation: str | None) -> None:
    """Train with a reward function that takes only completions, while TRL passes further keyword arguments."""
    if mitigation == "kwargs":
        tiny_trl.take_step(tiny_trl.reward_nothing)
    else:
        tiny_trl.take_step(lambda completions: [0.0 for _ in completions])


@single_call.repro(
    "SYN014",
    needs=("trl",),
    modules=("trl.scripts.vllm_serve",),
    raises="RuntimeError: Communicator not initialized",
    simulated=("the engine around the worker extension: there is none",),
)
def syn014_no_group(_mitigation: str | None) -> None:
    """Send a weight to the worker extension of TRL's server before its process group exists."""
    from trl.scripts.vllm_serve import WeightSyncWorkerExtension

    WeightSyncWorkerExtension().update_named_param("model.norm.weight", "torch.float32", (64,))
