"""Make a run plan from settings: translate option names, fill in defaults, and derive values from others.

`make_plan` makes the run plan: settings under names that are the same for all frameworks. The names, defaults and most
derivations are data in a framework's TOML file; `read_source` reads the sources that these data name. Environment
variables give visible devices, the allocator's mode, vLLM's V1 switch and Ray's address. Functions for TRL, ms-swift
and verl do the rest for training runs; those of ms-swift and verl also correct flags of the settings. If a training
run's sampling setting removes tokens from the distribution, `sampling.truncated` is true.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from diagnostics.lint import option_index
from diagnostics.lint.dialects import DIALECTS, PlanValue
from diagnostics.lint.readers.hydra import uses_shipped_config
from diagnostics.lint.run_plan import PROCESSES, RunPlan
from diagnostics.lint.values import UNKNOWN, Place, Settings, Value, parse_count, parse_scalar
from diagnostics.lint.versions import Versions

# Sampling settings -> values with which no token is removed from the distribution.
_NEUTRAL = {"sampling.top_p": (1, None), "sampling.top_k": (0, -1, None), "sampling.min_p": (0, None)}


def make_plan(settings: Settings, versions: Versions) -> RunPlan:
    """Make the run plan for settings and the given releases."""
    dialect = DIALECTS[settings.framework]
    plan = RunPlan(settings.framework, settings, versions=versions)
    plan.put("framework", Value(settings.framework, settings.place, "framework"))
    # A script that names the model is complete without its arguments; another leaves more than that to them.
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
    if settings.role != "train":
        _fill(plan, dialect.server_defaults if serves else dialect.derived)
        return plan
    _FILL.get(settings.framework, _fill_from_data)(plan)
    truncating = [
        value
        for name, neutral in _NEUTRAL.items()
        for value in plan.evidence(name)
        if value.known and not isinstance(value.data, str) and value.data not in neutral
    ]
    if truncating:
        text = ", ".join(value.as_text for value in truncating)
        value = replace(truncating[0].derive(data=True), key=text, factors=tuple(truncating))
        plan.put("sampling.truncated", value)
    return plan


def _option_value(settings: Settings, option: str) -> Value | None:
    """Return the value of an option or None; `a.b` may also be the key `b` of an option `a` that is a table."""
    name, _, key = option.partition(".")
    table = settings.options.get(name)
    if option in settings.options or table is None or not isinstance(table.data, dict):
        return settings.options.get(option)
    return Value(table.data[key], table.place, option) if key in table.data else None


def _fill(plan: RunPlan, entries: Iterable[PlanValue]) -> None:
    """Set names of the plan that no option sets (or that an entry replaces), each by the first entry that applies.

    If the release is unknown, an entry with a range applies if all releases with the run's options are in it; the value
    then counts as replaceable from outside.
    """
    filled: set[str] = set()
    for entry in entries:
        is_set = entry.name in filled or (entry.name in plan.values and not entry.replaces)
        incomplete = (entry.complete or entry.option) and plan.settings.has_unread_options
        in_range = option_index.surely_within(plan, plan.framework, entry.versions)
        if is_set or incomplete or not in_range or not conditions_hold(plan, entry.when):
            continue
        value = _compute(plan, entry)
        if value is not None:
            filled.add(entry.name)
            inferred = plan.versions.within(plan.framework, entry.versions) is None
            plan.put(entry.name, replace(value, outside=value.outside or inferred))


def conditions_hold(plan: RunPlan, when: Mapping[str, Any]) -> bool:
    """Return whether the sources have the expected values; an empty text means that a source is not set."""
    values = [(read_source(plan, source), expected) for source, expected in when.items()]
    return all(expected == ("" if value is None else value.data) for value, expected in values)


def _compute(plan: RunPlan, entry: PlanValue) -> Value | None:
    """Return the value of an entry, which is unknown if its source is; None if it does not apply."""
    if entry.option:
        outside = plan.own_copy or plan.needs_arguments
        place = Place(entry.about or f"default of {plan.framework}")
        return Value(entry.value, place, entry.option, soft=True, outside=outside)
    if entry.factors:
        return multiply(*(read_source(plan, source) for source in entry.factors))
    if not entry.source:
        return Value(entry.value, Place(entry.about), entry.name)
    value = read_source(plan, entry.source)
    if value is None or not value.known:
        return value
    data = value.data if entry.value is None else entry.value
    if entry.pattern:
        data = _value_by_pattern(entry.pattern, str(value.data))
    elif entry.values:
        data = entry.values.get(str(data).lower(), entry.values.get("*"))
    return None if data in (None, "") else value.derive(data)


def _value_by_pattern(pattern: str, text: str) -> Any:
    r"""Return the value that a pattern finds in a text, as `PlanValue.pattern` explains; UNKNOWN if none.

    >>> _value_by_pattern(r"[dt](\d+)", "d4t2"), _value_by_pattern(r"range\((\d+), *(\d+)\)", "list(range(0, 8))")
    (8, 8)
    """
    matches = [[parse_scalar(part) for part in match.groups()] for match in re.finditer(pattern, text[:1000])]
    if not matches or not all(isinstance(part, int) for match in matches for part in match):
        return matches[0][0] if matches else UNKNOWN
    if len(matches[0]) > 1:
        return sum(end - start for start, end in matches)
    return math.prod(number for [number] in matches)


def read_source(plan: RunPlan, source: str) -> Value | None:
    """Return the value of a source; None if it is not set. A source is one of these texts.

    - `option:a|b`: the first of these options that is set.
    - `env:NAME`, `text:NAME`: an environment variable, as a whole number or as text.
    - `target`: the module, script or class that runs.
    - `launcher`: the number of training processes that the launcher starts, see `_launched_processes`.
    - `processes`: the number of training processes on one node.
    - `launcher:NAME`: one of the launcher's settings.
    - any other text: a name of the plan.
    """
    settings = plan.settings
    kind, _, key = source.partition(":")
    sources: dict[str, Callable[[], Value | None]] = {
        "option": lambda: plan.option(*key.split("|")),
        "env": lambda: _whole_number(settings.env.get(key)),
        "text": lambda: settings.env.get(key),
        "target": lambda: Value(settings.target, settings.place, "module"),
        "processes": lambda: _whole_number(plan.processes_on_a_node()),
        "launcher": lambda: settings.launcher.get(key) if key else _launched_processes(settings),
    }
    return sources[kind]() if kind in sources else plan.values.get(source)


def _derive_environment(plan: RunPlan) -> None:
    """Set names of the plan from environment variables: devices, memory, vLLM's V1 switch, Ray's address."""
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
    plan.derive(
        "memory.expandable",
        env.get("PYTORCH_CUDA_ALLOC_CONF"),
        lambda data: "expandable_segments:true" in str(data).replace(" ", "").lower(),
    )
    v1 = env.get("VLLM_USE_V1")
    if v1 is not None and str(v1.data) in {"0", "1"}:
        plan.derive("engine.v1", v1, lambda data: str(data) == "1")
    plan.derive("ray.address", env.get("RAY_ADDRESS"), lambda data: data)


def device_ids(data: Any) -> list[str] | None:
    """Parse CUDA_VISIBLE_DEVICES into ids; None if it is no list of at most 1,024 numbers or names such as GPU-3f2a.

    >>> device_ids("0,1, 2"), device_ids("0-3"), device_ids(3)
    (['0', '1', '2'], None, ['3'])
    """
    parts = [part.strip() for part in str(data).split(",") if part.strip()]
    valid = all(part.isdecimal() or part.startswith(("GPU-", "MIG-")) for part in parts)
    return parts if valid and parts and len(parts) <= 1024 else None


def _whole_number(value: Value | None) -> Value | None:
    """Return a value with its text as a whole number; unknown if the text is something else."""
    if value is None:
        return None
    data = parse_scalar(str(value.data)) if value.known else UNKNOWN
    return value.derive(data if isinstance(data, int) and not isinstance(data, bool) else UNKNOWN)


def multiply(*factors: Value | None) -> Value | None:
    """Return the product of whole numbers; unknown if one is not known or no whole number, None if one is missing."""
    values = [value for value in factors if value is not None]
    if len(values) < len(factors):
        return None
    if no_number := next((value for value in values if type(value.data) is not int), None):
        return Value(UNKNOWN, no_number.place, no_number.key, written=no_number.shown)
    key = " x ".join(value.key for value in values if value.data != 1) or values[0].key
    soft, outside = any(value.soft for value in values), any(value.outside for value in values)
    product = math.prod(value.data for value in values)
    return Value(product, values[0].place, key, soft, outside, factors=tuple(values))


def _launched_processes(settings: Settings) -> Value | None:
    """Return the number of training processes on all nodes, else those per node; 1 for `python`; None if unknown."""
    launcher = settings.launcher
    per_node, nodes = launcher.get("processes_per_node"), launcher.get("nodes")
    if "processes" in launcher or per_node is None or nodes is None:
        started = launcher.get("launcher")
        alone = started.derive(1) if started is not None and started.data == "python" else None
        return launcher.get("processes") or per_node or alone
    count = parse_count(nodes)
    return multiply(per_node, nodes if count is None else nodes.derive(count))


def _fill_from_data(plan: RunPlan) -> None:
    """Fill a plan by the dialect's defaults and derived values."""
    dialect = DIALECTS[plan.framework]
    _fill(plan, (*dialect.defaults, *dialect.derived))


