"""Make a run plan from a framework's options.

A dialect's TOML file names the options and their defaults. This module adds the values that follow from several
settings: the rollout mode, the number of training processes, whether the run evaluates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from diagnostics.lint.dialects import DIALECTS, Default
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.values import UNKNOWN, Place, Settings, Value, parse_count, parse_scalar
from diagnostics.lint.versions import Versions

# Values with which a sampling setting removes no token, by name.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "sampling.top_p": (1, 1.0, None),
    "sampling.top_k": (0, -1, None),
    "sampling.min_p": (0, 0.0, None),
}
# verl's own programs and configs; the config of another project has other defaults.
_VERL_ENTRY_POINTS = {"", "verl.trainer.main_ppo"}
_VERL_CONFIGS = {"ppo_trainer", "ppo_megatron_trainer"}
_VERL_ROLLOUT = "actor_rollout_ref.rollout."


def make_plan(settings: Settings, versions: Versions) -> RunPlan:
    """Make the run plan for settings and the given releases."""
    dialect = DIALECTS[settings.framework]
    plan = RunPlan(settings.framework, settings, versions=versions)
    plan.put("framework", Value(settings.framework, settings.place, "framework"))
    # A script that names the model is complete without arguments; other scripts leave settings to their arguments.
    plan.needs_arguments = (
        settings.forwards_arguments and plan.option(*dialect.model_options, "model", "@") is None
    )
    serves = settings.role == "serve"
    for option, name in (dialect.server_names if serves else dialect.names).items():
        value = _option_value(settings, option)
        if value is not None and value.data is not None:
            # `!name` is the opposite of the option.
            plan.put(
                name.lstrip("!"), value.derive(not value.data) if name[0] == "!" and value.known else value
            )
    _derive_environment(plan)
    if serves:
        _fill_defaults(plan, dialect.server_defaults)
        return plan
    _DERIVE.get(settings.framework, _fill_simple_defaults)(plan)
    truncating = (
        plan.values[name] for name in NEUTRAL if name in plan.values and truncates(name, plan.values[name])
    )
    plan.derive("sampling.truncated", next(truncating, None), lambda _data: True)
    return plan


def _option_value(settings: Settings, option: str) -> Value | None:
    """Return the value of an option; `a.b` may also be the key `b` of an option `a` that is a table."""
    name, _, key = option.partition(".")
    table = settings.options.get(name)
    if (
        option not in settings.options
        and table is not None
        and isinstance(table.data, dict)
        and key in table.data
    ):
        return Value(table.data[key], table.place, option)
    return settings.options.get(option)


def _fill_defaults(plan: RunPlan, defaults: Iterable[Default]) -> None:
    """Fill in defaults, unless the run has options that could not be read.

    A default that differs between releases is used only if the release is known.
    """
    if plan.settings.has_unread_options:
        return
    outside = plan.own_copy or plan.needs_arguments
    for default in defaults:
        if plan.values.get(default.name) is None and plan.versions.within(plan.framework, default.versions):
            place = Place(f"default of {plan.framework}")
            plan.put(default.name, Value(default.value, place, default.option, soft=True, outside=outside))


def _derive_environment(plan: RunPlan) -> None:
    env = plan.settings.env
    visible = env.get("CUDA_VISIBLE_DEVICES") or env.get("ASCEND_RT_VISIBLE_DEVICES")
    if visible is not None and visible.known:
        ids = device_ids(visible.data)
        if ids is not None:
            plan.put("devices.ids", visible.derive(ids))
            plan.put("devices.visible", visible.derive(len(ids)))
    elif visible is None and "SLURM_GPUS_ON_NODE" in env:
        count = parse_count(env["SLURM_GPUS_ON_NODE"])
        plan.put("devices.visible", env["SLURM_GPUS_ON_NODE"].derive(count) if count is not None else None)
    allocator = env.get("PYTORCH_CUDA_ALLOC_CONF")
    plan.derive("memory.allocator", allocator, lambda data: data)
    plan.derive(
        "memory.expandable",
        allocator,
        lambda data: "expandable_segments:true" in str(data).replace(" ", "").lower(),
    )
    v1 = env.get("VLLM_USE_V1")
    if v1 is not None and str(v1.data) in {"0", "1"}:
        plan.derive("engine.v1", v1, lambda data: str(data) == "1")
    plan.derive("ray.address", env.get("RAY_ADDRESS"), lambda data: data)


def device_ids(data: Any) -> list[str] | None:
    """Parse CUDA_VISIBLE_DEVICES; None if it does not list numbers or names of devices.

    >>> device_ids("0,1, 2"), device_ids("0-3"), device_ids(3)
    (['0', '1', '2'], None, ['3'])
    """
    parts = [part.strip() for part in str(data).split(",") if part.strip()]
    valid = all(part.isdecimal() or part.startswith(("GPU-", "MIG-")) for part in parts)
    return parts if valid and parts and len(parts) <= 1024 else None


def env_number(settings: Settings, name: str) -> Value | None:
    """Return an environment variable as a whole number; unknown if it is set to something else."""
    value = settings.env.get(name)
    if value is None:
        return None
    data = parse_scalar(str(value.data)) if value.known else UNKNOWN
    return value.derive(data if isinstance(data, int) and not isinstance(data, bool) else UNKNOWN)


def multiply(*factors: Value | None) -> Value | None:
    """Return the product of numbers; unknown if a factor is unknown, None if a factor is missing."""
    values = [value for value in factors if value is not None]
    if len(values) < len(factors):
        return None
    first = values[0]
    if not all(isinstance(value.data, int) and not isinstance(value.data, bool) for value in values):
        return Value(UNKNOWN, first.place, first.key)
    key = " x ".join(value.key for value in values if value.data != 1) or first.key
    soft, outside = any(value.soft for value in values), any(value.outside for value in values)
    product = math.prod(value.data for value in values)
    return Value(product, first.place, key, soft, outside, factors=tuple(values))


def _launched_processes(settings: Settings) -> Value | None:
    """Return the number of training processes that the launcher starts, on all nodes."""
    launcher = settings.launcher
    per_node, nodes = launcher.get("processes_per_node"), launcher.get("nodes")
    if "processes" in launcher or per_node is None or nodes is None:
        return launcher.get("processes") or per_node
    count = parse_count(nodes)
    return multiply(per_node, nodes if count is None else nodes.derive(count))


def truncates(name: str, value: Value) -> bool:
    """Return whether a sampling setting, by its name in the plan, removes tokens from the distribution."""
    return value.known and not isinstance(value.data, str) and value.data not in NEUTRAL[name]


def _fill_simple_defaults(plan: RunPlan) -> None:
    _fill_defaults(plan, DIALECTS[plan.framework].defaults)


def _derive_own(plan: RunPlan) -> None:
    plan.derive("rollout.async", plan.values.get("rollout.mode"), lambda mode: mode == "async")


def _derive_trl(plan: RunPlan) -> None:
    settings, dialect = plan.settings, DIALECTS["trl"]
    uses = plan.option("use_vllm")
    if settings.target == "AsyncGRPOConfig":
        for name, data in (("rollout.mode", "server"), ("rollout.async", True), ("rollout.engine", "vllm")):
            plan.put(name, Value(data, settings.place, "AsyncGRPOConfig"))
    elif uses is None or uses.data is False:
        plan.values.pop("rollout.mode", None)
        default = Value("transformers", Place("default of trl"), "use_vllm", soft=True)
        if uses is not None or not settings.has_unread_options:
            plan.put("rollout.engine", default if uses is None else uses.derive("transformers"))
    else:
        plan.put("rollout.engine", uses.derive("vllm") if uses.known else uses)
        _fill_defaults(plan, dialect.defaults)
    _fill_defaults(plan, [default for default in dialect.defaults if default.name != "rollout.mode"])
    mode = plan.values.get("rollout.mode")
    if mode is not None and mode.data == "server" and "server.address" not in plan.values:
        _fill_defaults(plan, dialect.server_mode_defaults)
    processes = plan.option("num_processes") or _launched_processes(settings)
    launcher = settings.launcher.get("launcher")
    if processes is None and launcher is not None and launcher.data == "python":
        processes = launcher.derive(1)
    plan.put("devices.train", processes)
    plan.derive("train.evaluates", plan.option("eval_strategy", "evaluation_strategy"), _evaluates)
    loss, steps = plan.option("loss_type"), plan.whole_number("batch.steps_per_generation")
    accumulation = plan.whole_number("batch.accumulation")
    if loss is not None and loss.data in {"dapo", "cispo"} and steps is not None and accumulation is not None:
        plan.put("train.several_steps_a_generation", loss.derive(steps > accumulation))


def _derive_swift(plan: RunPlan) -> None:
    # The config of a run over Ray has sections for roles, whose options are not in the index.
    sections = any(key.startswith(("train.", "rollout.")) for key in plan.options)
    plan.settings.has_unread_options = plan.settings.has_unread_options or sections
    if "megatron" in plan.options:
        # Megatron counts its batches over all devices, under other names.
        for name in ("batch.per_device", "batch.accumulation"):
            plan.values.pop(name, None)
    _fill_simple_defaults(plan)
    plan.derive("rollout.engine", plan.option("use_vllm"), lambda uses: "vllm" if uses else "transformers")
    plan.put("devices.train", _swift_processes(plan.settings))
    _derive_swift_mode(plan)
    plan.derive("engine.sleep", plan.values.get("engine.sleep_level"), bool)
    # Without a strategy, ms-swift evaluates if there is data to evaluate on.
    split, data = plan.option("split_dataset_ratio"), plan.enabled("val_dataset")
    if not plan.derive("train.evaluates", plan.option("eval_strategy"), _evaluates):
        plan.derive("train.evaluates", split if split is not None else data, bool)
    plan.derive(
        "data.filters_overlong",
        plan.option("truncation_strategy"),
        lambda strategy: strategy == "delete",
    )
    scheduler = plan.option("multi_turn_scheduler", "multi_turn_func")
    if not plan.derive("rollout.multi_turn", scheduler, lambda data: data is not None):
        plan.put("rollout.multi_turn", scheduler)
    plan.derive("train.offloads", plan.option("offload_model"), bool)


def _evaluates(strategy: object) -> bool:
    return strategy not in {"no", None, False}


def _swift_processes(settings: Settings) -> Value | None:
    per_node = env_number(settings, "NPROC_PER_NODE")
    if per_node is None:
        return _launched_processes(settings)
    nodes = env_number(settings, "NNODES")
    return per_node if nodes is None else multiply(per_node, nodes)


def _derive_swift_mode(plan: RunPlan) -> None:
    """Derive the mode as ms-swift does: up to 3.4 from the workers, from 3.5 to 3.11.0 from the server's address."""
    if "rollout.mode" in plan.values or plan.get("rollout.engine") != "vllm":
        return
    versions = plan.versions
    host = plan.values.get("server.host") or plan.values.get("server.address")
    workers, visible = plan.whole_number("devices.rollout"), plan.whole_number("devices.visible")
    if host is not None:
        plan.put("rollout.mode", host.derive("server"))
    elif workers is not None and visible is not None and versions.within("ms-swift", "<3.5") is not False:
        mode = "colocate" if workers == visible else "async"
        plan.put("rollout.mode", plan.values["devices.rollout"].derive(mode))
    elif versions.within("ms-swift", ">=3.5,<3.11.1"):
        place = Place("default of ms-swift")
        plan.put("rollout.mode", Value("colocate", place, "vllm_mode", soft=True))


