"""verl: its YAML and Hydra overrides. Read in the tags 0.4.1 to 0.9.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.lint.dialects import base
from diagnostics.lint.dialects.base import Default
from diagnostics.lint.dialects.dialect import ConfigDialect, Recognised, keys_of
from diagnostics.lint.values import UNKNOWN, Place, Value

if TYPE_CHECKING:
    from diagnostics.lint.dialects.dialect import Started
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.values import Settings
    from diagnostics.lint.versions import Versions

_ROLLOUT = "actor_rollout_ref.rollout."
_ACTOR = "actor_rollout_ref.actor."
NAMES = {
    _ROLLOUT + "name": "rollout.engine",
    _ROLLOUT + "tensor_model_parallel_size": "engine.tensor_parallel",
    _ROLLOUT + "data_parallel_size": "engine.data_parallel",
    _ROLLOUT + "expert_parallel_size": "engine.expert_parallel",
    _ROLLOUT + "pipeline_model_parallel_size": "engine.pipeline_parallel",
    _ROLLOUT + "gpu_memory_utilization": "engine.memory_share",
    _ROLLOUT + "free_cache_engine": "engine.sleep",
    _ROLLOUT + "enable_sleep_mode": "engine.sleep",
    _ROLLOUT + "enable_chunked_prefill": "engine.chunked_prefill",
    _ROLLOUT + "enable_prefix_caching": "engine.prefix_caching",
    _ROLLOUT + "max_model_len": "engine.max_length",
    _ROLLOUT + "max_num_batched_tokens": "engine.max_batched_tokens",
    _ROLLOUT + "logprobs_mode": "engine.logprobs_mode",
    _ROLLOUT + "n": "group.size",
    _ROLLOUT + "temperature": "sampling.temperature",
    _ROLLOUT + "top_p": "sampling.top_p",
    _ROLLOUT + "top_k": "sampling.top_k",
    _ROLLOUT + "multi_turn.enable": "rollout.multi_turn",
    "data.train_batch_size": "batch.prompts",
    "data.max_prompt_length": "data.max_prompt",
    "data.max_response_length": "data.max_completion",
    "data.filter_overlong_prompts": "data.filters_overlong",
    _ACTOR + "ppo_mini_batch_size": "batch.mini",
    _ACTOR + "ppo_micro_batch_size_per_gpu": "batch.micro",
    _ACTOR + "use_dynamic_bsz": "batch.dynamic",
    _ACTOR + "ulysses_sequence_parallel_size": "train.sequence_parallel",
    "algorithm.adv_estimator": "train.estimator",
    "trainer.n_gpus_per_node": "devices.per_node",
    "trainer.nnodes": "devices.nodes",
    "ray_init.address": "ray.address",
    "ray_kwargs.ray_init.address": "ray.address",
}
DEFAULTS = (
    Default("batch.prompts", "data.train_batch_size", 1024),
    Default("batch.mini", _ACTOR + "ppo_mini_batch_size", 256),
    Default("batch.dynamic", _ACTOR + "use_dynamic_bsz", data=False),
    Default("group.size", _ROLLOUT + "n", 1),
    Default("engine.tensor_parallel", _ROLLOUT + "tensor_model_parallel_size", 2),
    Default("engine.chunked_prefill", _ROLLOUT + "enable_chunked_prefill", data=True),
    Default("engine.max_batched_tokens", _ROLLOUT + "max_num_batched_tokens", 8192),
    Default("data.max_prompt", "data.max_prompt_length", 512),
    Default("data.max_completion", "data.max_response_length", 512),
    Default("devices.per_node", "trainer.n_gpus_per_node", 8),
    Default("devices.nodes", "trainer.nnodes", 1),
)
_ENTRY_POINTS = {"", "verl.trainer.main_ppo"}
_SHIPPED = {"ppo_trainer", "ppo_megatron_trainer"}


# Trainers built on verl make the group elsewhere, beside an n of 1.
_OTHER_GROUPS = (_ROLLOUT + "n_agent", "data.n_samples")


def plan(settings: Settings, versions: Versions) -> RunPlan:
    """The plan of a verl run."""
    made = base.start(settings, NAMES)
    settings.exact = settings.exact and _shipped_config(settings)
    elsewhere = next((settings.items[name] for name in _OTHER_GROUPS if name in settings.items), None)
    if elsewhere is not None:
        made.put("group.size", elsewhere.but(UNKNOWN))
    if _shipped_config(settings):
        base.defaults(made, DEFAULTS, versions, "verl")
    made.put(
        "devices.train",
        base.product(
            (made.values.get("devices.per_node"), made.values.get("devices.nodes")), "trainer.n_gpus_per_node"
        ),
    )
    _mode(made)
    evaluates = settings.items.get("trainer.test_freq")
    if evaluates is not None and isinstance(evaluates.data, int):
        made.put("train.evaluates", evaluates.but(evaluates.data > 0))
    backend = settings.environ.get("VERL_VLLM_DISTRIBUTED_BACKEND")
    if backend is not None and backend.known:
        made.put("engine.executor", backend)
    base.truncated(made)
    return made


def _shipped_config(settings: Settings) -> bool:
    """Tells whether what is not set has the default of verl's own YAML, and not of somebody's."""
    if settings.about not in _ENTRY_POINTS or not settings.about:
        return False
    path, name = settings.items.get("--config-path"), settings.items.get("--config-name")
    if path is not None and str(path.data).strip("./'\"") != "config":
        return False
    return name is None or str(name.data).removesuffix(".yaml") in _SHIPPED


def _mode(made: RunPlan) -> None:
    """One engine on the trainer's devices, unless the rollout has nodes of its own."""
    nodes = made.settings.items.get(_ROLLOUT + "nnodes")
    engine = made.settings.items.get(_ROLLOUT + "mode")
    if nodes is not None and nodes.data not in {0, None}:
        made.put("rollout.mode", nodes.but("async" if nodes.known else UNKNOWN))
    elif made.settings.about in _ENTRY_POINTS:
        place = engine.place if engine is not None else Place("verl's hybrid engine")
        made.put("rollout.mode", Value("colocate", place, _ROLLOUT + "mode", soft=engine is None))
    if engine is not None and engine.known:
        made.put("rollout.async", engine.but(engine.data == "async"))


def _launched(started: Started) -> Recognised | None:
    own = started.overrides("actor_rollout_ref.")
    if started.module.startswith(("verl.", "recipe.")) and started.module != "verl.trainer.main":
        own = (
            own or started.overrides("algorithm.", "data.train") or started.module == "verl.trainer.main_ppo"
        )
    if not own or started.program:
        return None
    about = started.module or started.script
    # A config of somebody's own has other keys; that it is used is seen in `plan`.
    return Recognised("verl", "train", started.start, "overrides", about=about, exact=about in _ENTRY_POINTS)


def _written(tree: dict[str, Any]) -> bool:
    return "actor_rollout_ref" in {key.split(".")[0] for key in keys_of(tree)}


DIALECT = ConfigDialect("verl", plan, _launched, _written, commands=r"verl\.", rank=1, interpolates=True)