def _fill_trl(plan: RunPlan) -> None:
    """Fill a plan of TRL: no rollout mode without `use_vllm`, and whether a generation serves several steps."""
    uses = plan.option("use_vllm")
    if plan.settings.target != "AsyncGRPOConfig" and (uses is None or uses.data is False):
        plan.values.pop("rollout.mode", None)
    _fill_from_data(plan)
    own = plan.option("num_processes") is not None and PROCESSES in plan.values
    if own and not plan.settings.framework_parser:
        # Only `trl grpo` passes the number in a config to the launcher.
        plan.put(PROCESSES, replace(plan.values[PROCESSES], outside=True))
    loss, steps = plan.option("loss_type"), plan.whole_number("batch.steps_per_generation")
    accumulation = plan.whole_number("batch.accumulation")
    if loss is not None and loss.data in ("dapo", "cispo") and steps is not None and accumulation is not None:
        plan.put("train.several_steps_a_generation", loss.derive(steps > accumulation))


def _fill_swift(plan: RunPlan) -> None:
    """Fill a plan of ms-swift: no batches of Megatron; the rollout mode by the devices, before release 3.5."""
    # A run over Ray has a section for each role, whose options are not in the index.
    plan.settings.has_unread_options |= any(key.startswith(("train.", "rollout.")) for key in plan.options)
    if "megatron" in plan.options:
        # Megatron counts its batches over all devices, under other names.
        for name in ("batch.per_device", "batch.accumulation"):
            plan.values.pop(name, None)
    _fill_from_data(plan)
    workers, visible = plan.whole_number("devices.rollout"), plan.whole_number("devices.visible")
    if "rollout.mode" in plan.values or plan.get("rollout.engine") != "vllm":
        return
    if workers is not None and visible is not None and plan.versions.within("ms-swift", "<3.5") is not False:
        mode = "colocate" if workers == visible else "async"
        plan.put("rollout.mode", plan.values["devices.rollout"].derive(mode))


def _fill_verl(plan: RunPlan) -> None:
    """Fill a plan of verl: defaults only for verl's own program and config; unknown group size with `n_agent`."""
    # Another project's config has other defaults, and those of verl's experimental programs have some.
    known_config = uses_shipped_config(plan.settings)
    shipped = plan.settings.target == "verl.trainer.main_ppo" and known_config
    dialect = DIALECTS["verl"]
    reads_own = plan.settings.framework_parser or bool(option_index.experimental_options(plan))
    plan.settings.framework_parser = reads_own and known_config
    # Trainers built on verl form the group by these options, with an n of 1.
    group = plan.option("actor_rollout_ref.rollout.n_agent", "data.n_samples")
    if group is not None:
        plan.put("group.size", Value(UNKNOWN, group.place, group.key))
    _fill(plan, (*(dialect.defaults if shipped else ()), *dialect.derived))


_FILL: dict[str, Callable[[RunPlan], None]] = {"trl": _fill_trl, "ms-swift": _fill_swift, "verl": _fill_verl}
