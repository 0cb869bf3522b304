"""ms-swift: `swift rlhf`, `swift rollout`, their YAML and args.json. Read in the tags 3.2.2 to 4.5.2."""

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

NAMES = {
    "vllm_mode": "rollout.mode",
    "async_generate": "rollout.async",
    "num_infer_workers": "devices.rollout",
    "vllm_gpu_memory_utilization": "engine.memory_share",
    "tensor_parallel_size": "engine.tensor_parallel",
    "vllm_tensor_parallel_size": "engine.tensor_parallel",
    "sleep_level": "engine.sleep_level",
    "vllm_max_model_len": "engine.max_length",
    "vllm_enable_prefix_caching": "engine.prefix_caching",
    "vllm_server_host": "server.host",
    "vllm_server_port": "server.port",
    "vllm_server_base_url": "server.address",
    "vllm_server_timeout": "server.timeout",
    "vllm_server_group_port": "server.group_port",
    "num_generations": "group.size",
    "num_generations_eval": "group.eval_size",
    "per_device_train_batch_size": "batch.per_device",
    "per_device_eval_batch_size": "batch.eval_per_device",
    "gradient_accumulation_steps": "batch.accumulation",
    "generation_batch_size": "batch.generation",
    "steps_per_generation": "batch.steps_per_generation",
    "max_length": "data.max_prompt",
    "max_completion_length": "data.max_completion",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "top_k": "sampling.top_k",
    "min_p": "sampling.min_p",
    "repetition_penalty": "sampling.repetition_penalty",
    "sequence_parallel_size": "train.sequence_parallel",
}
SERVER_NAMES = {
    "tensor_parallel_size": "engine.tensor_parallel",
    "vllm_tensor_parallel_size": "engine.tensor_parallel",
    "vllm_data_parallel_size": "engine.data_parallel",
    "vllm_gpu_memory_utilization": "engine.memory_share",
    "vllm_max_model_len": "engine.max_length",
    "vllm_enable_prefix_caching": "engine.prefix_caching",
    "host": "server.host",
    "port": "server.port",
}
DEFAULTS = (
    Default("group.size", "num_generations", 8),
    Default("rollout.async", "async_generate", data=False),
    Default("engine.tensor_parallel", "vllm_tensor_parallel_size", 1),
    Default("engine.memory_share", "vllm_gpu_memory_utilization", 0.9),
    Default("engine.sleep_level", "sleep_level", 0),
    Default("sampling.temperature", "temperature", 0.9),
    Default("devices.rollout", "num_infer_workers", 1, ">=3.2.2,<3.5"),
)


def plan(settings: Settings, versions: Versions) -> RunPlan:
    """The plan of an ms-swift run, or of its rollout server."""
    if settings.role == "serve":
        made = base.start(settings, SERVER_NAMES)
        server = (
            Default("server.port", "port", 8000),
            Default("engine.tensor_parallel", "vllm_tensor_parallel_size", 1),
            Default("engine.data_parallel", "vllm_data_parallel_size", 1),
        )
        base.defaults(made, server, versions, "swift rollout")
        return made
    made = base.start(settings, NAMES)
    if "megatron" in settings.items:
        # Its batches are counted over all devices, by other names.
        for name in ("batch.per_device", "batch.accumulation"):
            made.values.pop(name, None)
    base.defaults(made, DEFAULTS, versions, "ms-swift")
    uses = settings.items.get("use_vllm")
    if uses is not None and uses.known:
        made.put("rollout.engine", uses.but("vllm" if uses.data else "transformers"))
    made.put("devices.train", _processes(settings))
    _mode(made, versions)
    _engine_kwargs(made)
    made.put("engine.sleep", base.truth(made.values.get("engine.sleep_level")))
    _evaluates(made)
    strategy = settings.items.get("truncation_strategy")
    if strategy is not None and strategy.known:
        made.put("data.filters_overlong", strategy.but(strategy.data == "delete"))
    multi = settings.items.get("multi_turn_scheduler") or settings.items.get("multi_turn_func")
    if multi is not None:
        made.put("rollout.multi_turn", multi.but(multi.data is not None if multi.known else UNKNOWN))
    offloads = settings.items.get("offload_model")
    if offloads is not None:
        made.put("train.offloads", base.truth(offloads))
    base.truncated(made)
    return made