def _derive_hydra_trainer(plan: RunPlan, evaluation: str) -> None:
    """Derive the values that verl and EasyR1 have in common: devices on all nodes, and whether the run evaluates."""
    plan.put("devices.train", multiply(plan.values.get("devices.per_node"), plan.values.get("devices.nodes")))
    frequency = plan.option(evaluation)
    if frequency is not None and isinstance(frequency.data, int):
        plan.put("train.evaluates", frequency.derive(frequency.data > 0))


def _derive_verl(plan: RunPlan) -> None:
    settings = plan.settings
    shipped = uses_shipped_config(plan)
    settings.framework_parser = settings.framework_parser and shipped
    # Trainers built on verl form the group by these options, with an n of 1.
    group = plan.option(_VERL_ROLLOUT + "n_agent", "data.n_samples")
    if group is not None:
        plan.put("group.size", Value(UNKNOWN, group.place, group.key))
    if shipped:
        _fill_simple_defaults(plan)
    _derive_hydra_trainer(plan, "trainer.test_freq")
    nodes, mode = plan.option(_VERL_ROLLOUT + "nnodes"), plan.option(_VERL_ROLLOUT + "mode")
    if nodes is not None and nodes.data not in {0, None}:
        plan.put("rollout.mode", nodes.derive("async") if nodes.known else nodes)
    elif settings.target in _VERL_ENTRY_POINTS:
        place = mode.place if mode is not None else Place("verl's hybrid engine")
        plan.put("rollout.mode", Value("colocate", place, _VERL_ROLLOUT + "mode", soft=mode is None))
    plan.derive("rollout.async", mode, lambda data: data == "async")
    plan.derive("engine.executor", settings.env.get("VERL_VLLM_DISTRIBUTED_BACKEND"), lambda data: data)


