"""EasyR1: its YAML and dotted overrides. Read in the tags 0.3.0 to 0.3.2 and the state of 2026-07-30."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.lint.dialects import base
from diagnostics.lint.dialects.base import Default
from diagnostics.lint.dialects.dialect import ConfigDialect, Recognised
from diagnostics.lint.values import Place, Value

if TYPE_CHECKING:
    from diagnostics.lint.dialects.dialect import Started
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.values import Settings
    from diagnostics.lint.versions import Versions

NAMES = {
    "worker.rollout.name": "rollout.engine",
    "worker.rollout.n": "group.size",
    "worker.rollout.temperature": "sampling.temperature",
    "worker.rollout.top_p": "sampling.top_p",
    "worker.rollout.top_k": "sampling.top_k",
    "worker.rollout.gpu_memory_utilization": "engine.memory_share",
    "worker.rollout.enable_chunked_prefill": "engine.chunked_prefill",
    "worker.rollout.tensor_parallel_size": "engine.tensor_parallel",
    "worker.rollout.max_model_len": "engine.max_length",
    "worker.rollout.max_num_batched_tokens": "engine.max_batched_tokens",
    "worker.actor.global_batch_size": "batch.mini",
    "worker.actor.micro_batch_size_per_device_for_update": "batch.micro",
    "worker.actor.micro_batch_size_per_device_for_experience": "batch.experience_micro",
    "worker.actor.ulysses_size": "train.sequence_parallel",
    "data.rollout_batch_size": "batch.prompts",
    "data.max_prompt_length": "data.max_prompt",
    "data.max_response_length": "data.max_completion",
    "data.filter_overlong_prompts": "data.filters_overlong",
    "algorithm.adv_estimator": "train.estimator",
    "trainer.n_gpus_per_node": "devices.per_node",
    "trainer.nnodes": "devices.nodes",
}
DEFAULTS = (
    Default("rollout.engine", "worker.rollout.name", "vllm"),
    Default("group.size", "worker.rollout.n", 1),
    Default("engine.tensor_parallel", "worker.rollout.tensor_parallel_size", 2),
    Default("engine.max_batched_tokens", "worker.rollout.max_num_batched_tokens", 8192),
    Default("engine.chunked_prefill", "worker.rollout.enable_chunked_prefill", data=False),
    Default("engine.memory_share", "worker.rollout.gpu_memory_utilization", 0.6),
    Default("data.max_prompt", "data.max_prompt_length", 512),
    Default("data.max_completion", "data.max_response_length", 512),
    Default("batch.prompts", "data.rollout_batch_size", 512),
    Default("batch.mini", "worker.actor.global_batch_size", 256),
    Default("batch.micro", "worker.actor.micro_batch_size_per_device_for_update", 4),
    Default("batch.experience_micro", "worker.actor.micro_batch_size_per_device_for_experience", 16),
    Default("train.sequence_parallel", "worker.actor.ulysses_size", 1),
    Default("train.estimator", "algorithm.adv_estimator", "grpo"),
    Default("devices.per_node", "trainer.n_gpus_per_node", 8),
    Default("devices.nodes", "trainer.nnodes", 1),
)


def plan(settings: Settings, versions: Versions) -> RunPlan:
    """The plan of an EasyR1 run."""
    made = base.start(settings, NAMES)
    base.defaults(made, DEFAULTS, versions, "EasyR1")
    # The engine always shares the trainer's devices, and always sleeps.
    made.put("rollout.mode", Value("colocate", Place("EasyR1's one mode"), "worker.rollout"))
    made.put("engine.sleep", Value(True, Place("EasyR1's one mode"), "worker.rollout"))
    made.put(
        "devices.train",
        base.product(
            (made.values.get("devices.per_node"), made.values.get("devices.nodes")), "trainer.n_gpus_per_node"
        ),
    )
    evaluates = settings.items.get("trainer.val_freq")
    if evaluates is not None and isinstance(evaluates.data, int):
        made.put("train.evaluates", evaluates.but(evaluates.data > 0))
    base.truncated(made)
    return made


def _launched(started: Started) -> Recognised | None:
    if started.overrides("actor_rollout_ref."):
        return None
    script = started.script and any(word.startswith("worker.rollout.") for word in started.rest)
    if started.module == "verl.trainer.main" or script:
        return Recognised("easyr1", "train", started.start, "overrides", exact=not script)
    return None


def _written(tree: dict[str, Any]) -> bool:
    worker = tree.get("worker")
    return isinstance(worker, dict) and bool({"rollout", "actor"} & set(worker))


DIALECT = ConfigDialect("easyr1", plan, _launched, _written, rank=2, includes=True, interpolates=True)