def _processes(settings: Settings) -> Value | None:
    per_node = base.environment_number(settings, "NPROC_PER_NODE")
    if per_node is None:
        return base.launched(settings)
    nodes = base.environment_number(settings, "NNODES") or Value(1, per_node.place, "NNODES")
    return base.product((per_node, nodes), "NPROC_PER_NODE")


def _mode(made: RunPlan, versions: Versions) -> None:
    """Derives the mode where ms-swift derives it: from the workers up to 3.4, from the server from 3.5 on."""
    if "rollout.mode" in made.values or made.get("rollout.engine") != "vllm":
        return
    host = made.values.get("server.host") or made.values.get("server.address")
    if host is not None:
        made.put("rollout.mode", host.but("server"))
        return
    workers, visible = made.whole("devices.rollout"), made.whole("devices.visible")
    if workers is not None and visible is not None and versions.within("ms-swift", "<3.5") is not False:
        mode = "colocate" if workers == visible else "async"
        made.put("rollout.mode", made.values["devices.rollout"].but(mode))
    elif versions.within("ms-swift", ">=3.5,<3.11.1"):
        made.default("rollout.mode", Value("colocate", Place("default of ms-swift"), "vllm_mode", soft=True))


def _engine_kwargs(made: RunPlan) -> None:
    kwargs = made.settings.items.get("vllm_engine_kwargs")
    if kwargs is None or not isinstance(kwargs.data, dict):
        return
    names = {
        "enable_chunked_prefill": "engine.chunked_prefill",
        "max_num_batched_tokens": "engine.max_batched_tokens",
        "logprobs_mode": "engine.logprobs_mode",
        "generation_config": "engine.generation_config",
    }
    for key, name in names.items():
        if key in kwargs.data:
            made.put(name, kwargs.but(kwargs.data[key]).named(f"vllm_engine_kwargs.{key}"))
    if "disable_async_output_proc" in kwargs.data:
        value = kwargs.but(not kwargs.data["disable_async_output_proc"])
        made.put("engine.async_output", value.named("vllm_engine_kwargs.disable_async_output_proc"))


def _evaluates(made: RunPlan) -> None:
    """ms-swift evaluates where there is something to evaluate on, unless eval_strategy says no."""
    items = made.settings.items
    strategy = items.get("eval_strategy")
    if strategy is not None and strategy.known:
        made.put("train.evaluates", strategy.but(strategy.data not in {"no", None, False}))
        return
    for key in ("val_dataset", "split_dataset_ratio", "eval_steps"):
        value = items.get(key)
        if value is not None and value.known and key == "val_dataset" and value.data:
            made.put("train.evaluates", value.but(data=True))
        elif value is not None and value.known and key == "split_dataset_ratio":
            made.put("train.evaluates", value.but(bool(value.data)))


def _launched(started: Started) -> Recognised | None:
    name = started.verb if started.program == "swift" else ""
    if started.program == "megatron" and started.verb == "rlhf":
        return Recognised("ms-swift", "train", started.start, extra={"megatron": "true"}, exact=True)
    if started.module.startswith("swift.cli."):
        name = started.module.removeprefix("swift.cli.")
    if started.script.endswith(("swift/cli/rlhf.py", "swift/cli/rollout.py")):
        name = started.script.rpartition("/")[2].removesuffix(".py")
    if name not in {"rlhf", "rollout"}:
        return None
    return Recognised("ms-swift", "serve" if name == "rollout" else "train", started.start, exact=True)


def _written(tree: dict[str, Any]) -> bool:
    return bool(keys_of(tree) & _KEYS)


def _counts(settings: Settings) -> bool:
    kind = settings.items.get("rlhf_type")
    if settings.role != "train" or kind is None:
        return True
    return kind.data == "grpo" or not kind.known


_KEYS = {"rlhf_type", "swift_version", "train_type", "tuner_type", "num_infer_workers", "async_generate"}
DIALECT = ConfigDialect(
    "ms-swift", plan, _launched, _written, frozenset({"swift", "megatron"}),
    r"swift (?:rlhf|rollout)|megatron rlhf|swift\.cli", general=1, underscores=True, includes=True, counts=_counts,
)  # fmt: skip
