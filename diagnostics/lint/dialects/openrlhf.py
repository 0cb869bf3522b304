"""OpenRLHF: the dotted flags of 0.10.2 on and the flat ones before. Read in the tags 0.8.11 to 0.11.0."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnostics.lint.dialects import base
from diagnostics.lint.dialects.base import Default
from diagnostics.lint.dialects.dialect import ConfigDialect, Recognised

if TYPE_CHECKING:
    from diagnostics.lint.dialects.dialect import Started
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.values import Settings, Value
    from diagnostics.lint.versions import Versions

# plan's name -> (dotted flag, flat flag of older releases)
FLAGS = {
    "devices.rollout": ("vllm.num_engines", "vllm_num_engines"),
    "engine.tensor_parallel": ("vllm.tensor_parallel_size", "vllm_tensor_parallel_size"),
    "engine.memory_share": ("vllm.gpu_memory_utilization", "vllm_gpu_memory_utilization"),
    "engine.sleep": ("vllm.enable_sleep", "vllm_enable_sleep"),
    "engine.prefix_caching": ("vllm.enable_prefix_caching", "enable_prefix_caching"),
    "rollout.async": ("train.async_enable", "async_train"),
    "rollout.depth": ("train.async_queue_size", "async_queue_size"),
    "rollout.partial": ("train.partial_rollout_enable", "partial_rollout"),
    "group.size": ("rollout.n_samples_per_prompt", "n_samples_per_prompt"),
    "batch.prompts": ("rollout.batch_size", "rollout_batch_size"),
    "batch.mini": ("train.batch_size", "train_batch_size"),
    "batch.micro": ("train.micro_batch_size", "micro_train_batch_size"),
    "batch.experience_micro": ("rollout.micro_batch_size", "micro_rollout_batch_size"),
    "batch.dynamic": ("train.dynamic_batch_enable", "use_dynamic_batch"),
    "data.max_total": ("data.max_len", "max_len"),
    "data.max_prompt": ("data.prompt_max_len", "prompt_max_len"),
    "data.max_completion": ("rollout.max_new_tokens", "generate_max_len"),
    "sampling.temperature": ("rollout.temperature", "temperature"),
    "sampling.top_p": ("rollout.top_p", "top_p"),
    "train.estimator": ("algo.advantage.estimator", "advantage_estimator"),
    "train.correction": ("algo.advantage.is_correction_enable", "enable_vllm_is_correction"),
    "devices.per_node": ("actor.num_gpus_per_node", "actor_num_gpus_per_node"),
    "devices.nodes": ("actor.num_nodes", "actor_num_nodes"),
}
_FLAT = dict(FLAGS.values()) | {
    "train.colocate_all": "colocate_all_models",
    "reward.remote_url": "remote_rm_url",
    "ref.num_nodes": "ref_num_nodes",
    "ref.num_gpus_per_node": "ref_num_gpus_per_node",
}
NAMES = {flag: name for name, flags in FLAGS.items() for flag in flags}
# Switches: what is not there is off.
DEFAULTS = (
    Default("rollout.async", "train.async_enable", data=False),
    Default("rollout.partial", "train.partial_rollout_enable", data=False),
    Default("engine.sleep", "vllm.enable_sleep", data=False),
    Default("engine.tensor_parallel", "vllm.tensor_parallel_size", 1),
    Default("group.size", "rollout.n_samples_per_prompt", 1),
    Default("batch.prompts", "rollout.batch_size", 1024),
    Default("batch.experience_micro", "rollout.micro_batch_size", 8, "<0.10"),
    Default("devices.nodes", "actor.num_nodes", 1),
    Default("devices.per_node", "actor.num_gpus_per_node", 8),
)


def flag(settings: Settings, *names: str) -> Value | None:
    """The first of these flags that is set."""
    return next((settings.items[name] for name in names if name in settings.items), None)


def spelled(settings: Settings, advice: str) -> str:
    """Advice with its flags as this command spells them: flat where one of its own is."""
    if not set(_FLAT.values()) & set(settings.items):
        return advice
    return re.sub(r"--([\w.]*\w)", lambda found: f"--{_FLAT.get(found[1], found[1])}", advice)


def plan(settings: Settings, versions: Versions) -> RunPlan:
    """The plan of an OpenRLHF run."""
    made = base.start(settings, NAMES)
    base.defaults(made, DEFAULTS, versions, "OpenRLHF")
    made.put(
        "devices.train",
        base.product(
            (made.values.get("devices.per_node"), made.values.get("devices.nodes")), "actor.num_gpus_per_node"
        ),
    )
    engines = made.whole("devices.rollout")
    if engines:
        made.put("rollout.engine", made.values["devices.rollout"].but("vllm"))
    together = flag(settings, "train.colocate_all", "colocate_all_models")
    asynchronous = made.get("rollout.async")
    if engines and not settings.open:
        source = together or made.values["devices.rollout"]
        shared = together is not None and together.data is not False and not asynchronous
        made.put("rollout.mode", source.but("colocate" if shared else "async"))
    base.truncated(made)
    return made


def _launched(started: Started) -> Recognised | None:
    folder, _, file = started.script.rpartition("/")
    script = "openrlhf" in folder and file.startswith("train_ppo")
    if script or started.module.startswith("openrlhf.cli.train_ppo"):
        return Recognised("openrlhf", "train", started.start, exact=bool(started.module))
    return None


DIALECT = ConfigDialect("openrlhf", plan, _launched, commands=r"openrlhf\.")
