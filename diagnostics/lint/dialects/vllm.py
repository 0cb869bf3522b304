"""`vllm serve` and its YAML: a server that somebody's trainer is going to use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.lint.dialects import base
from diagnostics.lint.dialects.base import Default
from diagnostics.lint.dialects.dialect import ConfigDialect, Recognised, keys_of

if TYPE_CHECKING:
    from diagnostics.lint.dialects.dialect import Started
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.values import Settings
    from diagnostics.lint.versions import Versions

NAMES = {
    "tensor_parallel_size": "engine.tensor_parallel",
    "tp": "engine.tensor_parallel",
    "pipeline_parallel_size": "engine.pipeline_parallel",
    "pp": "engine.pipeline_parallel",
    "data_parallel_size": "engine.data_parallel",
    "dp": "engine.data_parallel",
    "gpu_memory_utilization": "engine.memory_share",
    "max_model_len": "engine.max_length",
    "max_num_batched_tokens": "engine.max_batched_tokens",
    "enable_chunked_prefill": "engine.chunked_prefill",
    "enable_prefix_caching": "engine.prefix_caching",
    "enable_sleep_mode": "engine.sleep",
    "logprobs_mode": "engine.logprobs_mode",
    "generation_config": "engine.generation_config",
    "distributed_executor_backend": "engine.executor",
    "host": "server.host",
    "port": "server.port",
}


def plan(settings: Settings, versions: Versions) -> RunPlan:
    """The plan of a vLLM server."""
    made = base.start(settings, NAMES)
    for key in ("enable_chunked_prefill", "enable_prefix_caching"):
        off = settings.items.get(f"no_{key}")
        if off is not None:
            made.put(NAMES[key], off.but(data=False))
    if "disable_async_output_proc" in settings.items:
        made.put("engine.async_output", settings.items["disable_async_output_proc"].but(data=False))
    base.defaults(made, (Default("server.port", "port", 8000),), versions, "vllm serve")
    return made


def _launched(started: Started) -> Recognised | None:
    served = started.program == "vllm" and started.verb == "serve"
    if served or started.module == "vllm.entrypoints.openai.api_server":
        return Recognised("vllm", "serve", started.start, exact=True)
    return None


def _written(tree: dict[str, Any]) -> bool:
    keys = keys_of(tree)
    named = {"gpu_memory_utilization", "tensor_parallel_size", "max_model_len"} & keys
    return bool(named) and "_target_" not in keys


DIALECT = ConfigDialect(
    "vllm", plan, _launched, _written, frozenset({"vllm"}), "vllm serve", general=3, underscores=True
)