def uses_shipped_config(plan: RunPlan) -> bool:
    """Return whether a verl run uses verl's own YAML, whose defaults then apply."""
    if plan.settings.target not in _VERL_ENTRY_POINTS or not plan.settings.target:
        return False
    path, name = plan.option("--config-path"), plan.option("--config-name")
    if path is not None and str(path.data).strip("./'\"") != "config":
        return False
    return name is None or str(name.data).removesuffix(".yaml") in _VERL_CONFIGS


def _derive_easyr1(plan: RunPlan) -> None:
    _fill_simple_defaults(plan)
    # The engine always shares the trainer's devices, and always sleeps.
    plan.put("rollout.mode", Value("colocate", Place("EasyR1's only mode"), "worker.rollout"))
    plan.put("engine.sleep", Value(True, Place("EasyR1's only mode"), "worker.rollout"))
    _derive_hydra_trainer(plan, "trainer.val_freq")


def _derive_openrlhf(plan: RunPlan) -> None:
    _fill_simple_defaults(plan)
    plan.put("devices.train", multiply(plan.values.get("devices.per_node"), plan.values.get("devices.nodes")))
    engines = plan.whole_number("devices.rollout")
    if not engines:
        return
    plan.put("rollout.engine", plan.values["devices.rollout"].derive("vllm"))
    shared = plan.option("train.colocate_all", "colocate_all_models")
    if not plan.settings.has_unread_options:
        colocated = shared is not None and shared.data is not False and not plan.get("rollout.async")
        source = shared or plan.values["devices.rollout"]
        plan.put("rollout.mode", source.derive("colocate" if colocated else "async"))


_DERIVE: dict[str, Callable[[RunPlan], None]] = {
    "trl": _derive_trl,
    "ms-swift": _derive_swift,
    "verl": _derive_verl,
    "easyr1": _derive_easyr1,
    "openrlhf": _derive_openrlhf,
    "own": _derive_own,
}
