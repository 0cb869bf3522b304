"""TRL's GRPOConfig, `trl grpo` and `trl vllm-serve`. Read in the tags 0.14.0 to 1.9.0 and in the wheel of 1.16.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.lint import known
from diagnostics.lint.dialects import base
from diagnostics.lint.dialects.base import Default
from diagnostics.lint.dialects.dialect import ConfigDialect, Recognised, keys_of
from diagnostics.lint.values import Place, Value

if TYPE_CHECKING:
    from diagnostics.lint.dialects.dialect import Started
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.values import Settings
    from diagnostics.lint.versions import Versions

NAMES = {
    "vllm_mode": "rollout.mode",
    "vllm_gpu_memory_utilization": "engine.memory_share",
    "vllm_tensor_parallel_size": "engine.tensor_parallel",
    "vllm_enable_sleep_mode": "engine.sleep",
    "vllm_max_model_len": "engine.max_length",
    "vllm_max_model_length": "engine.max_length",
    "vllm_enable_prefix_caching": "engine.prefix_caching",
    "vllm_server_host": "server.host",
    "vllm_server_port": "server.port",
    "vllm_server_base_url": "server.address",
    "vllm_server_timeout": "server.timeout",
    "vllm_group_port": "server.group_port",
    "num_generations": "group.size",
    "num_generations_eval": "group.eval_size",
    "per_device_train_batch_size": "batch.per_device",
    "per_device_eval_batch_size": "batch.eval_per_device",
    "gradient_accumulation_steps": "batch.accumulation",
    "generation_batch_size": "batch.generation",
    "steps_per_generation": "batch.steps_per_generation",
    "max_prompt_length": "data.max_prompt",
    "max_completion_length": "data.max_completion",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "top_k": "sampling.top_k",
    "min_p": "sampling.min_p",
    "repetition_penalty": "sampling.repetition_penalty",
    "vllm_importance_sampling_correction": "train.correction",
}
SERVER_NAMES = {
    "tensor_parallel_size": "engine.tensor_parallel",
    "data_parallel_size": "engine.data_parallel",
    "gpu_memory_utilization": "engine.memory_share",
    "max_model_len": "engine.max_length",
    "enable_prefix_caching": "engine.prefix_caching",
    "host": "server.host",
    "port": "server.port",
}
DEFAULTS = (
    Default("group.size", "num_generations", 8),
    Default("batch.accumulation", "gradient_accumulation_steps", 1),
    Default("rollout.mode", "vllm_mode", "server", ">=0.16,<1.0"),
    Default("rollout.mode", "vllm_mode", "colocate", ">=1.0"),
    Default("sampling.top_k", "top_k", 50, "<0.18"),
    Default("sampling.temperature", "temperature", 0.9, "<0.18"),
    Default("sampling.temperature", "temperature", 1.0, ">=0.18"),
)


def plan(settings: Settings, versions: Versions) -> RunPlan:
    """The plan of a TRL run, or of its server."""
    if settings.role == "serve":
        made = base.start(settings, SERVER_NAMES)
        base.defaults(made, (Default("server.port", "port", 8000),), versions, "trl vllm-serve")
        return made
    made = base.start(settings, NAMES)
    uses = settings.items.get("use_vllm")
    if settings.about == "AsyncGRPOConfig":
        _asynchronous(made)
    elif uses is None or uses.data is False:
        made.values.pop("rollout.mode", None)
        if uses is not None or not settings.open:
            made.put("rollout.engine", _engine(uses))
    else:
        made.put("rollout.engine", uses.but("vllm") if uses.known else uses)
        base.defaults(made, DEFAULTS, versions, "TRL")
    base.defaults(made, [default for default in DEFAULTS if default.name != "rollout.mode"], versions, "TRL")
    made.put("devices.train", _processes(settings))
    strategy = settings.items.get("eval_strategy") or settings.items.get("evaluation_strategy")
    if strategy is not None and strategy.known:
        made.put("train.evaluates", strategy.but(strategy.data not in {"no", None, False}))
    if settings.items.get("generation_kwargs") is not None:
        _generation_kwargs(made, settings.items["generation_kwargs"])
    _several_steps(made)
    base.truncated(made)
    return made


def _several_steps(made: RunPlan) -> None:
    """Whether a loss that divides by the generation's tokens takes several optimizer steps on it, as NUM004 asks."""
    loss = made.settings.items.get("loss_type")
    steps, each = made.whole("batch.steps_per_generation"), made.whole("batch.accumulation")
    if loss is not None and loss.data in {"dapo", "cispo"} and steps is not None and each is not None:
        made.put("train.several_steps_a_generation", loss.but(steps > each))


def _engine(uses: Value | None) -> Value:
    if uses is not None:
        return uses.but("transformers")
    return Value("transformers", Place("default of TRL"), "use_vllm", soft=True).named("use_vllm")


def _asynchronous(made: RunPlan) -> None:
    made.put("rollout.mode", Value("server", made.settings.place, "AsyncGRPOConfig"))
    made.put("rollout.async", Value(True, made.settings.place, "AsyncGRPOConfig"))
    made.put("rollout.engine", Value("vllm", made.settings.place, "AsyncGRPOConfig"))


def _processes(settings: Settings) -> Value | None:
    own = settings.items.get("num_processes")
    found = own or base.launched(settings)
    if found is not None:
        return found
    launcher = settings.launch.get("launcher")
    return launcher.but(1) if launcher is not None and launcher.data == "python" else None


def _generation_kwargs(made: RunPlan, value: Value) -> None:
    if isinstance(value.data, dict):
        for key in ("top_p", "top_k", "min_p", "repetition_penalty", "temperature"):
            if key in value.data:
                made.put(f"sampling.{key}", value.but(value.data[key]).named(f"generation_kwargs.{key}"))


def _launched(started: Started) -> Recognised | None:
    if started.program == "trl" and started.verb in {"grpo", "vllm-serve"}:
        return Recognised(
            "trl", "serve" if started.verb == "vllm-serve" else "train", started.start, exact=True
        )
    flags = started.flags if started.script or started.module else set()
    # `accelerate launch -m my.module`: somebody's own module or script, which hands its flags to GRPOConfig.
    own = bool(flags & _FLAGS) and not started.module.startswith(_OTHERS)
    named = "grpo" in started.script.rpartition("/")[2]
    if own or (named and flags & {"use_vllm", "per_device_train_batch_size"}):
        return Recognised("trl", "train", started.start, about=started.module or started.script)
    return None


def _counts(settings: Settings) -> bool:
    """Not those of another trainer that looks like TRL's by its name: most of their options no release of TRL has."""
    if settings.exact or settings.own or not settings.about:
        return True
    options = known.options_of(settings)
    taken = known.names("trl")
    return sum(known.takes(value.key, taken) for value in options) * 2 >= len(options)


def _written(tree: dict[str, Any]) -> bool:
    return bool(keys_of(tree) & _KEYS)


# Modules that are somebody else's, whatever their flags.
_OTHERS = ("verl.", "recipe.", "swift.cli.")
# Flags that a script of somebody's own takes only where it hands them to GRPOConfig.
_FLAGS = {"num_generations", "max_completion_length", "vllm_mode", "steps_per_generation"}
_KEYS = {*_FLAGS, "generation_batch_size"}
DIALECT = ConfigDialect(
    "trl", plan, _launched, _written, frozenset({"trl"}), r"trl (?:grpo|vllm-serve)|grpo\w*\.py", rank=3, general=2,
    underscores=True, includes=True, counts=_counts,
)  # fmt: skip
